"""What a rude peer of the gRPC port can make us hold, compute and write down."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from hpack import Encoder

from extproc.rpc import framing, http2, session
from extproc.rpc.call import Call
from extproc.rpc.framing import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    HEADERS,
    PING,
    PRIORITY,
    RST_STREAM,
    ProtocolError,
    frame,
)
from extproc.rpc.messages import framed
from tests.rpc.test_calls import channel, echo, rude, serving
from tests.rpc.wire import PATH, REQUEST, SETTINGS, connection, frames, open_stream
from tests.support.waiting import eventually

CALM = framing.ENHANCE_YOUR_CALM
RESET = struct.pack(">I", framing.CANCEL)


def opened_and_reset(number: int) -> bytes:
    stream = 2 * number + 1
    return open_stream(stream) + frame(RST_STREAM, 0, stream, RESET)


FLOODS: dict[str, Callable[[int], bytes]] = {
    "rapid reset": opened_and_reset,
    "pings": lambda _: frame(PING, 0, 0, b"12345678"),
    "acknowledged pings": lambda _: frame(PING, framing.ACK, 0, b"12345678"),
    "priorities": lambda _: frame(PRIORITY, 0, 1, b"\0\0\0\0\x10"),
    "empty data": lambda number: (open_stream(1) if not number else b"") + frame(DATA, 0, 1),
    "unknown frames": lambda _: frame(0x20, 0, 0, b""),
    "empty continuations": lambda number: (
        (frame(HEADERS, 0, 1, REQUEST) if not number else b"") + frame(CONTINUATION, 0, 1)
    ),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_frames_to_no_purpose_end_the_connection(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MOST_IDLE_FRAMES", 50)
    made, _ = connection()
    made.receive(b"".join(FLOODS[kind](number) for number in range(50)))
    with pytest.raises(ProtocolError) as error:
        made.receive(b"".join(FLOODS[kind](number) for number in range(50, 60)))
    assert error.value.code == CALM


@pytest.mark.parametrize("kind", ["rapid reset", "pings"])
def test_the_same_frames_over_a_long_time_are_none_of_a_flood(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case g02: an Envoy that pings every 10 s does so for months."""
    monkeypatch.setattr(http2, "MOST_IDLE_FRAMES", 50)
    made, _ = connection()
    for number in range(500):
        made.receive(FLOODS[kind](number))
        if number % 40 == 0:
            made.calm()


