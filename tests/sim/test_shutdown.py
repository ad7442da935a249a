"""The server stops as a real vLLM was seen to stop."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest

from extproc.sim.server import SimServer
from tests.sim.conftest import BRISK, eventually

LONG = {"prompt": "x" * 100, "max_tokens": 20_000, "stream": True}
SHORT = {"prompt": "x" * 100, "max_tokens": 5}


async def open_stream(
    http: aiohttp.ClientSession, server: SimServer, body: dict[str, object]
) -> aiohttp.ClientResponse:
    """A stream that has begun."""
    response = await http.post(f"{server.url}/v1/completions", json=body)
    assert (await response.content.readline()).startswith(b"data: ")
    return response


async def test_without_a_timeout_streams_fall_silent_and_the_port_closes(http: aiohttp.ClientSession) -> None:
    server = SimServer("a", BRISK)
    await server.start()
    stream = await open_stream(http, server, LONG)
    server.terminate()
    await eventually(lambda: server.engine.next_event_at() is not None, "the engine has work it does not do")
    with pytest.raises(aiohttp.ClientConnectorError):
        async with aiohttp.ClientSession() as other:
            await other.get(f"{server.url}/health")
    # What was written before may still arrive; then there is neither a token nor an end.
    while True:
        try:
            line = await asyncio.wait_for(stream.content.readline(), 0.3)
        except TimeoutError:
            break
        assert line, "the stream ended"
    assert server.open_connections == 1
    stream.close()
    await asyncio.wait_for(server.wait_exited(), 10)


async def test_with_a_timeout_what_runs_ends_and_what_comes_gets_500_while_health_is_200(
    http: aiohttp.ClientSession,
) -> None:
    server = SimServer("a", BRISK, shutdown_timeout_s=30, exit_linger_s=0.1)
    await server.start()
    stream = await open_stream(http, server, {**LONG, "max_tokens": 300})
    server.terminate()
    async with http.post(f"{server.url}/v1/completions", json=SHORT) as response:
        assert response.status == 500
        error = (await response.json())["error"]
        assert error["message"] == "cannot schedule new futures after shutdown"
        assert error["type"] == "InternalServerError"
    for path in ("/health", "/metrics"):
        async with http.get(server.url + path) as response:
            assert response.status == 200
    assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
    await asyncio.wait_for(server.wait_exited(), 10)
    with pytest.raises(aiohttp.ClientConnectorError):
        await http.get(f"{server.url}/health")


async def test_a_queued_request_is_still_served_while_the_server_drains(http: aiohttp.ClientSession) -> None:
    server = SimServer("a", replace(BRISK, max_num_seqs=1), shutdown_timeout_s=30, exit_linger_s=0.0)
    await server.start()
    stream = await open_stream(http, server, {**LONG, "max_tokens": 200})
    queued = asyncio.ensure_future(http.post(f"{server.url}/v1/completions", json=SHORT))
    await eventually(lambda: server.engine.waiting == 1, "the second request waits")
    server.terminate()
    await stream.read()
    response = await queued
    assert response.status == 200
    assert (await response.json())["usage"]["completion_tokens"] == 5
    await asyncio.wait_for(server.wait_exited(), 10)


async def test_past_the_timeout_a_stream_ends_with_an_error_event_under_status_200(http: aiohttp.ClientSession) -> None:
    server = SimServer("a", BRISK, shutdown_timeout_s=0.2)
    await server.start()
    stream = await open_stream(http, server, LONG)
    whole = asyncio.ensure_future(http.post(f"{server.url}/v1/completions", json={**LONG, "stream": False}))
    await eventually(lambda: server.engine.running == 2, "both run")
    server.terminate()
    *_, event, done, rest = (await stream.content.read()).decode().split("\n\n")
    assert (stream.status, done, rest) == (200, "data: [DONE]", "")
    error = json.loads(event.removeprefix("data: "))["error"]
    assert error["code"] == 500
    assert error["message"].startswith("EngineCore encountered an issue.")
    failed = await whole
    assert (failed.status, (await failed.json())["error"]["code"]) == (500, 500)
    await asyncio.wait_for(server.wait_exited(), 10)


async def test_a_killed_server_resets_its_streams_and_starts_again_with_an_empty_cache(
    http: aiohttp.ClientSession,
) -> None:
    server = SimServer("a", BRISK)
    await server.start()
    stream = await open_stream(http, server, LONG)
    started_unix_s, port = server.api.started_unix_s, server.port
    await server.kill()
    with pytest.raises(aiohttp.ClientError):
        await stream.content.read()
    stream.close()
    with pytest.raises(aiohttp.ClientConnectorError):
        await http.get(f"{server.url}/health")
    assert server.open_connections == 0
    await server.start()
    assert server.port == port
    assert server.api.started_unix_s > started_unix_s
    assert server.engine.stats.prompt_tokens == 0
    async with http.post(f"{server.url}/v1/completions", json=SHORT) as response:
        usage = (await response.json())["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    await server.stop()


async def test_a_stopped_server_leaves_no_task_behind(http: aiohttp.ClientSession) -> None:
    before = asyncio.all_tasks()
    server = SimServer("a", BRISK, shutdown_timeout_s=30)
    await server.start()
    stream = await open_stream(http, server, LONG)
    server.terminate()
    await server.stop()
    await eventually(lambda: asyncio.all_tasks() <= before, "all tasks of the server have ended")
    stream.close()


async def test_an_idle_connection_is_closed_after_five_seconds(http: aiohttp.ClientSession) -> None:
    """case b11: vLLM's keep-alive timeout is uvicorn's default."""
    async with SimServer("a", BRISK) as server:
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        answered_s = loop.time()
        assert await asyncio.wait_for(reader.read(), 15) == b""
        assert loop.time() - answered_s > 4
        writer.close()
        await writer.wait_closed()
