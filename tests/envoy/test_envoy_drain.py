"""A drain under running streams: none is cut, none is new, and its end is told as it is.

Streams are up to six seconds long here; EXTPROC_LONGEST_STREAM_S=60 makes them as long as real ones.
"""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.support import envoy_config
from tests.support.envoy_config import Json
from tests.support.envoy_stack import BODY, Stack, eventually
from tests.support.envoy_upstream import Held, Upstream

pytestmark = pytest.mark.newest_only

LONGEST_S = float(os.environ.get("EXTPROC_LONGEST_STREAM_S", "6"))
STREAMS = 50
_TOKEN_S = 0.25
_NO_LIMIT = aiohttp.ClientTimeout(total=None)
_HEADERS = {"content-type": "application/json"}


async def talk(request: web.Request, body: bytes) -> web.StreamResponse:
    """A stream of as many events as the request asks for, at an even pace."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for number in range(json.loads(body)["max_tokens"]):
        await response.write(f"data: {number}\n\n".encode())
        await asyncio.sleep(_TOKEN_S)
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


async def stream(stack: Stack, tokens: int) -> bool:
    """Whether the whole answer came."""
    body = json.dumps({"model": "m", "max_tokens": tokens, "messages": [{"role": "user", "content": f"{tokens}"}]})
    answer = await stack.client.post(f"{stack.url}/v1/chat/completions", data=body, headers=_HEADERS, timeout=_NO_LIMIT)
    async with answer:
        events = (await answer.read()).split(b"\n\n")
    return events == [*(b"data: %d" % n for n in range(tokens)), b"data: [DONE]", b""]


async def drain(stack: Stack, method: str, server: Upstream, query: str = "") -> Json:
    url = f"http://{stack.service_admin}/v1/endpoints/{server.address}/drain{query}"
    async with stack.client.request(method, url) as response:
        found: Json = await response.json()
        assert response.status == 200, found
        return found


async def held_streams(stack: Stack, count: int) -> tuple[Held, list[asyncio.Task[bytes]]]:
    """Streams on all servers that have begun, and go on until released."""
    held = Held(head_first=True)
    for upstream in stack.upstreams:
        upstream.respond = held

    async def one() -> bytes:
        return (await stack.request()).body

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    await eventually(lambda: held.waiting == count, "the streams run")
    return held, tasks


async def complete(tasks: list[asyncio.Task[bytes]]) -> bool:
    return set(await asyncio.gather(*tasks)) == {b"data: first\n\ndata: [DONE]\n\n"}


async def new_requests(stack: Stack, count: int) -> set[int]:
    """The ports of the servers that answer new requests."""
    for upstream in stack.upstreams:
        upstream.respond = _port
    return {int((await stack.request()).body) for _ in range(count)}


async def _port(request: web.Request, _body: bytes) -> web.StreamResponse:
    assert request.transport is not None
    return web.Response(text=str(request.transport.get_extra_info("sockname")[1]))


async def test_a_drain_under_fifty_streams_ends_by_itself_with_the_last_of_them(start: Any) -> None:
    stack: Stack = await start(servers=3, profile="least-loaded")
    for upstream in stack.upstreams:
        upstream.respond = talk
    most = round(LONGEST_S / _TOKEN_S)
    streams = [asyncio.create_task(stream(stack, most * (n % 12 + 1) // 12)) for n in range(STREAMS)]
    await eventually(lambda: sum(u.open for u in stack.upstreams) == STREAMS, "all streams run")
    server = max(stack.upstreams, key=lambda upstream: upstream.open)
    loop = asyncio.get_running_loop()

    begun = await drain(stack, "POST", server, f"?deadline_s={10 * LONGEST_S}")
    assert begun["phase"] == "draining"
    assert begun["blocked_by"] == "in_flight"
    assert begun["in_flight"] > 5
    before, last_open_s, others = len(server.seen), loop.time(), 0
    while True:
        answer = await drain(stack, "GET", server)
        if server.open:
            last_open_s = loop.time()
            assert answer["phase"] == "draining", f"{server.open} streams run, and it says {answer}"
        if answer["phase"] != "draining":
            break
        assert loop.time() - last_open_s < 20, f"nothing runs there any more, and it says {answer}"
        assert (await stack.request(body=BODY[:-1] + b', "max_tokens": 0}')).status == 200
        others += 1
        await asyncio.sleep(0.05)
    assert answer["phase"] == "drained"
    assert len(server.seen) == before, "a new request came after the drain had begun"
    assert others > 10
    assert await asyncio.gather(*streams) == [True] * STREAMS
    await stack.nothing_in_flight()

    assert server.port not in await new_requests(stack, 10)
    assert (await drain(stack, "DELETE", server))["state"] == "ready"
    assert server.port in await new_requests(stack, 30)


async def test_a_drain_past_its_deadline_tells_how_many_were_open_and_cuts_none(start: Any) -> None:
    stack: Stack = await start(servers=2, profile="least-loaded")
    held, streams = await held_streams(stack, 8)
    server = stack.upstreams[0]
    there = server.open
    assert 0 < there < 8
    await drain(stack, "POST", server, "?deadline_s=0.5")

    async def expired() -> Json | None:
        answer = await drain(stack, "GET", server)
        return answer if answer["phase"] != "draining" else None

    answer: Json = await eventually(expired, "the deadline passes")
    assert (answer["phase"], answer["open_at_end"], answer["in_flight"]) == ("expired", there, there)
    assert server.open == there, "a drain ends no stream"
    assert server.port not in await new_requests(stack, 10)
    held.release()
    assert await complete(streams)
    await stack.nothing_in_flight()


async def test_a_drain_that_is_cancelled_brings_the_server_back_at_once(start: Any) -> None:
    stack: Stack = await start(servers=2, profile="least-loaded")
    held, streams = await held_streams(stack, 8)
    server = stack.upstreams[0]
    there = server.open
    await drain(stack, "POST", server)
    assert server.port not in await new_requests(stack, 10)
    back = await drain(stack, "DELETE", server)
    assert (back["phase"], back["state"], back["in_flight"]) == (None, "ready", there)
    stack.upstreams[1].waiting = 20
    await stack.until_waiting_is_known()
    assert server.port in await new_requests(stack, 5)
    held.release()
    assert await complete(streams)
    await stack.nothing_in_flight()


async def test_a_drain_survives_kill_9_of_the_service(start: Any, tmp_path: Path) -> None:
    """While it is away Envoy keeps the server out (EDS); its successor goes on with the drain."""
    listed = tmp_path / "endpoints.yaml"
    servers = [await Upstream().start() for _ in range(2)]
    listed.write_text(json.dumps([server.address for server in servers]))

    def configure(config: Json) -> None:
        own = envoy_config.settings_of(config)
        own["pools"]["vllm"]["discovery"] = {"file": {"path": str(listed), "poll_s": 0.1}}
        own["drain"] = {"state_file": str(tmp_path / "drains.json")}

    try:
        stack: Stack = await start(shape="EDS", servers=(), change=configure, service="process", profile="least-loaded")
        stack.upstreams += servers
        server, other = servers
        for each in servers:
            await eventually(partial(_eds_health, stack, each, "HEALTHY"), "Envoy has the servers")
        held, streams = await held_streams(stack, 8)
        there = server.open
        assert 0 < there < 8
        begun = await drain(stack, "POST", server, "?deadline_s=60")
        assert begun["survives_restart"]
        await eventually(lambda: _eds_health(stack, server, "DRAINING"), "Envoy knows of the drain")
        await stack.process.kill()
        assert await new_requests(stack, 20) == {other.port}

        async def start_again() -> None:
            await stack.start_service()
            await stack.until_service_is_used(all_ready=False)

        starting = asyncio.create_task(start_again())
        while not starting.done():
            assert await new_requests(stack, 1) == {other.port}
            await asyncio.sleep(0.02)
        await starting
        answer = await drain(stack, "GET", server)
        assert (answer["phase"], answer["by"]) == ("draining", "operator")
        assert answer["started"] == pytest.approx(begun["started"], abs=1)
        assert 0 < answer["deadline_s"] < 60
        assert await new_requests(stack, 20) == {other.port}
        assert server.open == there
        held.release()
        assert await complete(streams)

        async def drained() -> bool:
            return bool((await drain(stack, "GET", server))["phase"] == "drained")

        await eventually(drained, "its successor sees it drained")
    finally:
        for each in servers:
            await each.stop()


async def _eds_health(stack: Stack, server: Upstream, wanted: str) -> bool:
    async with stack.client.get(f"{stack.envoy_admin}/clusters?format=json") as response:
        statuses = (await response.json(content_type=None))["cluster_statuses"]
    hosts = next(c for c in statuses if c["name"] == "vllm").get("host_statuses", ())
    return any(
        host["health_status"]["eds_health_status"] == wanted
        for host in hosts
        if host["address"]["socket_address"]["port_value"] == server.port
    )
