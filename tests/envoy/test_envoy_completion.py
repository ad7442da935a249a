"""Is a request counted on the server that runs it, from its pick to its end, however it ends?"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.support import envoy_config, envoy_upstream
from tests.support.envoy_stack import BODY, Stack, eventually
from tests.support.envoy_upstream import Held

SHAPES = pytest.mark.parametrize("shape", envoy_config.SHAPES)
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    % (len(BODY), BODY)
)


def _hold(stack: Stack, *, head_first: bool, ending: str = "end") -> Held:
    held = Held(head_first=head_first, ending=ending)
    for upstream in stack.upstreams:
        upstream.respond = held
    return held


async def _counted_while_scrapes_pass(stack: Stack, port: int, *, scrapes: int = 3) -> None:
    """Exactly one request in flight, on `port`, while that server's page is read again and again."""
    samples = []
    while len(samples) < scrapes:
        status = await stack.status()
        counted = {int(e["address"].rpartition(":")[2]): e["in_flight"] for e in status["pools"]["vllm"]["endpoints"]}
        assert counted == {upstream.port: int(upstream.port == port) for upstream in stack.upstreams}
        assert status["requests"]["in_flight"] == 1
        taken = stack.app.router.pools[0].members[0].sample
        if not samples or samples[-1] is not taken:
            samples.append(taken)
        await asyncio.sleep(0.01)


async def _outcome(stack: Stack, wanted: str, count: int = 1) -> None:
    before_and_now: list[dict[str, int]] = []

    async def told() -> bool:
        before_and_now[:] = [await stack.outcomes()]
        return before_and_now[0].get(wanted, 0) == count

    try:
        await eventually(told, f"{count} requests told as {wanted}")
    except AssertionError as error:
        raise AssertionError(f"{error}; outcomes: {before_and_now}") from None


@SHAPES
@pytest.mark.parametrize("head_first", [True, False], ids=["streaming", "before its first byte"])
async def test_a_request_is_in_flight_until_its_response_ends(start: Any, shape: str, head_first: bool) -> None:
    """Section "Completion": in A and B our stream is held to the response's end (response trailers SEND) on every
    version; in C it is closed early, and the access log tells the end. Case f01: nothing is cut."""
    stack: Stack = await start(shape=shape)
    await stack.until_access_log_is_connected()
    held = _hold(stack, head_first=head_first)
    request = asyncio.create_task(stack.request())
    await eventually(lambda: held.waiting == 1, "the request runs")
    port = next(u.port for u in stack.upstreams if u.open)
    await _counted_while_scrapes_pass(stack, port)
    assert (await stack.status())["streams"]["open"] == (0 if shape == "C" else 1)
    held.release()
    assert (await request).status == 200
    await stack.nothing_in_flight()
    await _outcome(stack, "ok", 2)


async def test_full_duplex_both_ways_stays_to_the_end(start: Any) -> None:
    """The response passes through, piece by piece, and the access log being there changes nothing."""
    stack: Stack = await start(shape="C", change=envoy_config.full_duplex_both_ways)
    await stack.until_access_log_is_connected()
    held = _hold(stack, head_first=True)
    async with stack.client.post(stack.url + "/v1/chat/completions", data=BODY) as response:
        assert await response.content.readany() == b"data: first\n\n"
        assert await stack.in_flight() == 1
        assert (await stack.status())["streams"]["open"] == 1
        held.release()
        assert await response.content.read() == b"data: [DONE]\n\n"
    await stack.nothing_in_flight()


@SHAPES
@pytest.mark.parametrize("first", ["refuses", "answers 503"])
async def test_a_retry_moves_the_charge_while_the_request_still_runs(start: Any, shape: str, first: str) -> None:
    """Cases b05, b06: the second host named serves, and is the one that the request counts on."""
    stack: Stack = await start(shape=shape, profile="least-loaded")
    await stack.until_access_log_is_connected()
    bad = stack.only(0)
    await stack.until_waiting_is_known()
    held = _hold(stack, head_first=False)
    if first == "refuses":
        await bad.stop()
    else:
        bad.respond = envoy_upstream.status(503)
    request = asyncio.create_task(stack.request())
    await eventually(lambda: held.waiting == 1, "another server runs the request")
    serving = stack.upstreams[1]
    assert serving.open == 1

    async def moved() -> bool:
        return await stack.in_flight_by_port() == {bad.port: 0, serving.port: 1, stack.upstreams[2].port: 0}

    await eventually(moved, "the charge is on the server that runs the request")
    assert not request.done()
    held.release()
    assert (await request).port == serving.port
    await stack.nothing_in_flight()
    await _outcome(stack, "ok", 2)
    status = await stack.status()
    assert status["requests"]["moved"] == 1
    recent = status["recent"][0]
    assert (recent["picked"], recent["on"], recent["attempts"]) == (bad.address, serving.address, 2)
    assert recent["served"] == serving.address


