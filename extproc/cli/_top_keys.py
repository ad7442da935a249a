"""Which key was pressed? Of a terminal that is read key by key, and is as it was afterwards."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator

# What terminals send for keys that are no character.
_SEQUENCES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
    "\t": "tab",
    " ": "space",
}
_LONGEST = max(map(len, _SEQUENCES))


def keys_in(text: str) -> list[str]:
    """The keys that a terminal has sent: characters, and names such as `up`; of what is not known nothing."""
    found = []
    while text:
        length = next((n for n in range(min(_LONGEST, len(text)), 0, -1) if text[:n] in _SEQUENCES), 0)
        if length:
            found.append(_SEQUENCES[text[:length]])
        elif text[0] == "\x1b":
            length = _unknown(text)
        else:
            found.append(text[0])
        text = text[length or 1 :]
    return found


def _unknown(text: str) -> int:
    """How long an escape sequence is that has no name here."""
    if text[1:2] not in ("[", "O"):
        return 1
    return next((i + 1 for i in range(2, len(text)) if "@" <= text[i] <= "~"), len(text))


def _no_keys(timeout_s: float) -> list[str]:
    time.sleep(timeout_s)
    return []


@contextlib.contextmanager
def keys() -> Iterator[Callable[[float], list[str]]]:
    """Gives a function that waits for so many seconds, at most, and returns the keys pressed meanwhile. Where standard
    input is no terminal it only waits."""
    if not sys.stdin.isatty():
        yield _no_keys
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def read(timeout_s: float) -> list[str]:
        ready, _, _ = select.select([fd], [], [], timeout_s)
        if not ready:
            return []
        data = os.read(fd, 1024)
        if not data:
            raise EOFError("the terminal is gone")
        return keys_in(data.decode(errors="ignore"))

    tty.setcbreak(fd)
    try:
        yield read
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
