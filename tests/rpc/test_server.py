"""A server among many clients, and at its end."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import ExitStack

import pytest

from extproc.rpc import framing
from extproc.rpc.call import Call
from extproc.rpc.framing import frame
from extproc.rpc.messages import framed
from tests.rpc.test_calls import echo, rude, serving
from tests.rpc.wire import open_stream
from tests.support.waiting import eventually


async def test_all_clients_may_come_at_once() -> None:
    """The system drops those for whom there is no room until they are accepted; they try again a second later."""
    async with serving(echo) as (_, port):
        with ExitStack() as clients:
            for _ in range(300):  # nothing is accepted meanwhile: the event loop waits for us
                clients.enter_context(socket.create_connection(("127.0.0.1", port), timeout=0.5))


async def test_stopping_waits_for_calls_that_were_on_their_way() -> None:
    begun: list[bytes] = []

    async def slow(call: Call) -> None:
        message = await call.read()
        assert isinstance(message, bytes)
        begun.append(message)
        await asyncio.sleep(0.2)
        await call.write(message)

    async with serving(slow) as (server, port), rude(port) as client:
        client.writer.write(open_stream(1) + frame(framing.DATA, framing.END_STREAM, 1, framed(b"first")))
        await eventually(lambda: bool(begun), "the first call runs")
        stopping = asyncio.create_task(server.stop(10))
        await asyncio.sleep(0.1)
        client.writer.write(open_stream(3) + frame(framing.DATA, framing.END_STREAM, 3, framed(b"second")))
        said = await client.until_closed()
        await stopping
        answers = [payload for kind, _, _, payload in said if kind == framing.DATA]
        assert answers == [framed(b"first"), framed(b"second")]


@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_was_just_accepted_is_closed_too(turns: int) -> None:
    async with serving(echo) as (server, port):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(5.0)
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.stop(0)
            said = await asyncio.to_thread(_until_closed, client)
            assert b"echo" not in said
    gc.collect()  # what was left open would be told now


def _until_closed(client: socket.socket) -> bytes:
    said = b""
    try:
        while data := client.recv(4096):
            said += data
    except ConnectionError:
        pass
    return said