@SHAPES
async def test_a_pool_of_one_is_tried_again(start: Any, shape: str) -> None:
    """Case b05: a single server that is full once and then serves."""
    stack: Stack = await start(shape=shape, servers=1)
    tries = 0

    async def full_once(request: Any, body: bytes) -> Any:
        nonlocal tries
        tries += 1
        return await (envoy_upstream.status(503) if tries == 1 else envoy_upstream.answer)(request, body)

    stack.upstreams[0].respond = full_once
    assert (await stack.request()).status == 200
    assert tries == 2
    await stack.nothing_in_flight()


@SHAPES
@pytest.mark.parametrize("head_first", [True, False], ids=["in the stream", "before the response"])
async def test_a_client_that_leaves_ends_the_charge(start: Any, shape: str, head_first: bool) -> None:
    """Case a14: told as cancelled, which says nothing against the server."""
    stack: Stack = await start(shape=shape)
    await stack.until_access_log_is_connected()
    held = _hold(stack, head_first=head_first)
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(REQUEST)
    await eventually(lambda: held.waiting == 1, "the request runs")
    if head_first:
        assert await reader.readuntil(b"first\n\n")
    assert await stack.in_flight() == 1
    writer.close()
    await stack.nothing_in_flight()
    await _outcome(stack, "cancelled")
    assert all(endpoint["state"] == "ready" for endpoint in (await stack.status())["pools"]["vllm"]["endpoints"])


@SHAPES
async def test_a_client_that_leaves_before_its_body_is_whole_counts_nowhere(start: Any, shape: str) -> None:
    stack: Stack = await start(shape=shape)
    _, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(REQUEST[:-10])
    await writer.drain()

    async def arrived() -> bool:
        return (await stack.stats()).get("http.inference.downstream_rq_total", 0) == 1

    await eventually(arrived, "Envoy has the head of the request")
    writer.close()
    await stack.nothing_in_flight()
    assert await stack.picks() == 0
    assert stack.seen() == []


@SHAPES
async def test_a_server_that_breaks_its_stream_is_told_as_failed(start: Any, shape: str) -> None:
    """Never retried after the first byte (case b05)."""
    stack: Stack = await start(shape=shape)
    await stack.until_access_log_is_connected()
    seen = len(stack.seen())
    held = _hold(stack, head_first=True, ending="reset")
    async with stack.client.post(stack.url + "/v1/chat/completions", data=BODY) as response:
        assert await response.content.readany() == b"data: first\n\n"
        held.release()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.content.read()
    await stack.nothing_in_flight()
    await _outcome(stack, "failed")
    assert len(stack.seen()) == seen + 1


@SHAPES
async def test_each_end_has_its_class(start: Any, shape: str) -> None:
    """4xx are the client's and 503 and 429 mean full; only other 5xx and broken connections are failures (case e15)."""
    stack: Stack = await start(shape=shape)
    wanted: dict[str, int] = {}
    for respond, code, outcome in (
        (envoy_upstream.answer, 200, "ok"),
        (envoy_upstream.status(400), 400, "ok"),
        (envoy_upstream.status(429), 429, "backpressure"),
        (envoy_upstream.status(503), 503, "backpressure"),
        (envoy_upstream.status(500), 500, "failed"),
        (envoy_upstream.reset, 503, "failed"),
    ):
        for upstream in stack.upstreams:
            upstream.respond = respond
        answer = await stack.request()
        assert answer.status == code
        assert answer.headers["content-type"].startswith("application/json")
        wanted[outcome] = wanted.get(outcome, 0) + 1
        await _outcome(stack, outcome, wanted[outcome])
    assert await stack.outcomes() == wanted
    await stack.nothing_in_flight()


@SHAPES
async def test_all_servers_dead_is_a_quick_503_in_openai_shape(start: Any, shape: str) -> None:
    """Not a hang. Then they come back, and so do requests."""
    stack: Stack = await start(shape=shape)
    for upstream in stack.upstreams:
        await upstream.stop()
    async with asyncio.timeout(15):
        answers = await asyncio.gather(*(stack.request() for _ in range(10)))
    for answer in answers:
        assert answer.status == 503
        assert answer.json()["error"]["type"] == "server_error"
    await stack.nothing_in_flight()
    for upstream in stack.upstreams:
        await upstream.start()

    async def served() -> bool:
        return (await stack.request()).status == 200

    await eventually(served, "requests are served again")


@SHAPES
async def test_half_the_servers_dead_is_not_noticed_by_clients(start: Any, shape: str) -> None:
    """Case b06."""
    stack: Stack = await start(shape=shape, servers=4)
    for upstream in stack.upstreams[:2]:
        await upstream.stop()
    alive = {upstream.port for upstream in stack.upstreams[2:]}
    answers = [answer for _ in range(10) for answer in await asyncio.gather(*(stack.request() for _ in range(8)))]
    assert {answer.status for answer in answers} == {200}
    assert {answer.port for answer in answers} <= alive
    await stack.nothing_in_flight()
