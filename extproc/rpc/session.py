"""One client's connection: bytes of a transport to calls, calls to tasks."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from extproc.bug_log import log_bug
from extproc.rpc import framing, http2
from extproc.rpc.call import Call, Handler
from extproc.rpc.framing import Header, ProtocolError, literal
from extproc.rpc.messages import framed
from extproc.rpc.status import AbortedError, Code

log = logging.getLogger(__name__)

QUEUE_BYTES = 1 << 20  # whole messages that wait for a handler; beyond, the peer gets no more room
UNSENT_BYTES = 1 << 24  # a peer that makes us say more than it listens to is cut off
BEGIN_S = 10.0  # a peer that has not introduced itself by then is let go
# Over all connections of a server. 100,000 streams are as many as Envoy holds as we ship it; a GiB holds the bodies of
# 64 requests of 16 MiB that arrive at the same time, or of 10,000 of 100 KB. Both are there so that a flood ends in
# refusals, with which Envoy goes on by its own balancing, and not in the death of the process.
MOST_CONNECTIONS = 10_000
MOST_STREAMS = 100_000
MOST_HELD_BYTES = 1 << 30
_QUIET_S = 10.0  # what a peer can make us say is logged once in so long

_HEAD = b"\x88" + literal(b"content-type", b"application/grpc")  # 0x88: `:status: 200` (RFC 7541, appendix A)
_OK = literal(b"grpc-status", b"0")
_NOT_GRPC = literal(b":status", b"415")

_DETAILS = 512  # characters: a peer takes only so much in headers, and some of it may be its own words

_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNIT_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def timeout_s(text: bytes | None) -> float | None:
    """The value of a `grpc-timeout`; None: there is none, or it cannot be read."""
    found = _TIMEOUT.fullmatch(text) if text is not None else None
    return int(found[1]) * _UNIT_S[found[2]] if found else None


def trailers(code: Code, details: str) -> bytes:
    """The encoded headers that say how a call ended."""
    if code is Code.OK:
        return _OK
    said = b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in details[:_DETAILS].encode()
    )
    return literal(b"grpc-status", b"%d" % code) + literal(b"grpc-message", said)


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for every connection of a server."""

    handlers: Mapping[bytes, Handler]  # by path, as b"/package.Service/Method"
    max_message_bytes: int
    ping_after_s: float  # of silence
    ping_timeout_s: float


class Load:
    """What all connections of a server hold."""

    def __init__(self) -> None:
        self.sessions: set[Session] = set()  # that are connected
        self.streams = 0
        self.held_bytes = 0
        self._said_s: dict[str, float] = {}

    def warn(self, words: str, *arguments: object) -> None:
        """Log what a peer has done; not each time, if it does it again and again."""
        now = asyncio.get_running_loop().time()
        if now - self._said_s.get(words, -_QUIET_S) >= _QUIET_S:
            self._said_s[words] = now
            log.warning(words, *arguments)


