"""Calls over a real connection, by grpcio as the client and by a slow or rude client made of bytes."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from extproc.rpc import framing, http2, session
from extproc.rpc.call import EOF, Call, Handler
from extproc.rpc.framing import frame
from extproc.rpc.messages import framed
from extproc.rpc.server import Server
from extproc.rpc.session import timeout_s, trailers
from extproc.rpc.status import AbortedError, Code
from tests.rpc.wire import PATH, SETTINGS, frames, open_stream
from tests.support.waiting import eventually

LIMIT = 1 << 22


@asynccontextmanager
async def serving(handler: Handler, *, limit: int = LIMIT) -> AsyncIterator[tuple[Server, int]]:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)
    port = listening.getsockname()[1]
    server = Server({PATH.decode(): handler}, [listening], max_message_bytes=limit, ping_after_s=60, ping_timeout_s=20)
    await server.start()
    try:
        yield server, port
    finally:
        await server.stop(0)


@asynccontextmanager
async def channel(port: int) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as made:
        yield made


async def echo(call: Call) -> None:
    async for message in call:
        await call.write(message)


async def test_messages_of_any_length_come_back_in_order() -> None:
    sent = [b"", b"x", b"y" * 16_384, b"z" * 70_000, b"w" * LIMIT, b"end"]
    async with serving(echo) as (_, port), channel(port) as client:
        call = client.stream_stream(PATH.decode())(iter(sent))
        assert [message async for message in call] == sent
        assert await call.code() is grpc.StatusCode.OK


async def test_many_calls_share_a_connection() -> None:
    async with serving(echo) as (_, port), channel(port) as client:
        method = client.stream_stream(PATH.decode())

        async def one(number: int) -> bool:
            sent = [str(number).encode() * 500] * 20
            return [message async for message in method(iter(sent))] == sent

        assert all(await asyncio.gather(*(one(number) for number in range(200))))


async def test_a_handlers_status_reaches_the_client() -> None:
    async def refuses(call: Call) -> None:
        raise AbortedError(Code.NOT_FOUND, "100 % Öl\n")

    async with serving(refuses) as (_, port), channel(port) as client:
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await client.unary_unary(PATH.decode())(b"")
        assert (found.value.code(), found.value.details()) == (grpc.StatusCode.NOT_FOUND, "100 % Öl\n")


async def test_a_bug_ends_its_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(call: Call) -> None:
        if await call.read() == b"bad":
            raise ZeroDivisionError
        await call.write(b"fine")

    async with serving(fails) as (_, port), channel(port) as client:
        method = client.unary_unary(PATH.decode())
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await method(b"bad")
        assert found.value.code() is grpc.StatusCode.UNKNOWN
        assert await method(b"good") == b"fine"
    assert "ZeroDivisionError" in caplog.text


async def test_a_method_that_is_not_there_is_named() -> None:
    async with serving(echo) as (_, port), channel(port) as client:
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await client.unary_unary("/p.Service/Other")(b"")
        assert found.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "/p.Service/Other" in str(found.value.details())


async def test_a_deadline_ends_the_handler() -> None:
    cancelled = asyncio.Event()

    async def waits(call: Call) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serving(waits) as (_, port), channel(port) as client:
        with pytest.raises(grpc.aio.AioRpcError) as found:
            await client.unary_unary(PATH.decode())(b"", timeout=0.2)
        assert found.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(cancelled.wait(), 10)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"2H", 7200.0), (b"3M", 180.0), (b"10S", 10.0), (b"1500m", 1.5), (b"5u", 5e-6), (b"7n", 7e-9)],
)
def test_the_length_of_a_deadline_is_read(text: bytes, seconds: float) -> None:
    assert timeout_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [None, b"", b"5", b"-1S", b"123456789S", b"5x"])
def test_a_deadline_that_cannot_be_read_is_none(text: bytes | None) -> None:
    assert timeout_s(text) is None


def test_details_go_as_printable_ascii() -> None:
    assert b"a%25b%C3%A9%0A" in trailers(Code.INTERNAL, "a%bé\n")


def test_long_details_are_cut() -> None:
    assert len(trailers(Code.NOT_FOUND, "x" * 20_000)) < 600


async def test_stopping_waits_for_open_calls_and_ends_those_that_stay() -> None:
    began, release = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def held(call: Call) -> None:
        began.set()
        name = await call.read()
        assert name is not EOF
        try:
            await (release.wait() if name == b"ends" else asyncio.sleep(60))
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("done")
        await call.write(b"bye")

    async with serving(held) as (server, port), channel(port) as client:
        method = client.unary_unary(PATH.decode())
        first = asyncio.ensure_future(method(b"ends"))
        stays = asyncio.ensure_future(method(b"stays"))
        await asyncio.wait_for(began.wait(), 10)
        stopping = asyncio.create_task(server.stop(1.0))
        await asyncio.sleep(0.05)
        release.set()
        assert await first == b"bye"
        with pytest.raises(grpc.aio.AioRpcError):
            await stays
        await stopping
        assert ended == ["done", "cancelled"]
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


class Rude:
    """A client made of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def until_closed(self) -> list[tuple[int, int, int, bytes]]:
        return frames(await asyncio.wait_for(self.reader.read(-1), 10))


