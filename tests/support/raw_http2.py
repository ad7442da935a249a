"""An HTTP/2 client made of bytes: it pings as it likes, and can fall silent as a dead machine does."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
_ACK, _END_HEADERS = 0x1, 0x4
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _literal(name: str, value: str) -> bytes:
    """One header field of HPACK: literal, without indexing, new name."""
    return b"\x00" + b"".join(bytes((len(text),)) + text.encode() for text in (name, value))


class RawHttp2:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def open_grpc_stream(self, path: str, message: bytes) -> None:
        fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "test")]
        fields += [("content-type", "application/grpc"), ("te", "trailers")]
        block = b"".join(_literal(name, value) for name, value in fields)
        self._writer.write(_frame(HEADERS, _END_HEADERS, 1, block))
        self._writer.write(_frame(DATA, 0, 1, b"\x00" + struct.pack(">I", len(message)) + message))

    def ping(self, number: int) -> None:
        self._writer.write(_frame(PING, 0, 0, struct.pack(">Q", number)))

    async def next_frame(self) -> tuple[int, int, bytes]:
        """Kind, flags and payload; kind GOAWAY also when the connection was closed."""
        try:
            head = await asyncio.wait_for(self._reader.readexactly(9), 10)
            payload = await asyncio.wait_for(self._reader.readexactly(int.from_bytes(head[:3])), 10)
        except (asyncio.IncompleteReadError, ConnectionError):
            return GOAWAY, 0, b"closed"
        return head[3], head[4], payload

    async def until_pong(self, number: int) -> None:
        """Read to the answer to a ping. Raises AssertionError for a GOAWAY before it."""
        while True:
            kind, flags, payload = await self.next_frame()
            assert kind != GOAWAY, f"the server ends the connection: {payload!r}"
            if kind == PING and flags & _ACK and payload == struct.pack(">Q", number):
                return
            if kind in (SETTINGS, PING) and not flags & _ACK:
                self._writer.write(_frame(kind, _ACK, 0, payload if kind == PING else b""))


@asynccontextmanager
async def connect(host_port: str) -> AsyncIterator[RawHttp2]:
    host, _, port = host_port.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(_PREFACE + _frame(SETTINGS, 0, 0, b""))
        yield RawHttp2(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass  # the server was first