class Session(asyncio.Protocol):
    """Is also its connection's `http2.Streams` and its calls' `Carrier`."""

    def __init__(self, rules: Rules, load: Load) -> None:
        self._rules = rules
        self._load = load
        self._http2 = http2.Connection(self)
        self._calls: dict[int, Call] = {}
        # Not in the call: a cancelled task keeps its traceback, and so would keep itself until a collection.
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._writable = asyncio.Event()
        self._writable.set()
        self._receiving = False
        self._heard = True  # since the keepalive last looked
        self._keepalive: asyncio.TimerHandle | None = None
        self._beginning: asyncio.TimerHandle | None = None

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Of the calls that are open."""
        return list(self._tasks.values())

    def going_away(self) -> None:
        """Ask the peer to open no more calls here; those that come all the same are served."""
        self._http2.send_goaway(final=False)
        self._flush()

    def close(self) -> None:
        """End all calls, then the connection."""
        self._cancel_all()
        self._http2.send_goaway()
        self._flush()
        self._transport.close()

    # Of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._load.warn("a client speaks TLS but does not offer HTTP/2 (ALPN h2): its connection is closed")
            self._transport.close()
            return
        if len(self._load.sessions) >= MOST_CONNECTIONS:
            self._load.warn("%d gRPC clients are connected: one more is closed", MOST_CONNECTIONS)
            self._transport.close()
            return
        self._load.sessions.add(self)
        self._keepalive = self._loop.call_later(self._rules.ping_after_s, self._ping_if_silent)
        self._beginning = self._loop.call_later(BEGIN_S, self._close_if_not_begun)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.sessions.discard(self)
        for timer in (self._keepalive, self._beginning):
            if timer is not None:
                timer.cancel()
        self._cancel_all()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._heard = True
        self._receiving = True
        try:
            self._http2.receive(data)
        except ProtocolError as error:
            self._load.warn("a gRPC client breaks the protocol (%s): its connection is closed", error)
            self._cancel_all()
            self._http2.send_goaway(error.code, reason=str(error))
            self._transport.write(self._http2.take())
            self._transport.close()
        finally:
            self._receiving = False
        self._flush()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Of http2.Streams

    def opened(self, stream: int, headers: list[Header], ended: bool) -> None:
        fields = dict(headers)
        if fields.get(b":method") != b"POST" or not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            self._http2.send_end(stream, _NOT_GRPC)
            return
        path = fields.get(b":path", b"")
        handler = self._rules.handlers.get(path)
        if handler is None:
            name = path.decode(errors="replace")
            self._http2.send_end(stream, _HEAD + trailers(Code.UNIMPLEMENTED, f"no method {name} here"))
            return
        if self._load.streams >= MOST_STREAMS:
            self._load.warn("%d gRPC calls are open: one more is refused", MOST_STREAMS)
            self._http2.send_end(stream, _HEAD + trailers(Code.RESOURCE_EXHAUSTED, "too many calls are open"))
            return
        self._load.streams += 1
        call = self._calls[stream] = Call(self, stream, headers, self._rules.max_message_bytes)
        call.ended = ended
        task = self._tasks[stream] = self._loop.create_task(self._run(handler, call))
        limit_s = timeout_s(fields.get(b"grpc-timeout"))
        if limit_s is not None:
            expiry = self._loop.call_later(limit_s, self._give_up, call, Code.DEADLINE_EXCEEDED, "deadline exceeded")
            task.add_done_callback(lambda _: expiry.cancel())

    def data(self, stream: int, data: bytes, ended: bool) -> None:
        call = self._calls.get(stream)
        if call is None:
            return
        messages = call.messages
        try:
            messages.feed(data)
            if ended:
                messages.end()
                call.ended = True
        except AbortedError as error:
            self._give_up(call, error.code, error.details)
            return
        self._count(call)
        if self._load.held_bytes > max(MOST_HELD_BYTES, 2 * self._rules.max_message_bytes):
            self._load.warn("%d bytes wait in gRPC calls: one with more is refused", self._load.held_bytes)
            self._give_up(call, Code.RESOURCE_EXHAUSTED, "too much waits to be dealt with")
            return
        call.unacknowledged += len(data)
        if messages.queued_bytes <= QUEUE_BYTES:
            self._acknowledge(call)
        if messages.whole or ended:
            call.wake()

    def reset(self, stream: int) -> None:
        task = self._forget(stream)
        if task is not None:
            task.cancel()

    def sent(self, stream: int) -> None:
        call = self._calls.get(stream)
        if call is not None:
            call.wake()

    # Of call.Carrier

    def send(self, call: Call, message: bytes) -> bool:
        if not call.replied:
            call.replied = True
            self._http2.send_headers(call.stream, _HEAD)
        done = self._http2.send_data(call.stream, framed(message))
        self._flush()
        return done and self._writable.is_set()

    async def room(self, call: Call) -> None:
        while self._http2.waits(call.stream):
            await call.wait()
        await self._writable.wait()

    def took(self, call: Call) -> None:
        self._count(call)
        if call.unacknowledged and call.messages.queued_bytes <= QUEUE_BYTES:
            self._acknowledge(call)
            self._flush()

    # Its own

    async def _run(self, handler: Handler, call: Call) -> None:
        try:
            await handler(call)
        except AbortedError as error:
            self._end(call, error.code, error.details)
        except asyncio.CancelledError:
            if self._forget(call.stream) is not None:
                self._http2.send_reset(call.stream, framing.CANCEL)
                self._flush()
            raise
        except Exception as error:
            log_bug(log, "bug in a gRPC handler", error)
            self._end(call, Code.UNKNOWN, "internal error")
        else:
            self._end(call, Code.OK, "")

    def _give_up(self, call: Call, code: Code, details: str) -> None:
        task = self._tasks.get(call.stream)
        self._end(call, code, details)
        if task is not None:
            task.cancel()

    def _end(self, call: Call, code: Code, details: str) -> None:
        if self._forget(call.stream) is None:
            return
        block = trailers(code, details)
        self._http2.send_end(call.stream, block if call.replied else _HEAD + block)
        self._flush()

    def _forget(self, stream: int) -> asyncio.Task[None] | None:
        """The task of a call that is over; None: it has been over before."""
        call = self._calls.pop(stream, None)
        if call is not None:
            self._load.streams -= 1
            self._load.held_bytes -= call.counted
            call.counted = 0
        return self._tasks.pop(stream, None)

    def _count(self, call: Call) -> None:
        """Bring up to date what is held for a call."""
        held = call.messages.held_bytes + call.kept if call.stream in self._calls else 0
        self._load.held_bytes += held - call.counted
        call.counted = held

    def _cancel_all(self) -> None:
        for stream in list(self._tasks):
            task = self._forget(stream)  # one that has not begun is not told that it is cancelled
            if task is not None:
                task.cancel()

    def _acknowledge(self, call: Call) -> None:
        self._http2.acknowledge(call.stream, call.unacknowledged)
        call.unacknowledged = 0

    def _flush(self) -> None:
        if self._receiving:
            return  # once, at the end of it
        data = self._http2.take()
        if not data or self._transport.is_closing():
            return
        self._transport.write(data)
        if not self._writable.is_set() and self._transport.get_write_buffer_size() > UNSENT_BYTES:
            self._load.warn("a gRPC client does not read what it asked for: its connection is closed")
            self._transport.abort()

    def _close_if_not_begun(self) -> None:
        if not self._http2.begun:
            self._load.warn("a gRPC client says nothing, or not what it should: its connection is closed")
            self._transport.abort()

    def _ping_if_silent(self) -> None:
        self._http2.calm()
        after_s, then = self._rules.ping_after_s, self._ping_if_silent
        if not self._heard:
            self._http2.send_ping()
            self._flush()
            after_s, then = self._rules.ping_timeout_s, self._close_if_silent
        self._heard = False
        self._keepalive = self._loop.call_later(after_s, then)

    def _close_if_silent(self) -> None:
        if self._heard:
            self._ping_if_silent()
        else:
            log.info("a gRPC client has fallen silent: its connection is closed")
            self._transport.abort()
