"""HTTP/2 by hand, where a test needs what no client library offers: request trailers, resets by the thousand.

Frames are of RFC 9113; headers are literals without indexing and without Huffman coding (RFC 7541, 6.2.2), which any
server reads. Answers' header blocks are not decoded, but for `:status` 200, which is one byte of the static table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
CANCEL = (8).to_bytes(4, "big")
_FRAME_BYTES = 16_384
_WINDOW = 65_535  # what a peer may send before it hears a WINDOW_UPDATE, unless settings say more
_STATUS_200 = 0x88  # indexed field 8 of the static table


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def header_block(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"\x00" + _length(name) + name + _length(value) + value for name, value in headers)


def _length(text: bytes) -> bytes:
    if len(text) < 127:
        return bytes([len(text)])
    rest = len(text) - 127
    assert rest < 128 * 128
    return bytes([127]) + (bytes([rest]) if rest < 128 else bytes([rest % 128 | 128, rest // 128]))


class Connection:
    """One client connection. Its receive window is as good as endless; its send window is respected."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.send_window = _WINDOW  # of the connection
        self.stream_window = _WINDOW  # of each new stream

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        self = cls(*await asyncio.open_connection(host, port))
        endless = (2**31 - 1 - _WINDOW).to_bytes(4, "big")
        initial_window = b"\x00\x04" + (2**31 - 1).to_bytes(4, "big")
        self.writer.write(PREFACE + frame(SETTINGS, 0, 0, initial_window) + frame(WINDOW_UPDATE, 0, 0, endless))
        return self

    async def receive(self) -> tuple[int, int, int, bytes]:
        """The next frame that is about a stream: kind, flags, stream, payload. Answers what is about the connection.

        Raises:
            ConnectionError: the peer said GOAWAY or closed.
        """
        while True:
            try:
                head = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            except asyncio.IncompleteReadError as error:
                raise ConnectionError("the peer closed the connection") from error
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:9], "big")
            if kind == SETTINGS:
                if not flags & ACK:
                    for i in range(0, len(payload), 6):
                        if payload[i : i + 2] == b"\x00\x04":
                            self.stream_window = int.from_bytes(payload[i + 2 : i + 6], "big")
                    self.writer.write(frame(SETTINGS, ACK, 0))
            elif kind == PING:
                if not flags & ACK:
                    self.writer.write(frame(PING, ACK, 0, payload))
            elif kind == GOAWAY:
                raise ConnectionError(f"the peer went away: {payload!r}")
            elif kind == WINDOW_UPDATE and stream == 0:
                self.send_window += int.from_bytes(payload, "big")
                return kind, flags, stream, payload
            else:
                return kind, flags, stream, payload

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


async def request_with_trailers(port: int, path: str, body: bytes) -> tuple[int, bytes]:
    """POST with a trailer; the status (200, or 0 for any other) and the body of the answer."""
    connection = await Connection.open("127.0.0.1", port)
    try:
        async with asyncio.timeout(20):
            head = [(b":method", b"POST"), (b":path", path.encode()), (b":scheme", b"http"), (b":authority", b"x")]
            head.append((b"content-type", b"application/json"))
            connection.writer.write(frame(HEADERS, END_HEADERS, 1, header_block(head)))
            window, sent = connection.stream_window, 0
            status, received = 0, b""
            while True:
                while sent < len(body):
                    size = min(_FRAME_BYTES, len(body) - sent, window, connection.send_window)
                    if size <= 0:
                        break
                    connection.writer.write(frame(DATA, 0, 1, body[sent : sent + size]))
                    window, sent = window - size, sent + size
                    connection.send_window -= size
                    if sent == len(body):
                        end = header_block([(b"x-checksum", b"abc")])
                        connection.writer.write(frame(HEADERS, END_HEADERS | END_STREAM, 1, end))
                before = connection.stream_window
                kind, flags, stream, payload = await connection.receive()
                window += connection.stream_window - before
                if kind == WINDOW_UPDATE and stream == 1:
                    window += int.from_bytes(payload, "big")
                elif kind == HEADERS and not status:
                    status = 200 if _STATUS_200 in payload[:4] else 0
                elif kind == DATA:
                    received += payload
                elif kind == RST_STREAM:
                    raise ConnectionError(f"stream reset: {payload!r}, received {received!r}")
                if kind in (HEADERS, DATA) and flags & END_STREAM:
                    return status, received
    finally:
        await connection.close()


async def reset_streams(host: str, port: int, path: str, message: bytes, *, count: int, at_once: int) -> int:
    """Open `count` gRPC streams, send `message` on each, and reset each after its first answer. Returns answers seen.

    One stream after the other is begun as soon as fewer than `at_once` are open.
    """
    connection = await Connection.open(host, port)
    head = header_block(
        [
            (b":method", b"POST"),
            (b":path", path.encode()),
            (b":scheme", b"http"),
            (b":authority", b"x"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
    )
    payload = b"\x00" + len(message).to_bytes(4, "big") + message
    assert len(payload) < _FRAME_BYTES
    opened = answered = 0
    open_streams: set[int] = set()
    try:
        while answered < count:
            out = []
            while opened < count and len(open_streams) < at_once and connection.send_window >= len(payload):
                stream = 2 * opened + 1
                out.append(frame(HEADERS, END_HEADERS, stream, head) + frame(DATA, 0, stream, payload))
                connection.send_window -= len(payload)
                open_streams.add(stream)
                opened += 1
            if out:
                connection.writer.write(b"".join(out))
                await connection.writer.drain()
            kind, _, stream, data = await connection.receive()
            if kind == RST_STREAM:
                raise ConnectionError(f"the service reset stream {stream}: {data!r}")
            if kind == DATA and stream in open_streams:
                connection.writer.write(frame(RST_STREAM, 0, stream, CANCEL))
                open_streams.discard(stream)
                answered += 1
        return answered
    finally:
        await connection.close()
