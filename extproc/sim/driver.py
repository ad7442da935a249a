"""How does an engine in virtual time serve callers in real time?

The engine's clock is the event loop's. One timer is set to the time of the engine's next event; when it fires, the
engine is advanced to now and each event goes to the mailbox of its request.
"""

from __future__ import annotations

import asyncio

from extproc.sim.engine import Engine
from extproc.sim.events import Event, Finished, Preempted, Request

_SPIN_BELOW_S = 0.0005  # timers of uvloop count in milliseconds


class EngineDiedError(Exception):
    """The engine was stopped under a running request."""


class Mailbox:
    """Events of one request, or a few, for one reader."""

    __slots__ = ("_died", "_events", "_waiter")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._died = False

    def put(self, event: Event) -> None:
        """Add an event and wake the reader."""
        self._events.append(event)
        self._wake()

    def die(self) -> None:
        """Let the reader fail with EngineDiedError."""
        self._died = True
        self._wake()

    async def get(self) -> list[Event]:
        """Wait for events: one or more, oldest first. Raises EngineDiedError."""
        while not self._events and not self._died:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._died:
            raise EngineDiedError
        events, self._events = self._events, []
        return events

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineDriver:
    """One engine on the running event loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self._loop = loop
        self._mailboxes: dict[str, Mailbox] = {}
        self._timer: asyncio.Handle | None = None
        self._due_s: float | None = None
        self._halted = False

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._mailboxes)

    def submit(self, request: Request, mailbox: Mailbox) -> None:
        """Give a request to the engine. Raises ValueError as `Engine.submit` does. Silent once halted."""
        if not self._halted:
            self.engine.submit(request, self._loop.time())
            self._mailboxes[request.id] = mailbox
            self._rearm()

    def abort(self, request_id: str) -> None:
        """The reader is gone: take the request out of the engine, if it is still there."""
        if self._mailboxes.pop(request_id, None) is not None and not self._halted:
            self.engine.abort(request_id, self._loop.time())
            self._rearm()

    def refresh(self) -> None:
        """Bring the engine to now, so that its readings are current."""
        if not self._halted:
            self._advance()

    def halt(self) -> None:
        """Stop the engine where it is. Readers wait for ever."""
        self._halted = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._due_s = None

    def die(self) -> None:
        """Stop the engine and fail every reader."""
        self.halt()
        for mailbox in self._mailboxes.values():
            mailbox.die()

    def _advance(self) -> None:
        for event in self.engine.advance(self._loop.time()):
            if isinstance(event, Preempted):
                continue
            if isinstance(event, Finished):
                mailbox = self._mailboxes.pop(event.request_id, None)
            else:
                mailbox = self._mailboxes.get(event.request_id)
            if mailbox is not None:
                mailbox.put(event)
        self._rearm()

    def _on_timer(self) -> None:
        self._timer = self._due_s = None
        self._advance()

    def _rearm(self) -> None:
        due_s = self.engine.next_event_at()
        if due_s == self._due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due_s = due_s
        if due_s is None:
            return
        if due_s - self._loop.time() < _SPIN_BELOW_S:
            self._timer = self._loop.call_soon(self._on_timer)
        else:
            self._timer = self._loop.call_at(due_s, self._on_timer)
