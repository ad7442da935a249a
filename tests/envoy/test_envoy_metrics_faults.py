"""Does routing go on whatever the servers' metrics pages do?"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from extproc.pool import health
from tests.support import envoy_config
from tests.support.envoy_stack import Stack, eventually, pause, resume
from tests.support.envoy_upstream import Held, Responder


def _page(text: str, status: int = 200) -> Responder:
    async def respond(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(status=status, text=text)

    return respond


async def _hang(_request: web.Request, _body: bytes) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def _huge(mebibytes: int) -> Responder:
    """One label of 7 MiB, then more of the same: the wanted gauges never come within the size that is read."""

    async def respond(request: web.Request, _body: bytes) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'vllm:config{text="')
        for number in range(mebibytes):
            await response.write(b"x" * 1024 * 1024 if number % 8 else b'"} 1\nvllm:config{text="')
        await response.write_eof()
        return response

    return respond


# What the service reads is no matter of Envoy's version.
pytestmark = pytest.mark.newest_only

FAULTS: dict[str, Responder] = {
    "garbage": _page("\x00\xff}{ vllm:num_requests_waiting{ NaN \n" * 50),
    "empty": _page(""),
    "HTML": _page("<html>vllm:num_requests_waiting 0</html>"),
    "other series only": _page('process_cpu_seconds_total 1\npython_info{version="3"} 1\n'),
    "renamed series": _page("vllm:requests_in_queue 0\nvllm:requests_on_gpu 0\nvllm:cache_fill 0\n"),
    "not numbers": _page(
        "vllm:num_requests_waiting NaN\nvllm:num_requests_running -1\nvllm:kv_cache_usage_perc +Inf\n"
    ),
    "404": _page("no", status=404),
    "500": _page("no", status=500),
    "hang": _hang,
    "100 MB": _huge(100),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_one_server_with_a_bad_page_is_routed_to_and_disturbs_no_other(start: Any, fault: str) -> None:
    """Cases d05, d07, d08, d09. Its load is unknown, never zero: it attracts no more than a known idle server."""
    stack: Stack = await start()
    stack.upstreams[0].metrics = FAULTS[fault]

    async def unknown() -> bool:
        sample = (await stack.status())["pools"]["vllm"]["endpoints"][0]["sample"]
        known = sample is not None and sample["fresh"] and sample["waiting"] is not None
        return not known

    await eventually(unknown, "the first server's load is unknown")
    ports: Counter[int] = Counter()
    for _ in range(120):
        answer = await stack.request()
        assert answer.status == 200
        ports[answer.port] += 1
    assert ports[stack.upstreams[0].port] <= 40 + 20  # a third, and what chance may add: 3.9 standard deviations
    for endpoint in (await stack.status())["pools"]["vllm"]["endpoints"][1:]:
        assert endpoint["state"] == "ready"
        assert endpoint["sample"]["fresh"], "another server's sample went stale"
    # It still serves when it alone is left.
    for upstream in stack.upstreams[1:]:
        await upstream.stop()
    assert (await stack.request()).port == stack.upstreams[0].port
    await stack.nothing_in_flight()


@pytest.mark.parametrize("shape", envoy_config.SHAPES)
async def test_all_pages_gone_spreads_requests_by_our_own_count(start: Any, shape: str) -> None:
    """Case d10: a pool of four whose scrapes all hang. No error; requests held open spread evenly; one warning."""
    stack: Stack = await start(shape=shape, servers=4)
    for upstream in stack.upstreams:
        upstream.metrics = _hang

    async def nothing_known() -> bool:
        return not any(e["sample"]["fresh"] for e in (await stack.status())["pools"]["vllm"]["endpoints"])

    await eventually(nothing_known, "every sample is stale")
    held = Held(head_first=False)
    for upstream in stack.upstreams:
        upstream.respond = held
    requests = [asyncio.create_task(stack.request()) for _ in range(24)]
    await eventually(lambda: held.waiting == 24, "all requests run")
    assert [upstream.open for upstream in stack.upstreams] == [6] * 4
    warnings = [w for w in (await stack.status())["warnings"] if "no endpoint's load is known" in w]
    assert len(warnings) == 1
    held.release()
    assert {answer.status for answer in await asyncio.gather(*requests)} == {200}
    await stack.nothing_in_flight()


async def test_a_pool_of_one_with_a_hanging_page_serves(start: Any) -> None:
    """Case d10."""
    stack: Stack = await start(servers=1)
    stack.upstreams[0].metrics = _hang

    async def stale() -> bool:
        return not (await stack.status())["pools"]["vllm"]["endpoints"][0]["sample"]["fresh"]

    await eventually(stale, "the sample is stale")
    assert [(await stack.request()).status for _ in range(10)] == [200] * 10


async def test_a_wrong_metrics_port_takes_a_server_out_only_while_others_are_good(start: Any) -> None:
    """Nobody listens there, which looks like a dead server; when all look so, all are used."""
    closed = envoy_config.free_port()
    wrong = {"filter_metadata": {"extproc": {"metrics_port": closed}}}

    def one(config: Any) -> None:
        envoy_config.cluster(config, "vllm")["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["metadata"] = wrong

    def every(config: Any) -> None:
        envoy_config.settings_of(config)["ready_wait_s"] = 1  # no sample will ever make it ready
        for endpoint in envoy_config.cluster(config, "vllm")["load_assignment"]["endpoints"][0]["lb_endpoints"]:
            endpoint["metadata"] = wrong

    stack: Stack = await start(change=one, await_ready=False)

    async def out() -> bool:
        states = [e["state"] for e in (await stack.status())["pools"]["vllm"]["endpoints"]]
        return states == ["unhealthy", "ready", "ready"]

    await eventually(out, "the first server is taken for dead")
    assert stack.upstreams[0].port not in {(await stack.request()).port for _ in range(12)}

    blind: Stack = await start(change=every, await_ready=False)
    assert len({(await blind.request()).port for _ in range(40)}) == 3
    await blind.nothing_in_flight()


async def test_a_stopped_server_leaves_and_comes_back(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case e16: SIGSTOP on one server's process. Requests to the others go on; it leaves once it has been silent for
    long enough (shipped: 30 s), and SIGCONT brings it back."""
    monkeypatch.setattr(health, "SILENT_AFTER_S", 2.0)
    port = envoy_config.free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.envoy_upstream", str(port), cwd=envoy_config.ROOT
    )
    try:

        def third(config: Any) -> None:
            endpoints = envoy_config.cluster(config, "vllm")["load_assignment"]["endpoints"][0]["lb_endpoints"]
            endpoints.append(
                {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
            )

        stack: Stack = await start(servers=2, change=third)

        async def state() -> str:
            endpoint = (await stack.status())["pools"]["vllm"]["endpoints"][2]
            return f"{endpoint['state']}, {endpoint['problem']}"

        async def is_silent() -> bool:
            return await state() == "unhealthy, no answer"

        async def is_ready() -> bool:
            return await state() == "ready, None"

        pause(process.pid)
        others = Counter[int]()

        async def silent_while_the_others_serve() -> bool:
            # What the stopped server is given waits there, as it would for a slow one.
            given = asyncio.create_task(stack.request())
            done, _ = await asyncio.wait({given}, timeout=0.2)
            if done:
                others[given.result().port] += 1
            else:
                waiting.append(given)
            return await is_silent()

        waiting: list[asyncio.Task[Any]] = []
        await eventually(silent_while_the_others_serve, "the stopped server has left", timeout_s=25)
        assert set(others) == {upstream.port for upstream in stack.upstreams}
        async with asyncio.timeout(10):
            assert port not in {(await stack.request()).port for _ in range(20)}
        resume(process.pid)
        await eventually(is_ready, "it is back")
        assert {(await task).status for task in waiting} <= {200}

        async def served() -> bool:
            return (await stack.request()).port == port

        await eventually(served, "it serves")
        await stack.nothing_in_flight()
    finally:
        resume(process.pid)
        process.kill()
        await process.wait()
