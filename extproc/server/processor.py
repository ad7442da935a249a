"""The pump of one ext_proc stream: read, decode, let the exchange decide, write."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from extproc.decision import Decision, Pick, Rejection
from extproc.exchange.actions import Close, Continue, EchoBody, RequestPick, ResponseBegan, SendPick, SendRejection
from extproc.exchange.events import Part
from extproc.exchange.exchange import Exchange
from extproc.pb.ext_proc_pb2 import ProcessingRequest
from extproc.request import ANY_ROUTE, RawRequest, Route
from extproc.router import Router
from extproc.server import decode, encode
from extproc.server.durations import Durations

log = logging.getLogger(__name__)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
# gRPC initial metadata that a route's configuration may set.
POOL_METADATA = "x-extproc-pool"
PROFILE_METADATA = "x-extproc-profile"

# A longer body may take milliseconds to decide on; see `_turn`.
LONG_BYTES = 128 * 1024

_EOF = grpc.aio.EOF
_parse = decode.parse


async def _read(context: Any) -> Any:
    """The next message, or EOF, also when the stream broke: what follows is the same."""
    try:
        return await context.read()
    except (asyncio.CancelledError, grpc.aio.BaseError):
        return _EOF


async def _next(context: Any) -> Any:
    """`_read`, not to be cancelled.

    Envoy often resets a stream while we read. A cancelled read leaks its pending batch in grpc's C core (80 bytes each,
    for ever), so the read is a task of its own that is never cancelled: it then ends by itself. Not so the first read
    of a stream: its message comes with the stream, and a task more made each request wait longer (1.07 ms added to
    Envoy's median against 0.90, one run each).
    """
    return await asyncio.shield(asyncio.ensure_future(_read(context)))


class Processor:
    """Serves `ExternalProcessor.Process`. One instance serves all streams of a process."""

    def __init__(
        self,
        router: Router,
        *,
        max_body_bytes: int,
        close_early: Callable[[], bool],
        ask_models: Callable[[str], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`close_early` tells whether full duplex streams end after the request phase. `ask_models` has the servers of
        a pool asked which models they serve, and returns soon."""
        self.decisions = Durations()
        self.open_streams = 0
        self.streams = 0
        self.undecodable = 0
        self.failures = 0  # exceptions of ours; what became of the request was Envoy's choice
        self._router = router
        self._max_body_bytes = max_body_bytes
        self._close_early = close_early
        self._ask_models = ask_models
        self._clock = clock
        self._long = asyncio.Lock()

    async def process(self, _request_iterator: object, context: Any) -> None:
        """One stream. It ends at the end of reads, by cancellation (both normal), or when we close it. A fault ends it
        with an error status: Envoy does what `failure_mode_allow` says."""
        self.open_streams += 1
        self.streams += 1
        pick_ids: list[str] = []  # at most one
        try:
            await self._pump(context, pick_ids)
        except asyncio.CancelledError:
            raise  # grpc leaks memory when a handler swallows the cancellation of its stream
        except grpc.aio.BaseError:
            return  # the stream is over: there is nobody to write to
        except DecodeError:
            self.undecodable += 1
            log.debug("message that does not decode; Envoy may let the request go on without a pick")
            fault = "message does not decode"
        except Exception:
            self.failures += 1
            log.exception("bug in the request path; Envoy may let the request go on without a pick")
            fault = "internal error"
        else:
            return
        finally:
            self.open_streams -= 1
            if pick_ids:
                self._router.stream_ended(pick_ids[0], self._clock())
        with contextlib.suppress(grpc.aio.BaseError, asyncio.CancelledError):
            await context.abort(grpc.StatusCode.INTERNAL, fault)

    async def _pump(self, context: Any, pick_ids: list[str]) -> None:
        raw = await context.read()  # the only read that may be cancelled: see `_next`
        if raw is _EOF:
            return
        message = _parse(raw)
        route = self._route(context)
        if decode.is_whole_body(message):
            if len(raw) > LONG_BYTES:
                await self._turn()
            await self._whole_body(message, route, context, pick_ids)
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
            if part is not None and await self._answer(exchange, message, part, context, pick_ids):
                return
            raw = await _next(context)
            if raw is _EOF:
                return
            message = _parse(raw)
            part = decode.part_of(message)

    async def _whole_body(self, message: ProcessingRequest, route: Route, context: Any, pick_ids: list[str]) -> None:
        """A whole exchange of shape BODY_FIRST.

        It says what `Exchange` would say, which a test compares, without a value for each step between: this shape is
        the one we ship, and it costs the service a fifth less CPU this way.
        """
        started_s = self._clock()
        request = decode.whole_request(message, route)
        decision = self._router.route(request, started_s)
        if type(decision) is Rejection and decision.doubtful is not None:
            decision = await self._second_thought(decision, request)
        if isinstance(decision, Pick):
            pick_ids.append(decision.pick_id)
            reply = encode.whole_body_pick(decision)
        else:
            reply = encode.rejection(decision)
        self.decisions.add(self._clock() - started_s)
        await context.write(reply)
        while (raw := await _next(context)) is not _EOF:
            part = decode.part_of(_parse(raw))  # the response's trailers, say: they change nothing
            if part is not None and pick_ids:
                await context.write(encode.continue_(Continue(part)))

    async def _answer(
        self, exchange: Exchange, message: ProcessingRequest, part: Part, context: Any, pick_ids: list[str]
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
                decision = self._router.route(action.raw, started_s)
                if type(decision) is Rejection and decision.doubtful is not None:
                    decision = await self._second_thought(decision, action.raw)
                if isinstance(decision, Pick):
                    pick_ids.append(decision.pick_id)
                self.decisions.add(self._clock() - started_s)
                actions = exchange.decided(decision)
                break
        for action in actions:
            match action:
                case SendPick():
                    await context.write(encode.pick(action))
                case Continue():
                    await context.write(encode.continue_(action))
                case EchoBody():
                    await context.write(encode.echo(action))
                case ResponseBegan():
                    self._router.response_began(pick_ids[0], action.head, self._clock())
                case SendRejection():
                    await context.write(encode.rejection(action.rejection))
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

    async def _second_thought(self, decision: Rejection, raw: RawRequest) -> Decision:
        """Before a model is said not to exist, ask: it may have been loaded a moment ago."""
        if decision.doubtful is None or self._ask_models is None:
            return decision
        await self._ask_models(decision.doubtful)
        self._router.withdraw(decision)
        return self._router.route(raw, self._clock())

    @staticmethod
    def _route(context: Any) -> Route:
        pool = profile = None
        for key, value in context.invocation_metadata() or ():
            if key == POOL_METADATA:
                pool = str(value)
            elif key == PROFILE_METADATA:
                profile = str(value)
        return ANY_ROUTE if pool is profile is None else Route(pool, profile)


def handlers(processor: Processor) -> grpc.GenericRpcHandler:
    """The processor as a gRPC service that reads and writes raw bytes."""
    method = grpc.stream_stream_rpc_method_handler(processor.process)
    return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})
