"""One mistake in a good file, as a patch describes it: are all problems told, each at its line?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from extproc.config.problems import Problem


def assert_told(path: Path, patch: dict[str, Any], text: str, found: Iterable[Problem]) -> None:
    """`text`: the file with the mistake; `path`: of the patch, whose name begins with the code it is about."""
    lines, found = text.splitlines(), list(found)
    assert [
        {
            "code": problem.code,
            "line_holds": lines[problem.line - 1].strip() if problem.line else None,
            "text": f"{problem.severity}: " + str(problem).split(": ", 1)[1],
        }
        for problem in found
    ] == patch["problems"]
    assert path.name.split(".")[0].split("--")[0] in {problem.code for problem in found}