def test_what_envoy_does_all_day_is_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case a14: it resets nearly every stream, some time after it has opened it."""
    monkeypatch.setattr(http2, "MOST_IDLE_FRAMES", 50)
    made, _ = connection()
    for number in range(500):
        stream = 2 * number + 1
        made.receive(open_stream(stream) + frame(DATA, 0, stream, b"message"))
        made.receive(frame(RST_STREAM, 0, stream, RESET))
        made.take()
    assert made.open_streams == 0


def test_settings_cost_what_they_weigh_however_many_streams_are_open() -> None:
    """One frame holds 2,730 of them, and each would be applied to each stream."""
    made, _ = connection()
    for number in range(1000):
        made.receive(open_stream(2 * number + 1))
    many = frame(framing.SETTINGS, 0, 0, b"".join(struct.pack(">HI", 4, 65_536 + n) for n in range(2730)))
    touched = 0

    class Counting(dict[int, object]):
        def values(self) -> object:  # type: ignore[override]
            nonlocal touched
            touched += 1
            return super().values()

    made._open = Counting(made._open)  # type: ignore[assignment]
    made.receive(many)
    assert touched == 1
    made.receive(SETTINGS * (http2.MOST_SETTINGS - 2))
    with pytest.raises(ProtocolError) as error:
        made.receive(SETTINGS)
    assert error.value.code == CALM


def test_headers_that_go_on_without_end_are_cut_off() -> None:
    """The CONTINUATION flood."""
    made, _ = connection()
    made.receive(frame(HEADERS, 0, 1, REQUEST))
    with pytest.raises(ProtocolError) as error:
        made.receive(frame(CONTINUATION, 0, 1, b"x" * 16_000) * 5)
    assert error.value.code == CALM


def test_headers_that_unpack_to_more_than_they_weigh_are_cut_off() -> None:
    """An HPACK bomb: one long header is put into the table, and then named again and again, a byte each time."""
    made, _ = connection()
    block = Encoder().encode([("x-long", "y" * 3900)])
    bomb = block + bytes([0x80 | 62]) * 12_000  # index 62: the newest of the table
    assert len(bomb) < 16_384
    with pytest.raises(ProtocolError) as error:
        made.receive(frame(HEADERS, END_HEADERS, 1, bomb))
    assert error.value.code == framing.COMPRESSION_ERROR


def test_many_small_headers_are_cut_off_too() -> None:
    made, _ = connection()
    with pytest.raises(ProtocolError) as error:
        made.receive(frame(HEADERS, END_HEADERS, 1, b"\x82" * 16_000))  # `:method: GET`
    assert error.value.code == framing.COMPRESSION_ERROR


def test_a_connection_has_a_last_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2, "MAX_STREAMS", 10)
    made, recorder = connection()
    for number in range(12):
        made.receive(open_stream(2 * number + 1))
    assert (made.open_streams, len(recorder.told)) == (10, 10)
    refused = [(stream, payload) for kind, _, stream, payload in frames(made.take()) if kind == RST_STREAM]
    assert refused == [(stream, struct.pack(">I", framing.REFUSED_STREAM)) for stream in (21, 23)]
    made.receive(frame(RST_STREAM, 0, 1, RESET) + open_stream(25))
    assert made.open_streams == 10


async def waits(call: Call) -> None:
    async for _ in call:
        pass


async def test_more_calls_than_can_be_held_are_refused_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_STREAMS", 20)
    async with serving(waits) as (server, port), rude(port) as flood, rude(port) as other:
        flood.writer.write(b"".join(open_stream(2 * number + 1) for number in range(30)))
        await eventually(lambda: server._load.streams == 20, "20 are open")
        flood.writer.close()
        await eventually(lambda: server._load.streams == 0, "they have left with their connection")
        other.writer.write(open_stream(1))
        await eventually(lambda: server._load.streams == 1, "there is room again")


async def test_calls_that_are_reset_before_they_begin_leave_no_count() -> None:
    async with serving(waits) as (server, port), rude(port) as client:
        client.writer.write(b"".join(opened_and_reset(number) for number in range(200)) + open_stream(1001))
        await eventually(lambda: server._load.streams == 1, "only the last is open")
        client.writer.write(frame(DATA, 0, 1001, framed(b"x" * 1000)))
        client.writer.write(frame(DATA, 0, 9999, b""))  # ends the connection
        await client.until_closed()
        await eventually(lambda: (server._load.streams, server._load.held_bytes) == (0, 0), "nothing is held")


async def test_bodies_that_never_end_are_refused_when_too_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is within the limit of a message, and each stream within its window: it is their number."""
    monkeypatch.setattr(session, "MOST_HELD_BYTES", 1 << 20)
    begun = b"\0" + (1 << 19).to_bytes(4) + b"b" * 16_000  # the rest never comes
    async with serving(waits, limit=1 << 19) as (server, port), rude(port) as flood:
        for number in range(100):
            flood.writer.write(open_stream(2 * number + 1) + frame(DATA, 0, 2 * number + 1, begun))
        await flood.writer.drain()
        await eventually(lambda: server._load.streams < 100 and server._load.held_bytes > 1_000_000, "some are refused")
        assert server._load.held_bytes <= (1 << 20)
        async with channel(port) as client:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await client.unary_unary(PATH.decode())(b"x" * 100_000)
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        flood.writer.close()
        await eventually(lambda: server._load.held_bytes == 0, "nothing is held")


async def test_what_a_handler_keeps_counts_as_held() -> None:
    kept = asyncio.Event()

    async def keeps(call: Call) -> None:
        message = await call.read()
        assert isinstance(message, bytes)
        call.keep(len(message))
        kept.set()
        await call.read()

    async with serving(keeps) as (server, port), rude(port) as client:
        client.writer.write(open_stream(1) + frame(DATA, 0, 1, framed(b"x" * 1000)))
        await asyncio.wait_for(kept.wait(), 10)
        assert server._load.held_bytes == 1000
        client.writer.write(frame(RST_STREAM, 0, 1, RESET))
        await eventually(lambda: server._load.held_bytes == 0, "it has ended")


@asynccontextmanager
async def dialled(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("said", [b"", framing.PREFACE[:10], framing.PREFACE], ids=["nothing", "half", "no settings"])
async def test_who_does_not_introduce_himself_is_let_go(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow loris."""
    monkeypatch.setattr(session, "BEGIN_S", 0.2)
    async with serving(echo) as (server, port), dialled(port) as (reader, writer), channel(port) as client:
        writer.write(said)
        assert await client.unary_unary(PATH.decode())(b"others go on") == b"others go on"
        await asyncio.wait_for(reader.read(-1), 10)
        await eventually(lambda: len(server._load.sessions) == 1, "only the other is left")
        assert await client.unary_unary(PATH.decode())(b"still") == b"still"


async def test_more_connections_than_can_be_held_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_CONNECTIONS", 2)
    async with serving(echo) as (server, port), rude(port), rude(port):
        await eventually(lambda: len(server._load.sessions) == 2, "two are here")
        async with dialled(port) as (reader, _):
            assert await asyncio.wait_for(reader.read(-1), 10) == b""


async def test_a_peer_that_breaks_the_protocol_again_and_again_fills_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(echo) as (_, port):
        for _ in range(20):
            async with rude(port) as client:
                client.writer.write(frame(DATA, 0, 9, b"x"))
                await client.until_closed()
    told = [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("extproc")]
    assert len(told) == 1
