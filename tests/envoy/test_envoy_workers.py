"""`extproc serve` with two workers behind real Envoy: they act as one, and one that is killed loses nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from extproc.config.settings import WORKER_PORTS_APART
from tests.support import envoy_config
from tests.support.envoy_config import Json
from tests.support.envoy_stack import BODY, DESTINATION, Stack, eventually
from tests.support.envoy_upstream import Held, answer
from tests.support.worker_service import free_ports, kill

pytestmark = pytest.mark.newest_only


def two_workers(config: Json) -> None:
    first = free_ports(2)
    block = envoy_config.settings_of(config)
    block["workers"] = 2
    block["grpc"]["listen"] = f"127.0.0.1:{first}"
    envoy_config.cluster(config, "extproc")["load_assignment"]["endpoints"] = [
        {
            "lb_endpoints": [
                {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
                for port in (first, first + WORKER_PORTS_APART)
            ]
        }
    ]


async def both(stack: Stack) -> list[Json]:
    """The workers, once both are ready and Envoy holds both for healthy."""

    async def ready() -> list[Json]:
        workers: list[Json] = (await stack.status())["workers"]
        return workers if all(each["state"] == "ready" for each in workers) else []

    found: list[Json] = await eventually(ready, "both workers are ready")
    await eventually(lambda: stack.healthy("extproc", hosts=2), "Envoy holds both for healthy")
    return found


async def spread(stack: Stack) -> int:
    """Send requests until both workers have routed some. How many it were.

    Envoy tells its threads of a host that has become healthy up to a second later. Several at once: one alone goes to
    the worker that does not receive Envoy's log, which is a request, too.
    """
    sent = 0

    async def used() -> bool:
        nonlocal sent
        answers = await asyncio.gather(*(stack.request() for _ in range(20)))
        assert {each.status for each in answers} == {200}
        sent += len(answers)
        return all(each["picks"] for each in (await stack.status())["workers"])

    await eventually(used, "each worker has routed some requests")
    return sent


async def metric(stack: Stack, name: str) -> float:
    async with stack.client.get(f"http://{stack.service_admin}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


async def test_two_workers_act_as_one(start: Callable[..., Any]) -> None:
    """Envoy's requests come to both; one admin port drains for both, and its counts are those of both."""
    stack: Stack = await start(service="process", change=two_workers, concurrency=2)
    await both(stack)
    sent = await spread(stack)

    async def reported() -> bool:
        return sum(each["picks"] for each in (await stack.status())["workers"]) == sent

    await eventually(reported, "their counts are summed")

    async def logged() -> bool:
        return await metric(stack, "extproc_request_outcomes_total") == sent

    await eventually(logged, "how all ended is known, wherever Envoy's log went")

    async def told() -> bool:  # counters that are not of picks come with a worker's next report
        return all(
            [
                await metric(stack, name) == sent
                for name in ("extproc_picks_total", "extproc_streams_total", "extproc_access_log_entries_total")
            ]
        )

    await eventually(told, "each counter is the sum of both")
    assert await metric(stack, "extproc_unpicked_requests_total") == 0

    drained = stack.upstreams[0]
    url = f"http://{stack.service_admin}/v1/endpoints/{drained.address}/drain"
    async with stack.client.post(url) as response:
        assert response.status == 200

    async def drains() -> bool:
        async with stack.client.get(url) as response:
            return bool((await response.json())["phase"] == "drained")

    await eventually(drains, "it is drained")
    before = len(drained.seen)
    for _ in range(40):
        assert (await stack.request()).port != drained.port
    assert len(drained.seen) == before
    async with stack.client.delete(url) as response:
        assert response.status == 200

    async def used_again() -> bool:
        return (await stack.request()).port == drained.port

    await eventually(used_again, "it is used again")
    await stack.nothing_in_flight()


async def test_a_worker_that_is_killed_under_traffic_loses_no_request(start: Callable[..., Any]) -> None:
    """Case R1 of one of several processes: running streams go on, every new request is answered, its charges end."""
    stack: Stack = await start(service="process", change=two_workers, concurrency=2)
    workers = await both(stack)
    await stack.until_access_log_is_connected()
    await spread(stack)
    held = Held(head_first=True)
    for upstream in stack.upstreams:
        upstream.respond = held
    streams = [asyncio.create_task(_stream(stack)) for _ in range(12)]
    await eventually(lambda: held.waiting == 12, "twelve streams run")

    async def open_at_both() -> list[int]:
        opened = [each["open_streams"] for each in (await stack.status())["workers"]]
        return opened if sum(opened) == 12 and min(opened) > 0 else []

    opened = await eventually(open_at_both, "each worker holds some of their streams")
    for upstream in stack.upstreams:
        upstream.respond = answer
    killed = workers[0]["pid"]
    statuses: Counter[int] = Counter()
    stop = asyncio.Event()
    traffic = [asyncio.create_task(_traffic(stack, statuses, stop)) for _ in range(4)]
    await eventually(lambda: statuses.total() > 20, "requests flow")
    kill(killed)

    async def back() -> bool:
        found = (await stack.status())["workers"][0]
        return found["state"] == "ready" and found["pid"] not in (killed, None)

    await eventually(back, "another process is worker 0")
    await both(stack)
    since = (await stack.status())["workers"][0]["picks"]

    async def used() -> bool:
        return bool((await stack.status())["workers"][0]["picks"] > since)

    await eventually(used, "Envoy sends it requests again")
    stop.set()
    await asyncio.gather(*traffic)
    assert set(statuses) == {200}

    async def only_the_streams() -> bool:
        """Those of the killed worker may be taken for over by a sample that shows fewer running: an estimate."""
        return opened[1] <= await stack.in_flight() <= 12

    await eventually(only_the_streams, "the running streams are counted")
    held.release()
    for whole in await asyncio.gather(*streams):
        assert whole == b"data: first\n\ndata: [DONE]\n\n"
    await stack.nothing_in_flight()
    assert await metric(stack, "extproc_worker_restarts_total") == 1
    picked = await stack.request()
    assert DESTINATION in stack.by_port(picked.port).seen[-1].headers


async def _traffic(stack: Stack, statuses: Counter[int], stop: asyncio.Event) -> None:
    while not stop.is_set():
        statuses[(await stack.request()).status] += 1


async def _stream(stack: Stack) -> bytes:
    async with stack.client.post(stack.url + "/v1/chat/completions", data=BODY) as response:
        assert response.status == 200
        return await response.content.read()
