"""Which requests are traced, and what is told of each?

Off the request path as far as can be: a traced request costs a look at its headers, a note of a dozen values
(`extproc.note`) and a place in a queue. Spans are made of the notes, and sent, by a thread of their own.
Everything has a bound: requests traced a second, notes that wait, spans of a message; what does not fit is dropped and
counted.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from extproc.bug_log import log_bug
from extproc.config.tracing_settings import TracingSettings
from extproc.decision import Decision
from extproc.note import Note
from extproc.request import RawRequest

log = logging.getLogger(__name__)

QUEUED = 2048  # notes, of about a kilobyte with their decisions
BATCH = 32  # spans of one message: some milliseconds of work, in which the request path may wait for the interpreter
STATE_CHARS = 512  # a longer tracestate is dropped, as W3C's Trace Context allows
_JOIN_S = 0.5  # for a thread that was told to give up

# W3C Trace Context: version, trace id, parent id, flags; versions to come may append to it.
_PARENT = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-(?P<flags>[0-9a-f]{2})(?P<rest>-.{0,400})?"
)
_SAMPLED = 1


class Told(NamedTuple):
    """One traced decision, for whoever makes spans."""

    note: Note
    decision: Decision
    ended_ns: int  # unix time
    took_s: float


class Sender(Protocol):
    """Takes what is told to where traces are kept."""

    def send(self, batch: list[Told]) -> bool:
        """Blocks. False: it could not be sent, and is lost."""

    def give_up(self) -> None:
        """End a `send` that waits, soon; those that follow fail. Called from another thread."""


def sender_of(settings: TracingSettings) -> Sender:
    """Raises ValueError: what it needs is not installed, or a file that the settings name cannot be read."""
    try:
        from extproc.telemetry.trace_export import SpanSender
    except ImportError as error:
        raise ValueError(
            f"tracing needs OpenTelemetry ({error}); install it with: pip install 'vllm-extproc[otel]'"
        ) from error
    return SpanSender(settings)


class Traces:
    """Of one process. `begin` and `end` are for the event loop."""

    def __init__(
        self,
        settings: TracingSettings,
        sender: Sender,
        *,
        rng: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exported = self._failed = self._queue_full = self._over_rate = 0
        self._ratio = settings.sample_ratio
        self._per_s = float(settings.max_per_s)
        self._sender = sender
        self._rng = rng or Random()
        self._clock = clock
        self._allowance = self._per_s
        self._allowed_at_s = clock()
        self._queue: deque[Told] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def counts(self) -> dict[str, int]:
        """Spans since the start, by what became of them."""
        return {
            "exported": self._exported,
            "failed": self._failed,
            "queue_full": self._queue_full,
            "over_rate": self._over_rate,
        }

    def begin(self, raw: RawRequest, metadata: Callable[[bytes], bytes | None]) -> Note | None:
        """A note to be filled in, if the request is to be traced.

        `metadata`: of the gRPC call. What Envoy says there, where it traces itself, counts before the request's own
        headers: it is the nearer parent.
        """
        said = metadata(b"traceparent")
        if said is None:
            parent, state = raw.headers.get("traceparent"), raw.headers.get("tracestate")
        else:
            given = metadata(b"tracestate")
            parent, state = said.decode("latin-1"), None if given is None else given.decode("latin-1")
        wanted = sampled(parent)
        if wanted is None:
            parent = state = None
            wanted = self._rng.random() < self._ratio
        if not wanted:
            return None
        if not self._allows():
            self._over_rate += 1
            return None
        return Note(parent, state if state is not None and len(state) <= STATE_CHARS else None)

    def end(self, note: Note, decision: Decision, took_s: float) -> None:
        """The request has its answer, after so long."""
        if len(self._queue) >= QUEUED:
            self._queue_full += 1
            return
        self._queue.append(Told(note, decision, time.time_ns(), took_s))
        if len(self._queue) == BATCH:
            self._wake.set()

    def start(self, every_s: float = 1.0) -> None:
        """Begin to send what waits: as soon as it fills a message, and what does not after `every_s`."""
        self._thread = threading.Thread(target=self._run, args=(every_s,), name="traces", daemon=True)
        self._thread.start()

    def stop(self, within_s: float = 2.0) -> None:
        """Send what waits, if that is done within a time; else it is dropped. Blocks for so long at most, and a little.

        A thread that hangs all the same ends with the process.
        """
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(within_s)
        self._sender.give_up()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self, every_s: float) -> None:
        while not self._stopping:
            self._wake.wait(every_s)
            self._wake.clear()
            self._send_all()

    def _send_all(self) -> None:
        while self._queue:
            batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
            try:
                good = self._sender.send(batch)
            except Exception as error:
                log_bug(log, f"bug in the export of traces; {len(batch)} spans are lost", error)
                good = False
            if good:
                self._exported += len(batch)
            else:
                self._failed += len(batch)

    def _allows(self) -> bool:
        now = self._clock()
        self._allowance = min(self._per_s, self._allowance + (now - self._allowed_at_s) * self._per_s)
        self._allowed_at_s = now
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True


def sampled(parent: str | None) -> bool | None:
    """Whether the trace that this `traceparent` names is sampled; None: it names none."""
    found = _PARENT.fullmatch(parent.strip(" \t")) if parent is not None else None
    if found is None or (found["version"] == "00" and found["rest"] is not None):
        return None
    return bool(int(found["flags"], 16) & _SAMPLED)