@asynccontextmanager
async def rude(port: int, settings: bytes = SETTINGS) -> AsyncIterator[Rude]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(framing.PREFACE + settings)
    try:
        yield Rude(reader, writer)
    finally:
        writer.close()


async def test_a_violation_is_answered_with_its_reason_and_the_end() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def held(call: Call) -> None:
        began.set()
        try:
            await call.read()
        finally:
            ended.set()

    async with serving(held) as (_, port), rude(port) as client:
        client.writer.write(open_stream(1))
        await asyncio.wait_for(began.wait(), 10)
        client.writer.write(frame(framing.DATA, 0, 9, b"x"))
        said = await client.until_closed()
        assert [payload[4:8] for kind, _, _, payload in said if kind == framing.GOAWAY] == [b"\x00\x00\x00\x01"]
        await asyncio.wait_for(ended.wait(), 10)


async def test_what_is_no_grpc_gets_415() -> None:
    async with serving(echo) as (_, port), rude(port) as client:
        block = b"\x83\x84" + framing.literal(b"content-type", b"text/html")
        client.writer.write(frame(framing.HEADERS, framing.END_HEADERS, 1, block))
        client.writer.write(frame(framing.DATA, 0, 9, b""))  # ends the connection
        heads = [payload for kind, _, stream, payload in await client.until_closed() if kind == framing.HEADERS]
        assert heads == [framing.literal(b":status", b"415")]


async def test_a_handler_that_is_slow_to_read_slows_its_client_down() -> None:
    go, read = asyncio.Event(), 0

    async def slow(call: Call) -> None:
        nonlocal read
        await go.wait()
        async for message in call:
            read += len(message)

    async with serving(slow) as (_, port), rude(port) as client:
        client.writer.write(open_stream(1))
        message = framed(b"m" * (16_384 - 5))
        total = 4 * session.QUEUE_BYTES // 16_384
        given, sent = http2.STREAM_WINDOW_BYTES, 0

        async def more_room() -> int:
            while True:
                head = await asyncio.wait_for(client.reader.readexactly(9), 1.0)
                payload = await client.reader.readexactly(int.from_bytes(head[:3]))
                if head[3] == framing.WINDOW_UPDATE and int.from_bytes(head[5:9]) == 1:
                    return int.from_bytes(payload)

        async def send_all() -> None:
            nonlocal given, sent
            while sent < total:
                while sent < total and (sent + 1) * 16_384 <= given:
                    client.writer.write(frame(framing.DATA, 0, 1, message))
                    sent += 1
                if sent < total:
                    given += await more_room()

        with pytest.raises(TimeoutError):
            await send_all()
        assert sent * 16_384 <= session.QUEUE_BYTES + http2.STREAM_WINDOW_BYTES
        go.set()
        await send_all()
        await eventually(lambda: read == total * (16_384 - 5), "all is read")


async def test_a_client_that_does_not_read_is_waited_for_and_one_that_drives_it_on_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "UNSENT_BYTES", 1 << 18)
    monkeypatch.setattr(http2, "MOST_IDLE_FRAMES", 1 << 30)
    written = 0

    async def talks(call: Call) -> None:
        nonlocal written
        for _ in range(10_000):
            await call.write(b"x" * 10_000)
            written += 1

    big_window = frame(framing.SETTINGS, 0, 0, b"\x00\x04\x7f\xff\xff\xff")
    async with serving(talks) as (_, port), rude(port, big_window) as client:
        client.writer.write(frame(framing.WINDOW_UPDATE, 0, 0, b"\x7f\x00\x00\x00") + open_stream(1))
        last = -1
        while written != last or not written:
            last = written
            await asyncio.sleep(0.2)
        assert written < 10_000

        async def drive() -> None:
            for _ in range(1000):
                client.writer.write(frame(framing.PING, 0, 0, b"12345678") * 1000)
                await client.writer.drain()

        with pytest.raises(ConnectionError):
            await drive()
        assert written == last


def test_metadata_is_found_by_name() -> None:
    carrier: Any = None
    call = Call(carrier, 1, [(b"a", b"1"), (b"b", b"2")], 10)
    assert (call.metadata(b"b"), call.metadata(b"c")) == (b"2", None)


async def test_calls_that_were_reset_need_no_collector() -> None:
    """Envoy resets most; collecting fifty thousand objects stopped everything for tenths of a second."""
    ended = 0

    async def held(call: Call) -> None:
        nonlocal ended
        try:
            await call.read()
        finally:
            ended += 1

    async with serving(held) as (_, port), rude(port) as client:
        gc.collect()
        gc.disable()
        try:
            for number in range(50):
                client.writer.write(open_stream(2 * number + 1))
            await eventually(lambda: sum(isinstance(each, Call) for each in gc.get_objects()) == 50, "all have begun")
            for number in range(50):
                client.writer.write(frame(framing.RST_STREAM, 0, 2 * number + 1, b"\x00\x00\x00\x08"))
            await eventually(lambda: ended == 50, "all have ended")
            await asyncio.sleep(0)
            assert not [each for each in gc.get_objects() if isinstance(each, Call)]
        finally:
            gc.enable()
