"""Where is it kept what is under way, and who may act on it?

A folder has two files for each pool: the account, replaced as a whole, and a lock, held as long as a process acts. Two
that act would each start the server that is missing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from extproc import whole_file
from extproc.actuator.account import Account, decode, encode


class BookError(Exception):
    """It cannot be used; the message has the cure."""


class LockedError(BookError):
    """Another process acts on this pool."""


class Book:
    """The account of one pool. As a context manager it holds the lock."""

    def __init__(self, folder: Path, pool: str) -> None:
        name = f"scale-{quote(pool, safe='')}"
        self.path = folder / f"{name}.json"
        self._pool = pool
        self._lock_path = folder / f"{name}.lock"
        self._lock: int | None = None

    def __enter__(self) -> Self:
        """Raises LockedError, and BookError for a folder in which nothing can be written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BookError(
                f"{self._lock_path}: {error.strerror}; what is under way must be kept somewhere, give a folder that can"
                " be written with --state"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _holder(os.pread(lock, 4096, 0))
            os.close(lock)
            raise LockedError(
                f"another extproc scale{holder} acts on pool {self._pool} ({self._lock_path}). Only one may: end that"
                " one, or, if it is for another fleet, give this one a --state of its own"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps({"pid": os.getpid(), "since": time.time()}).encode(), 0)
        self._lock = lock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def load(self) -> Account:
        """What was kept last; nothing if nothing was. Raises BookError for a file that cannot be used: what may have
        been under way is then for a person to find out."""
        try:
            return decode(self.path.read_bytes())
        except FileNotFoundError:
            return Account()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BookError(
                f"{self.path} cannot be used: {reason}. See whether a server was being started or drained (extproc"
                " drain --list), then move the file away"
            ) from None

    def save(self, account: Account) -> None:
        """Replace it. Raises BookError; the file is then as it was."""
        try:
            whole_file.replace(self.path, encode(account))
        except OSError as error:
            raise BookError(f"{self.path}: {error.strerror}: nothing is done that could not be kept") from None


def _holder(content: bytes) -> str:
    try:
        held = json.loads(content)
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(held["since"]))
        return f" (process {held['pid']}, since {since})"
    except (ValueError, KeyError, TypeError, OverflowError):
        return ""
