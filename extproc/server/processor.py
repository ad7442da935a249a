"""The pump of one ext_proc stream: read, decode, let the exchange decide, write."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from google.protobuf.message import DecodeError

from extproc.bug_log import log_bug
from extproc.decision import Decision, Pick, Rejection, RejectionReason
from extproc.exchange.actions import (
    Answered,
    Close,
    Continue,
    EchoBody,
    RequestPick,
    ResponseBegan,
    SendPick,
    SendRejection,
)
from extproc.exchange.events import Part
from extproc.exchange.exchange import Exchange
from extproc.note import Note
from extproc.pb.ext_proc_pb2 import ProcessingRequest
from extproc.request import ANY_ROUTE, RawRequest, Route
from extproc.router import Router
from extproc.rpc.call import EOF, Call, Handler
from extproc.rpc.status import AbortedError, Code
from extproc.server import decode, encode
from extproc.server.durations import Durations

log = logging.getLogger(__name__)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
# gRPC initial metadata that a route's configuration may set.
POOL_METADATA = b"x-extproc-pool"
PROFILE_METADATA = b"x-extproc-profile"

# A longer body may take milliseconds to decide on; see `_turn`.
LONG_BYTES = 128 * 1024

_parse = decode.parse


class Traces(Protocol):
    """Traces some of the requests; see `telemetry.tracing`."""

    def begin(self, raw: RawRequest, metadata: Callable[[bytes], bytes | None]) -> Note | None: ...

    def end(self, note: Note, decision: Decision, took_s: float) -> None: ...


class UnknownFleetError(Exception):
    """The members of the pool are not known yet, so nothing can be said of the request."""


class Processor:
    """Serves `ExternalProcessor.Process`. One instance serves all streams of a process."""

    def __init__(
        self,
        router: Router,
        *,
        max_body_bytes: int,
        close_early: Callable[[], bool],
        look_again: Callable[[str], Awaitable[None]] | None = None,
        traces: Traces | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`close_early` tells whether full duplex streams end after the request phase. `look_again` has the servers of
        a pool asked which models they serve, or waits for the pool's first members, and returns soon."""
        self.decisions = Durations()
        self.open_streams = 0
        self.streams = 0
        self.undecodable = 0
        self.failures = 0  # exceptions of ours; what became of the request was Envoy's choice
        self._router = router
        self._max_body_bytes = max_body_bytes
        self._close_early = close_early
        self._look_again = look_again
        self._traces = traces
        self._clock = clock
        self._long = asyncio.Lock()
        self._answered: set[Call] = set()  # streams that Envoy can do without from here on

    def let_go(self) -> None:
        """End the streams of requests that run on without us, with OK.

        In full duplex Envoy takes any other end for a failure, and cuts the response.
        """
        for call in self._answered:
            call.end_of_messages()

    async def process(self, call: Call) -> None:
        """One stream. It ends at the end of reads, by cancellation (both normal), or when we close it. A fault ends it
        with an error status: Envoy does what `failure_mode_allow` says."""
        self.open_streams += 1
        self.streams += 1
        pick_ids: list[str] = []  # at most one
        try:
            await self._pump(call, pick_ids)
        except DecodeError as error:
            self.undecodable += 1
            log.debug("message that does not decode; Envoy may let the request go on without a pick")
            raise AbortedError(Code.INTERNAL, "message does not decode") from error
        except UnknownFleetError as error:
            # We have just started. Envoy may know more than we do: by EDS from before, or from our neighbour.
            raise AbortedError(Code.UNAVAILABLE, "the servers are not known yet") from error
        except Exception as error:
            self.failures += 1
            log_bug(log, "bug in the request path; Envoy may let the request go on without a pick", error)
            raise AbortedError(Code.INTERNAL, "internal error") from error
        finally:
            self.open_streams -= 1
            self._answered.discard(call)
            if pick_ids:
                self._router.stream_ended(pick_ids[0], self._clock())

    async def _pump(self, call: Call, pick_ids: list[str]) -> None:
        raw = await call.read()
        if raw is EOF:
            return
        message = _parse(raw)
        route = self._named(call)
        if decode.is_whole_body(message):
            if len(raw) > LONG_BYTES:
                await self._turn()
            await self._whole_body(message, route, call, pick_ids)
            return
        part = decode.part_of(message)
        close_early = self._close_early()
        exchange = Exchange(
            decode.opening(message, route),
            part or Part.REQUEST_HEADERS,
            max_body_bytes=self._max_body_bytes,
            close_early=close_early,
        )
        while True:
            if part is not None and await self._answer(exchange, message, part, call, pick_ids):
                return
            if exchange.may_end:
                self._answered.add(call)
            call.keep(exchange.collected_bytes)
            raw = await call.read()
            if raw is EOF:
                return
            message = _parse(raw)
            part = decode.part_of(message)

    async def _whole_body(self, message: ProcessingRequest, route: Route, call: Call, pick_ids: list[str]) -> None:
        """A whole exchange of shape BODY_FIRST.

        It says what `Exchange` would say, which a test compares, without a value for each step between: this shape is
        the one we ship, and it costs the service a fifth less CPU this way.
        """
        started_s = self._clock()
        request = decode.whole_request(message, route)
        note = None if self._traces is None else self._traces.begin(request, call.metadata)
        decision = self._route(request, started_s, note)
        if type(decision) is Rejection and decision.doubtful is not None:
            decision = await self._second_thought(decision, request, note)
        if isinstance(decision, Pick):
            pick_ids.append(decision.pick_id)
            reply = encode.whole_body_pick(decision)
        else:
            reply = encode.rejection(decision)
        took_s = self._clock() - started_s
        self.decisions.add(took_s)
        await call.write(reply)
        if note is not None and self._traces is not None:
            self._traces.end(note, decision, took_s)
        self._answered.add(call)
        while (raw := await call.read()) is not EOF:
            message = _parse(raw)
            part = decode.part_of(message)  # the response's trailers, say: they change nothing
            if part is not None and pick_ids:
                await call.write(encode.continue_(Continue(part)))
                if part is Part.RESPONSE_HEADERS:
                    response = decode.event(message, part)
                    self._router.answered(pick_ids[0], response.served, response.status, self._clock())

    async def _answer(
        self, exchange: Exchange, message: ProcessingRequest, part: Part, call: Call, pick_ids: list[str]
    ) -> bool:
        """Answer one message; true when we are done with the stream."""
        started_s = self._clock()
        actions = exchange.receive(decode.event(message, part))
        for action in actions:
            if type(action) is SendRejection:  # by the exchange itself; the router counts its own
                self._router.ledger.rejections[action.rejection.reason] += 1
            elif type(action) is RequestPick:
                if len(action.raw.body) > LONG_BYTES:
                    await self._turn()
                    started_s = self._clock()
                note = None if self._traces is None else self._traces.begin(action.raw, call.metadata)
                decision = self._route(action.raw, started_s, note)
                if type(decision) is Rejection and decision.doubtful is not None:
                    decision = await self._second_thought(decision, action.raw, note)
                if isinstance(decision, Pick):
                    pick_ids.append(decision.pick_id)
                took_s = self._clock() - started_s
                self.decisions.add(took_s)
                if note is not None and self._traces is not None:
                    self._traces.end(note, decision, took_s)
                actions = exchange.decided(decision)
                break
        for action in actions:
            match action:
                case SendPick():
                    await call.write(encode.pick(action))
                case Continue():
                    await call.write(encode.continue_(action))
                case EchoBody():
                    await call.write(encode.echo(action))
                case Answered():
                    self._router.answered(pick_ids[0], action.served, action.status, self._clock())
                case ResponseBegan():
                    self._router.response_began(pick_ids[0], action.head, self._clock())
                case SendRejection():
                    await call.write(encode.rejection(action.rejection))
                case Close():
                    self._router.detach(pick_ids[0])
                    return True
        return False

    async def _turn(self) -> None:
        """Wait until no other long body is decided on in this turn of the event loop.

        Of many that arrive together several would else be decided on in one turn (5 to 17 of 1 MB, at 11 ms each),
        while health checks and everybody's short requests wait.
        """
        async with self._long:
            await asyncio.sleep(0)

    async def _second_thought(self, decision: Rejection, raw: RawRequest, note: Note | None) -> Decision:
        """Before a model is said not to exist, ask: it may have been loaded a moment ago. And before it is said that
        there is no server, wait until they are known; raises UnknownFleetError when they are not soon."""
        if decision.doubtful is None or self._look_again is None:
            return decision
        await self._look_again(decision.doubtful)
        self._router.withdraw(decision)
        second = self._route(raw, self._clock(), note)
        if isinstance(second, Rejection) and second.reason is RejectionReason.NO_ENDPOINTS and second.doubtful:
            self._router.withdraw(second, again=False)
            raise UnknownFleetError
        return second

    def _route(self, raw: RawRequest, now: float, note: Note | None) -> Decision:
        decision = self._router.route(raw, now, note)
        # What is written in this turn of the event loop goes out at its end.
        asyncio.get_running_loop().call_soon(self._router.settle)
        return decision

    @staticmethod
    def _named(call: Call) -> Route:
        pool, profile = call.metadata(POOL_METADATA), call.metadata(PROFILE_METADATA)
        if pool is profile is None:
            return ANY_ROUTE
        return Route(*(None if name is None else name.decode(errors="replace") for name in (pool, profile)))


def handlers(processor: Processor) -> dict[str, Handler]:
    return {f"/{SERVICE}/Process": processor.process}
