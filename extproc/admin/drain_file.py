"""How do drains survive a restart of the service?

They are kept in one JSON file that is replaced as a whole. Times in it are of the wall clock: a deadline goes on while
the service is away.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from extproc import whole_file
from extproc.endpoint import Address
from extproc.pool.drain import By, Phase

log = logging.getLogger(__name__)

VERSION = 1


@dataclass(frozen=True, slots=True)
class Saved:
    """A drain that somebody asked for, and of which server. Times are Unix times, in seconds."""

    pool: str
    endpoint: Address
    uid: str | None
    by: frozenset[By]
    phase: Phase
    started: float
    deadline: float | None
    ended: float | None
    open: int | None  # requests there at the end


class DrainFile:
    """The file at `path`. Its calls block: they belong into a thread, or before the start."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def load(self) -> tuple[Saved, ...]:
        """What was saved last; nothing when there is no such file.

        A file that cannot be understood is moved aside and logged. Raises OSError for one that cannot be read.
        """
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return ()
        try:
            return decode(text)
        except ValueError as error:
            aside = self.path.with_name(f"{self.path.name}.unreadable-{time.time_ns() // 1_000_000}")
            self.path.replace(aside)
            log.error("drain.state_file: %s cannot be used (%s): moved to %s; no drain is restored, start them again",
                      self.path, error, aside)  # fmt: skip
            return ()

    def save(self, drains: Iterable[Saved]) -> None:
        """Replace what was saved. Raises OSError; the old file is then as it was."""
        whole_file.replace(self.path, encode(drains))


def encode(drains: Iterable[Saved]) -> bytes:
    rows = [asdict(each) | {"endpoint": str(each.endpoint), "by": sorted(each.by)} for each in drains]
    return json.dumps({"version": VERSION, "drains": rows}, indent=1).encode() + b"\n"


def decode(text: bytes) -> tuple[Saved, ...]:
    """Raises ValueError, with the reason, for what `encode` has not written."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    try:
        return tuple([_saved(row) for row in document["drains"]])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _saved(row: dict[str, Any]) -> Saved:
    by = frozenset(By(each) for each in row["by"])
    if not by:
        raise ValueError("a drain that nobody asked for")
    return Saved(
        pool=str(row["pool"]),
        endpoint=Address.parse(row["endpoint"]),
        uid=None if row["uid"] is None else str(row["uid"]),
        by=by,
        phase=Phase(row["phase"]),
        started=float(row["started"]),
        deadline=None if row["deadline"] is None else float(row["deadline"]),
        ended=None if row["ended"] is None else float(row["ended"]),
        open=None if row["open"] is None else int(row["open"]),
    )
