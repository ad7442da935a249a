"""How does a line of the log look, and where does it go? As text for people, or as JSON for what collects logs."""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from extproc.cli._options import LogFormat

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

log = logging.getLogger("extproc")

# What every record has. What else is on one, the caller gave as `extra`.
_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def setup_logging(level: str, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Log to standard error, warnings of Python included; as JSON also the traceback with which the process may end."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(True)
    if log_format is LogFormat.JSON:
        sys.excepthook = _ended_by
        threading.excepthook = _thread_ended_by


class TextFormatter(logging.Formatter):
    """A record as one line, and a traceback under it. What a server or a peer says cannot begin a line of its own, nor
    speak to the terminal: characters that cannot be printed are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the library's name)
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(map(_printable, line))


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


class JsonFormatter(logging.Formatter):
    """A record as one line, an object of JSON: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and where there is
    something `fields` (what the caller gave as `extra`), `exception` (the traceback) and `stack`.

    It is plain ASCII whatever is logged, and one line whatever the message holds.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        fields = {name: _plain(value) for name, value in record.__dict__.items() if name not in _USUAL}
        if fields:
            line["fields"] = fields
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError) as error:  # what is wrong with it belongs in the log, not in its place
        return f"{record.msg} {record.args!r} (cannot be formatted: {error})"


def _plain(value: Any, depth: int = 4) -> Any:
    """What JSON can hold: numbers as they are, and of what it does not know the text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping) and depth:
        return {str(key): _plain(each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return [_plain(each, depth - 1) for each in value]
    return str(value)


def _ended_by(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
    else:
        log.critical("ended by an error", exc_info=(kind, error, traceback))


def _thread_ended_by(of: threading.ExceptHookArgs) -> None:
    if of.exc_type is not SystemExit and of.exc_value is not None:
        name = of.thread.name if of.thread is not None else "?"
        log.critical("thread %s ended by an error", name, exc_info=(of.exc_type, of.exc_value, of.exc_traceback))
