"""Does the account stay right, and do clients get answers, under load with servers failing?"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from extproc.pool import health
from tests.support import envoy_config, envoy_upstream
from tests.support.envoy_stack import BODY, Stack, eventually
from tests.support.envoy_upstream import Upstream

pytestmark = [pytest.mark.slow, pytest.mark.newest_only(always=True)]


async def _while_busy(count: int, at_once: int, work: Any) -> None:
    """`work(number)` for each number below `count`, `at_once` at a time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())


async def test_ten_thousand_requests_while_one_server_dies_and_one_breaks(start: Any) -> None:
    """Cases b06, e15. 10,000 requests, 200 at once, 8 servers; after 5,000 one is killed and one answers 500.

    Every request is answered, and clients see no error but those that the retry policy must pass on. It repeats only
    what no model can have worked on:

    * 503: at most the requests that ran on the killed server when it died, or were sent on a connection that was just
      being cut. Those that find it refusing go to the next host named.
    * 500: the broken server is out after 3 in a row, but we hear of them up to a flush (0.25 s) later, and until then
      a server that fails at once looks idle. It may get what arrives in that time, and again each time that its
      ejection (5 s, doubling) has ended. The bound is all requests of half a second, for each such time.
    """
    stack: Stack = await start(servers=8, concurrency=2)
    killed, broken = stack.upstreams[2], stack.upstreams[5]
    statuses: Counter[int] = Counter()
    ports: Counter[int] = Counter()
    answered_before_fault = 0
    loop = asyncio.get_running_loop()
    fault_at_s = 0.0
    running_there = 0

    async def request(number: int) -> None:
        nonlocal fault_at_s, answered_before_fault, running_there
        if number == 5000:
            fault_at_s, answered_before_fault = loop.time(), statuses.total()
            broken.respond = envoy_upstream.status(500)
            running_there = (await stack.in_flight_by_port())[killed.port]
            await killed.stop()
        answer = await stack.request()
        statuses[answer.status] += 1
        if answer.status == 200:
            ports[answer.port] += 1

    started_s = loop.time()
    await _while_busy(10_000, 200, request)
    ended_s = loop.time()
    assert statuses.total() == 10_000
    assert set(statuses) <= {200, 500, 503}, statuses
    # While the listener closes, requests picked at that moment still arrive: as many again.
    assert statuses[503] <= 2 * running_there, (statuses, running_there)
    rate = (10_000 - answered_before_fault) / (ended_s - fault_at_s)
    returns = 1 + int((ended_s - fault_at_s) / health.EJECT_S)
    assert statuses[500] <= 0.5 * rate * returns, (statuses, rate, returns)
    assert statuses[500] >= 3
    alive = [ports[u.port] for u in stack.upstreams if u not in (killed, broken)]
    assert max(alive) < 1.5 * min(alive), f"the load is spread: {ports}, {ended_s - started_s:.1f} s"
    await stack.nothing_in_flight()
    assert await stack.picks() == 10_000


@pytest.mark.parametrize("shape", ["A", "C"])
async def test_a_thousand_clients_that_leave_at_any_moment(start: Any, shape: str) -> None:
    """Case a14: while sending, while waiting, while reading. In-flight ends at zero, and nothing else is disturbed."""
    stack: Stack = await start(shape=shape, servers=4, concurrency=2)
    await stack.until_access_log_is_connected()
    draw = random.Random(7)

    async def slow(request: Any, _body: bytes) -> Any:
        response = envoy_upstream.web.StreamResponse()
        await asyncio.sleep(0.01)
        await response.prepare(request)
        for _ in range(10):
            await asyncio.sleep(0.005)
            await response.write(b"data: x\n\n")
        return response

    for upstream in stack.upstreams:
        upstream.respond = slow
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY)

    async def leave(_number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
        data = head + BODY
        writer.write(data if draw.random() < 0.9 else data[: draw.randrange(len(data))])
        try:
            await asyncio.wait_for(reader.read(10**6), draw.uniform(0, 0.08))
            await asyncio.wait_for(reader.read(10**6), draw.uniform(0, 0.05))
        except TimeoutError:
            pass
        if draw.random() < 0.5:
            writer.transport.abort()
        writer.close()

    await _while_busy(1000, 50, leave)
    await stack.nothing_in_flight()
    assert all(e["state"] == "ready" for e in (await stack.status())["pools"]["vllm"]["endpoints"])
    assert (await stack.status())["streams"]["errors"] == 0
    assert (await stack.request()).status == 200


async def test_full_duplex_responses_through_the_service_arrive_whole(start: Any) -> None:
    """2,000 requests, 100 at once, to servers that answer at once: what ending the stream early would lose."""
    stack: Stack = await start(
        shape="C", servers=4, service="process", change=envoy_config.full_duplex_both_ways, concurrency=2
    )
    whole = 0

    async def request(_number: int) -> None:
        nonlocal whole
        answer = await stack.request()
        whole += answer.status == 200 and answer.json()["size"] == len(BODY)

    await _while_busy(2000, 100, request)
    assert whole == 2000
    await stack.nothing_in_flight()


async def test_streams_outlive_every_default_timeout(start: Any) -> None:
    """Case a28: the default route timeout is 15 s. First bytes after 8 s and ends after 17 s pass, in each shape."""
    stacks: list[Stack] = [await start(shape=shape, servers=1) for shape in "ABC"]
    late, long = envoy_upstream.Held(head_first=False), envoy_upstream.Held(head_first=True)

    async def by_path(request: Any, body: bytes) -> Any:
        return await (late if request.path == "/late" else long)(request, body)

    def servers() -> list[Upstream]:
        return [upstream for stack in stacks for upstream in stack.upstreams]

    for upstream in servers():
        upstream.respond = by_path
    requests = [asyncio.create_task(stack.request(path=path)) for stack in stacks for path in ("/late", "/long")]
    await eventually(lambda: (late.waiting, long.waiting) == (3, 3), "all six run")
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    await eventually(lambda: loop.time() > begun_s + 17, "17 s have passed", timeout_s=30)
    assert not any(request.done() for request in requests)
    late.release()
    long.release()
    assert [(await request).status for request in requests] == [200] * 6
    for stack in stacks:
        await stack.nothing_in_flight()
