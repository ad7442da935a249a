"""What is wrong with a configuration file, where, and what cures it? Problems are values."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """ERROR: does not start, or requests fail or go elsewhere than picked. WARNING: works, at a cost or a risk."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake. `line` is 1-based, None for the file as a whole; `field` is a dotted path, "" for the file."""

    severity: Severity
    file: str
    line: int | None
    field: str
    message: str
    cure: str
    code: str  # stable; `extproc check --rules` lists them

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        what = f"{self.field}: {self.message}" if self.field else self.message
        return f"{where}: {what}; {self.cure}" if self.cure else f"{where}: {what}"


class ConfigError(Exception):
    """A configuration that cannot be used; `problems` holds at least one error, and the warnings too."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(p) for p in self.problems if p.severity is Severity.ERROR))


def in_a_line(problems: Sequence[Problem], most: int = 3) -> str:
    """The first of them, and how many more there are."""
    more = f"; and {len(problems) - most} more" if len(problems) > most else ""
    return "; ".join(str(problem) for problem in problems[:most]) + more


def suggest(given: str, known: Iterable[str]) -> str:
    """A cure for an unknown word: the one probably meant, or else all there are."""
    words = sorted(known)
    close = difflib.get_close_matches(given, words, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return ("use one of: " + ", ".join(words)) if words else "remove it"
