"""What do both kinds of `extproc simulate` do with names that are mistyped, and files that cannot be written?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from extproc.cli._fail import fail


def known(option: str, words: Sequence[str], there: Sequence[str]) -> list[str]:
    """The names meant. An unknown one ends the command, with what was probably meant."""
    from extproc.config.problems import suggest
    from extproc.sim.grid import names

    try:
        return names(words, there)
    except KeyError as error:
        word = str(error.args[0])
        fail(f'{option}: unknown "{word}"; {suggest(word, there)}')


def written(path: Path | None, write: Callable[[Path], object]) -> None:
    """Write a file, if it was asked for, and say so. One that cannot be written ends the command."""
    if path is None:
        return
    try:
        write(path)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror or error}")
    sys.stderr.write(f"wrote {path}\n")
