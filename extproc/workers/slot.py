"""Which process is one of the workers now, and what is known of it?"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from extproc.workers.counts import Name
from extproc.workers.link import Link
from extproc.workers.restarts import Restarts


class Slot:
    """One of the workers: the process that is it at present, and what came before."""

    def __init__(self, number: int, settings: str) -> None:
        self.number = number
        self.settings = settings
        self.restarts = Restarts()
        self.given_up = False
        self.process: asyncio.subprocess.Process | None = None
        self.link: Link | None = None
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Another process."""
        self.started_s = now
        self.heard_s = now
        self.prefix: str | None = None  # of its picks; None: its port is not open
        self.address = ""
        self.error: str | None = None  # why its port cannot be opened
        self.settled = asyncio.Event()  # its port is open, or cannot be, or it has ended
        self.eof = asyncio.Event()  # it says no more
        self.counts: dict[Name, float] = {}
        self.report: Mapping[str, Any] = {}
        self.syncs: dict[bytes, asyncio.Future[None]] = {}  # asked for and not answered

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def kill(self) -> None:
        end(self.process)

    def shown(self) -> dict[str, Any]:
        """For `/status`; null where nothing is known."""
        report = self.report
        state = "given up" if self.given_up else "starting" if self.prefix is None else "not ready"
        return {
            "number": self.number,
            "state": "ready" if report.get("ready") else state,
            "address": self.address,
            "pid": self.process.pid if self.process is not None and self.alive else None,
            "restarts": self.restarts.count,
            "picks": report.get("picks"),
            "open_streams": report["gauges"]["open_streams"] if report else None,
            "lag_s": report.get("lag_s"),
            "cpu_s": report.get("cpu_s"),
            "memory_bytes": _resident(self.process.pid) if self.process is not None and self.alive else None,
        }


def end(process: asyncio.subprocess.Process | None) -> None:
    """Kill it, if it runs."""
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def _resident(pid: int) -> int | None:
    """Its memory in bytes; None: it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return None
