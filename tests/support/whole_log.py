"""All that is logged in this process while a test runs, by us and by every library, in both formats."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from extproc.cli._logs import TEXT, JsonFormatter, TextFormatter


class WholeLog(logging.Handler):
    """At level debug."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines += [each.format(record) for each in (TextFormatter(TEXT), JsonFormatter())]

    @property
    def text(self) -> str:
        return "\n".join(self._lines)


@contextmanager
def whole_log() -> Iterator[WholeLog]:
    made, root = WholeLog(), logging.getLogger()
    before = root.level
    root.addHandler(made)
    root.setLevel(logging.DEBUG)
    try:
        yield made
    finally:
        root.setLevel(before)
        root.removeHandler(made)
