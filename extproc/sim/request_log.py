"""What arrived at a server, when, and how did it end? On disk at once, so that a kill loses nothing of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class RequestLog:
    """Appends a line of JSON for each arrival and each end of an inference request; several servers may share it.

    Lines: `at_s` (seconds since 1970), `server`, `request` (its x-request-id; null: none), `what` (arrived, answered,
    cut), and with answered the `status`. Cut: the client went away, or the server closed the connection.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError: the file cannot be opened for appending."""
        # Unbuffered, a write each: what was written before SIGKILL stays.
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def arrived(self, server: str, request: str | None) -> None:
        self._write(server, request, "arrived")

    def ended(self, server: str, request: str | None, status: int | None) -> None:
        """`status` None: it was cut."""
        if status is None:
            self._write(server, request, "cut")
        else:
            self._write(server, request, "answered", status=status)

    def _write(self, server: str, request: str | None, what: str, **more: int) -> None:
        line = {"at_s": round(time.time(), 4), "server": server, "request": request, "what": what, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")
