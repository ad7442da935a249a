"""What does one HTTP/2 connection say? The server's side, sans-io: bytes in, calls of a `Streams` out, bytes to send.

RFC 9113, as far as a gRPC server needs it: no push, no priorities, no header compression of our own (the peer's is read
by `hpack`). A violation raises `ProtocolError`; whoever drives this says `send_goaway` and closes. A peer may open very
many streams: an exchange is held open as long as its request runs.

Floods. A frame that moves nothing forward costs us more than it costs to send: settings, pings, empty frames, a stream
that is opened and reset in one breath. So many of them are taken between two calls of `calm`, and one more is a
violation. Envoy sends a handful a minute.

Flow control. The connection's window is given back at once, so that no stream holds up another; a stream's when its
owner says so (`acknowledge`). What we send waits until the peer has room.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from extproc.rpc.framing import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEAD,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    NO_ERROR,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    REFUSED_STREAM,
    RST_STREAM,
    SETTING,
    SETTINGS,
    STREAM_CLOSED,
    U32,
    WINDOW_UPDATE,
    Header,
    ProtocolError,
    frame,
    unpadded,
)
from extproc.rpc.header_blocks import HeaderBlocks

MAX_FRAME_BYTES = 16_384  # the largest frame we take: the protocol's default
STREAM_WINDOW_BYTES = 1 << 20  # a body of this size comes in one go, a longer one as we take it
CONNECTION_WINDOW_BYTES = 1 << 26
MAX_HEADER_BYTES = 64 * 1024
MAX_STREAMS = 100_000  # of one connection; Envoy opens another when it needs more
MOST_IDLE_FRAMES = 10_000
MOST_SETTINGS = 100  # each is applied to every open stream
_WINDOW_MAX = (1 << 31) - 1
_DEFAULT_WINDOW = 65_535


class Streams(Protocol):
    """Who takes what comes in. Streams are told by their numbers."""

    def opened(self, stream: int, headers: list[Header], ended: bool) -> None: ...

    def data(self, stream: int, data: bytes, ended: bool) -> None: ...

    def reset(self, stream: int) -> None:
        """The peer wants no more of it."""

    def sent(self, stream: int) -> None:
        """What had to wait for room is among the bytes to send now."""


class _Stream:
    """Our end of one open stream."""

    __slots__ = ("ended", "outbound", "received", "room", "window")

    def __init__(self, window: int, *, ended: bool) -> None:
        self.window = window  # bytes that the peer takes yet
        self.ended = ended  # the peer has sent its last
        self.room = STREAM_WINDOW_BYTES  # bytes that the peer may send yet
        self.received = 0  # dealt with, and not given back to the peer yet
        self.outbound: deque[tuple[bytes, bytes]] | None = None  # data, or trailers to end with, that wait for room


class Connection:
    """One connection. Not thread-safe."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._open: dict[int, _Stream] = {}
        self._out: list[bytes] = []
        self._rest = b""
        self._started = False  # the preface was seen
        self._settled = False  # the peer's first SETTINGS were
        self._last = 0  # highest stream the peer has opened
        self._block: tuple[int, bool, bytearray] | None = None  # a header block that goes on in the next frame
        self._headers_of = HeaderBlocks(MAX_HEADER_BYTES)
        self._window = _DEFAULT_WINDOW  # bytes that the peer takes yet, over all streams
        self._peer_stream_window = _DEFAULT_WINDOW
        self._peer_frame_bytes = 16_384
        self._received = 0
        self._waiting: dict[int, None] = {}  # streams whose data wait for room, the longest waiting first
        self._idle_frames = 0  # since `calm`
        self._settings_frames = 0  # since `calm`
        self._last_before = 0  # `_last` as the bytes at hand began
        settings = SETTING.pack(MAX_CONCURRENT_STREAMS, MAX_STREAMS)
        settings += SETTING.pack(INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES)
        settings += SETTING.pack(MAX_HEADER_LIST_SIZE, MAX_HEADER_BYTES)
        self._out.append(frame(SETTINGS, 0, 0, settings))
        self._out.append(frame(WINDOW_UPDATE, 0, 0, U32.pack(CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW)))

    @property
    def open_streams(self) -> int:
        return len(self._open)

    @property
    def begun(self) -> bool:
        """Whether the peer has introduced itself."""
        return self._settled

    def calm(self) -> None:
        """Count the frames of a flood anew. To be called at regular times."""
        self._idle_frames = self._settings_frames = 0

    def take(self) -> bytes:
        """What is to be sent now."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    # What comes in

    def receive(self, data: bytes) -> None:
        """Raises ProtocolError."""
        if self._rest:
            data = self._rest + data
        self._last_before = self._last
        at, end = 0, len(data)
        if not self._started:
            if not data.startswith(PREFACE):
                if not PREFACE.startswith(data[: len(PREFACE)]):
                    raise ProtocolError(PROTOCOL_ERROR, "this is no HTTP/2")
                self._rest = data
                return
            self._started = True
            at = len(PREFACE)
        while end - at >= 9:
            high, low, kind, flags, stream = HEAD.unpack_from(data, at)
            length = high << 8 | low
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            stop = at + 9 + length
            if stop > end:
                break
            payload = data[at + 9 : stop]
            at = stop
            stream &= 0x7FFFFFFF
            if kind == DATA and self._block is None:
                self._data(flags, stream, payload)
            elif kind == HEADERS and self._block is None and self._settled:
                self._headers(flags, stream, payload)
            else:
                self._other(kind, flags, stream, payload)
        self._rest = data[at:]

    def _data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        if not size and not flags & END_STREAM:
            self._idle()
        self._received += size
        if self._received >= CONNECTION_WINDOW_BYTES >> 1:
            self._out.append(frame(WINDOW_UPDATE, 0, 0, U32.pack(self._received)))
            self._received = 0
        if flags & PADDED:
            payload = unpadded(payload)
        known = self._open.get(stream)
        if known is None:
            if stream > self._last or not stream & 1:
                raise ProtocolError(PROTOCOL_ERROR, f"data of stream {stream}, which was never opened")
            return  # sent before the peer knew that we had ended it
        if known.ended:
            raise ProtocolError(STREAM_CLOSED, f"data of stream {stream} after its end")
        known.room -= size
        if known.room < 0:
            raise ProtocolError(FLOW_CONTROL_ERROR, f"more data of stream {stream} than there was room for")
        if size != len(payload):
            self.acknowledge(stream, size - len(payload))
        known.ended = bool(flags & END_STREAM)
        self._streams.data(stream, payload, known.ended)

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise ProtocolError(FRAME_SIZE_ERROR, "headers shorter than their priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            self._block_whole(stream, bool(flags & END_STREAM), payload)
        else:
            self._block = (stream, bool(flags & END_STREAM), bytearray(payload))

    def _block_whole(self, stream: int, ended: bool, block: bytes) -> None:
        headers = self._headers_of.decode(block)
        known = self._open.get(stream)
        if known is not None:  # trailers
            if known.ended or not ended:
                raise ProtocolError(PROTOCOL_ERROR, f"headers amid stream {stream}")
            known.ended = True
            self._streams.data(stream, b"", True)
            return
        if not stream & 1 or stream <= self._last:
            if stream & 1 and ended:
                return  # trailers of a stream that we have ended
            raise ProtocolError(PROTOCOL_ERROR, f"stream {stream} cannot be opened")
        self._last = stream
        if len(self._open) >= MAX_STREAMS:
            self._idle()
            self._out.append(frame(RST_STREAM, 0, stream, U32.pack(REFUSED_STREAM)))
            return
        self._open[stream] = _Stream(self._peer_stream_window, ended=ended)
        self._streams.opened(stream, headers, ended)

    def _other(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None:
            self._continuation(kind, flags, stream, payload)
        elif kind == SETTINGS:
            self._settings(flags, stream, payload)
        elif not self._settled:
            raise ProtocolError(PROTOCOL_ERROR, "no settings at the beginning")
        elif kind == WINDOW_UPDATE:
            self._window_update(stream, payload)
        elif kind == RST_STREAM:
            if len(payload) != 4:
                raise ProtocolError(FRAME_SIZE_ERROR, "a reset without its code")
            if stream > self._last or not stream:
                raise ProtocolError(PROTOCOL_ERROR, f"reset of stream {stream}, which was never opened")
            if stream > self._last_before:
                self._idle()  # opened a moment ago
            if self._open.pop(stream, None) is not None:
                self._waiting.pop(stream, None)
                self._streams.reset(stream)
        elif kind == PING:
            if len(payload) != 8 or stream:
                raise ProtocolError(FRAME_SIZE_ERROR if not stream else PROTOCOL_ERROR, "a broken ping")
            self._idle()
            if not flags & ACK:
                self._out.append(frame(PING, ACK, 0, payload))
        elif kind == PRIORITY:
            self._idle()
            if len(payload) != 5 or not stream:
                raise ProtocolError(FRAME_SIZE_ERROR if stream else PROTOCOL_ERROR, "a broken priority")
        elif kind in (DATA, HEADERS, PUSH_PROMISE, CONTINUATION):
            raise ProtocolError(PROTOCOL_ERROR, f"a frame of kind {kind} where there can be none")
        else:  # GOAWAY: the peer opens no more streams, and closes when the last has ended. Others are passed over.
            self._idle()

    def _idle(self) -> None:
        """A frame came that moves nothing forward."""
        self._idle_frames += 1
        if self._idle_frames > MOST_IDLE_FRAMES:
            raise ProtocolError(ENHANCE_YOUR_CALM, f"over {MOST_IDLE_FRAMES} frames to no purpose")

    def _continuation(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        assert self._block is not None
        owner, ended, block = self._block
        if kind != CONTINUATION or stream != owner:
            raise ProtocolError(PROTOCOL_ERROR, "a header block is interrupted")
        if not payload and not flags & END_HEADERS:
            self._idle()
        block += payload
        if len(block) > MAX_HEADER_BYTES:
            raise ProtocolError(ENHANCE_YOUR_CALM, f"headers of over {MAX_HEADER_BYTES} bytes")
        if flags & END_HEADERS:
            self._block = None
            self._block_whole(owner, ended, bytes(block))

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ProtocolError(PROTOCOL_ERROR, "settings of a stream")
        if flags & ACK:
            if payload:
                raise ProtocolError(FRAME_SIZE_ERROR, "an acknowledgement with content")
            return
        if len(payload) % 6:
            raise ProtocolError(FRAME_SIZE_ERROR, "settings cut short")
        self._settled = True
        self._settings_frames += 1
        if self._settings_frames > MOST_SETTINGS:
            raise ProtocolError(ENHANCE_YOUR_CALM, f"over {MOST_SETTINGS} settings")
        window = self._peer_stream_window
        for number, value in SETTING.iter_unpack(payload):
            if number == INITIAL_WINDOW_SIZE:
                if value > _WINDOW_MAX:
                    raise ProtocolError(FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                window = value
            elif number == MAX_FRAME_SIZE:
                if not 16_384 <= value < 1 << 24:
                    raise ProtocolError(PROTOCOL_ERROR, f"frames of up to {value} bytes")
                self._peer_frame_bytes = value
        if window != self._peer_stream_window:
            grown, self._peer_stream_window = window - self._peer_stream_window, window
            for known in self._open.values():
                known.window += grown
                if known.window > _WINDOW_MAX:
                    raise ProtocolError(FLOW_CONTROL_ERROR, "a window beyond all bounds")
        self._out.append(frame(SETTINGS, ACK, 0))
        self._send_waiting()

    def _window_update(self, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ProtocolError(FRAME_SIZE_ERROR, "a window update without its size")
        size = U32.unpack(payload)[0] & 0x7FFFFFFF
        if stream:
            known = self._open.get(stream)
            if known is None:
                if stream > self._last:
                    raise ProtocolError(PROTOCOL_ERROR, f"a window of stream {stream}, which was never opened")
                return
            known.window += size
            grown = known.window
        else:
            had_room = self._window > 0
            self._window += size
            grown = self._window
        if not size:
            raise ProtocolError(PROTOCOL_ERROR, "a window update of nothing")
        if grown > _WINDOW_MAX:
            raise ProtocolError(FLOW_CONTROL_ERROR, "a window beyond all bounds")
        # While the connection has room, each stream that waits does so for room of its own: there may be thousands.
        if stream:
            self._send_if_waiting(stream)
        elif not had_room:
            self._send_waiting()

    # What goes out

    def acknowledge(self, stream: int, size: int) -> None:
        """So many bytes of a stream's data are dealt with: the peer may send as many more."""
        known = self._open.get(stream)
        if known is None or known.ended:
            return
        known.received += size
        if known.received > STREAM_WINDOW_BYTES >> 1:
            self._out.append(frame(WINDOW_UPDATE, 0, stream, U32.pack(known.received)))
            known.room += known.received
            known.received = 0

    def waits(self, stream: int) -> bool:
        """Whether data of the stream wait for room."""
        return stream in self._waiting

    def send_headers(self, stream: int, block: bytes) -> None:
        """`block` is encoded (see `literal`). Does nothing for a stream that has ended."""
        if stream in self._open:
            self._out.append(frame(HEADERS, END_HEADERS, stream, block))

    def send_data(self, stream: int, data: bytes) -> bool:
        """False: (a part of) it waits for room; `Streams.sent` will tell."""
        known = self._open.get(stream)
        if known is None:
            return True
        size = len(data)
        if known.outbound is None and size <= known.window and size <= self._window and size <= self._peer_frame_bytes:
            known.window -= size
            self._window -= size
            self._out.append(frame(DATA, 0, stream, data))
            return True
        if known.outbound is None:
            known.outbound = deque()
        known.outbound.append((data, b""))
        self._waiting[stream] = None
        self._send_if_waiting(stream)
        return stream not in self._waiting

    def send_end(self, stream: int, block: bytes) -> None:
        """Trailers, after all data. The stream is over; what the peer still sends of it is not looked at."""
        known = self._open.get(stream)
        if known is None:
            return
        if known.outbound is not None:
            known.outbound.append((b"", block))
            return
        self._out.append(frame(HEADERS, END_HEADERS | END_STREAM, stream, block))
        if not known.ended:  # it need not send the rest (RFC 9113, 8.1)
            self._out.append(frame(RST_STREAM, 0, stream, U32.pack(NO_ERROR)))
        del self._open[stream]

    def send_reset(self, stream: int, code: int) -> None:
        if self._open.pop(stream, None) is not None:
            self._waiting.pop(stream, None)
            self._out.append(frame(RST_STREAM, 0, stream, U32.pack(code)))

    def send_ping(self) -> None:
        self._out.append(frame(PING, 0, 0, b"extproc?"))

    def send_goaway(self, code: int = NO_ERROR, *, reason: str = "", final: bool = True) -> None:
        """Not `final`: no stream shall be opened any more, those that come all the same are served."""
        last = self._last if final else _WINDOW_MAX
        self._out.append(frame(GOAWAY, 0, 0, U32.pack(last) + U32.pack(code) + reason.encode()[:256]))

    def _send_waiting(self) -> None:
        for stream in list(self._waiting):
            if self._window <= 0:
                return
            self._send_outbound(stream)

    def _send_if_waiting(self, stream: int) -> None:
        if stream in self._waiting and self._window > 0:
            self._send_outbound(stream)

    def _send_outbound(self, stream: int) -> None:
        known = self._open[stream]
        outbound = known.outbound
        assert outbound is not None
        while outbound:
            data, trailers = outbound.popleft()
            if trailers:
                del self._waiting[stream]
                known.outbound = None
                self.send_end(stream, trailers)
                return
            at, size = 0, len(data)
            while at < size:
                room = min(known.window, self._window, self._peer_frame_bytes, size - at)
                if room <= 0:
                    outbound.appendleft((data[at:], b""))
                    return
                known.window -= room
                self._window -= room
                self._out.append(frame(DATA, 0, stream, data[at : at + room]))
                at += room
        del self._waiting[stream]
        known.outbound = None
        self._streams.sent(stream)
