"""How is the operator's command run, so that whatever it does, it ends, and is told of?"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from extproc.endpoint import split_host_port

_TERM_S = 10.0  # from SIGTERM to SIGKILL
_TICK_S = 0.05
_LAST_S = 1.0  # what it left running may still be about to send its output elsewhere
_READS = 4  # of 64 KiB; whoever writes without end must not keep the time-out from counting
_MOST_LINES = 1000  # of a stream that are told
_LONGEST_LINE = 2000  # characters of a line of output that are told


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    status: int | None  # exit status, negative: the signal that ended it; None: it was never run
    took_s: float
    last_line: str = ""  # of its standard output, blank ones left out
    problem: str | None = None  # None: it did what it should
    timed_out: bool = False
    left_open: bool = False  # a process that it left running has its output open

    @property
    def endpoint(self) -> str | None:
        """The host:port that its last line is; None: it is none."""
        try:
            split_host_port(self.last_line)
        except ValueError:
            return None
        return self.last_line


class Commands:
    """Runs one command at a time; each in a session of its own, so that a Ctrl-C does not reach it."""

    def __init__(self, argv: Sequence[str], timeout_s: float, tell: Callable[[str, str], None]) -> None:
        """`tell` gets each line of output: of which action, and the line."""
        self._argv = tuple(argv)
        self._timeout_s = timeout_s
        self._tell = tell
        self._running: subprocess.Popen[bytes] | None = None

    def run(self, action: str, arguments: Sequence[str], env: Mapping[str, str]) -> Ended:
        """Run it to its end, or to the time-out. `action` is its first argument; `env` is added to the environment."""
        begun_s = time.monotonic()
        argv = [*self._argv, action, *arguments]
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **env},
                start_new_session=True,
            )
        except OSError as error:
            return Ended(None, 0.0, problem=f"cannot run {argv[0]}: {error.strerror}")
        self._running = process
        try:
            timed_out, last_line, left_open = self._follow(process, action, begun_s)
        finally:
            self._running = None
        took_s = time.monotonic() - begun_s
        problem = None
        if timed_out:
            problem = f"it was ended after {self._timeout_s:g} s (--timeout)"
        elif process.returncode < 0:
            problem = f"it was ended by {_signal(-process.returncode)}"
        elif process.returncode:
            problem = f"exit status {process.returncode}"
        return Ended(process.returncode, took_s, last_line, problem, timed_out, left_open)

    def kill_now(self) -> None:
        """End the one that runs without waiting; for a process that is about to exit itself."""
        if self._running is not None:
            _signal_group(self._running, signal.SIGTERM)

    def _follow(self, process: subprocess.Popen[bytes], action: str, begun_s: float) -> tuple[bool, str, bool]:
        """Read until it has ended: not until its output has, which a process that it left may hold for ever.

        Returns whether it was ended by the time-out, the last line of its standard output, and whether its output is
        still open.
        """
        assert process.stdout is not None
        assert process.stderr is not None
        last: list[str] = []
        deadline_s = begun_s + self._timeout_s
        timed_out = killed = False
        with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
            for stream, kept in ((process.stdout, last), (process.stderr, None)):
                os.set_blocking(stream.fileno(), False)
                selector.register(
                    stream, selectors.EVENT_READ, _Lines(stream, lambda line: self._tell(action, line), kept)
                )
            ended_s: float | None = None
            while True:
                if ended_s is None and process.poll() is not None:
                    ended_s = time.monotonic()
                for key, _ in selector.select(_TICK_S):
                    lines_of: _Lines = key.data
                    if not lines_of.read():
                        selector.unregister(key.fileobj)
                now_s = time.monotonic()
                if ended_s is not None:
                    if not selector.get_map() or now_s > ended_s + _LAST_S:
                        break
                elif now_s > deadline_s and not timed_out:
                    timed_out, deadline_s = True, now_s + _TERM_S
                    _signal_group(process, signal.SIGTERM)
                elif now_s > deadline_s and not killed:
                    killed = True
                    _signal_group(process, signal.SIGKILL)
                if not selector.get_map():
                    time.sleep(_TICK_S)
            left_open = bool(selector.get_map())
            for key in list(selector.get_map().values()):
                key.data.end()
        return timed_out, last[0] if last else "", left_open


class _Lines:
    """A stream, told line by line. Memory is bounded."""

    def __init__(self, stream: IO[bytes], tell: Callable[[str], None], kept: list[str] | None) -> None:
        """`kept` gets the last line that is not blank, too."""
        self._stream = stream
        self._tell = tell
        self._kept = kept
        self._rest = b""
        self._lines = 0

    def read(self) -> bool:
        """Read what is there, or a part of it. False: it has ended."""
        for _ in range(_READS):
            try:
                chunk = os.read(self._stream.fileno(), 65536)
            except BlockingIOError:
                return True
            if not chunk:
                self.end()
                return False
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            for line in whole:
                self._line(line)
            self._rest = self._rest[-_LONGEST_LINE:]
        return True

    def end(self) -> None:
        """The rest is a line, too."""
        self._line(self._rest)
        self._rest = b""
        if self._lines > _MOST_LINES:
            self._tell(f"({self._lines - _MOST_LINES:,} more lines)")
            self._lines = 0

    def _line(self, line: bytes) -> None:
        text = line.decode(errors="replace").strip()[:_LONGEST_LINE]
        if text:
            self._lines += 1
            if self._lines <= _MOST_LINES:
                self._tell(text)
            if self._kept is not None:
                self._kept[:] = [text]


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
