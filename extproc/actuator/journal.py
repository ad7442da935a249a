"""What is told of what is done, and why? A line a happening; a wait only when it begins to be about something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

_LEVELS = {"failed": "error", "late": "warning", "warning": "warning"}  # by event; of others it is "info"


class Journal:
    """Of one pool."""

    def __init__(self, pool: str, write: Callable[[str], None], clock: Callable[[], float], *, as_json: bool) -> None:
        """`clock` gives Unix time. `as_json`: lines have the form of the service's log, as docs/logs.md has it."""
        self._pool = pool
        self._write = write
        self._clock = clock
        self._as_json = as_json
        self._topic = ""

    def tell(self, event: str, text: str, **fields: Any) -> None:
        """Something has happened. `fields` are for the JSON."""
        self._topic = ""
        self._line(event, text, fields)

    def waits(self, topic: str, text: str, **fields: Any) -> None:
        """Nothing is done, and why; told once for a topic."""
        if topic != self._topic:
            self._topic = topic
            self._line("wait", text, fields)

    def _line(self, event: str, text: str, fields: dict[str, Any]) -> None:
        at = datetime.fromtimestamp(self._clock(), UTC)
        if self._as_json:
            line = {
                "time": at.isoformat(timespec="milliseconds"),
                "level": _LEVELS.get(event, "info"),
                "logger": "extproc.scale",
                "message": text,
                "fields": {"pool": self._pool, "event": event} | fields,
            }
            self._write(json.dumps(line))
        else:
            self._write(f"{at.astimezone():%Y-%m-%d %H:%M:%S} {self._pool}: {text}")
