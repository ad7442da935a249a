"""A service has just started, and one of its sources has not spoken yet: nobody is told that there is no server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from extproc import keeping
from extproc.config.settings import PoolSettings
from extproc.discovery.choose import source_of
from extproc.discovery.source import EndpointSet, EndpointSource
from extproc.endpoint import Address, Endpoint
from tests.app.test_application import Running, settings, started
from tests.support.ext_proc_client import BUFFERED, body, destination
from tests.support.metrics_server import MetricsServer
from tests.support.waiting import eventually


class Late:
    """A source that says its set when it is told to."""

    def __init__(self) -> None:
        self.failing: dict[str, str] = {}
        self.found: asyncio.Future[EndpointSet] = asyncio.get_running_loop().create_future()

    async def watch(self) -> AsyncGenerator[EndpointSet, None]:
        yield await self.found
        await asyncio.Event().wait()


@pytest.fixture
async def vllm() -> AsyncIterator[MetricsServer]:
    async with MetricsServer().serve() as server:
        yield server


@pytest.fixture
async def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    """The source of the pool without endpoints; the other pool's is as it is."""
    made = Late()

    def choose(pool: PoolSettings) -> EndpointSource:
        return source_of(pool) if pool.endpoints else made

    monkeypatch.setattr(keeping, "source_of", choose)
    return made


async def ask(running: Running, pool: str) -> tuple[Any, Any]:
    """A request of a route to this pool: the stream, and its first reply."""
    stream = running.client.stream((("x-extproc-pool", pool),))
    return stream, await stream.ask(body(b'{"prompt": "a"}', first_with_mode=BUFFERED))


async def test_it_is_ready_when_the_servers_of_all_pools_are_known(vllm: MetricsServer, late: Late) -> None:
    async with started(settings({"vllm": [vllm.address], "late": []}, default_pool="vllm")) as running:
        await eventually(lambda: vllm.scrapes > 2, "the first pool's load is known")
        assert not await running.serving()
        late.found.set_result(())  # nobody: that is known, too
        await eventually(running.serving, "ready")


async def test_a_source_that_fails_does_not_hold_it_up(vllm: MetricsServer, late: Late) -> None:
    async with started(settings({"vllm": [vllm.address], "late": []}, default_pool="vllm")) as running:
        await eventually(lambda: vllm.scrapes > 2, "the first pool's load is known")
        assert not await running.serving()
        late.failing["names"] = "do not resolve"
        await eventually(running.serving, "ready")


async def test_a_request_waits_for_the_first_servers_of_its_pool(vllm: MetricsServer, late: Late) -> None:
    async with started(settings({"vllm": [vllm.address], "late": []}, default_pool="vllm")) as running:
        asking = asyncio.create_task(ask(running, "late"))
        await eventually(lambda: running.app.status()["streams"]["open"] == 1, "the request is here")
        late.found.set_result((Endpoint(Address.parse(vllm.address)),))
        _, reply = await asking
        assert destination(reply) == vllm.address
        assert running.app.status()["requests"]["rejections"].get("no_endpoints", 0) == 0


async def test_a_request_for_servers_that_stay_unknown_is_left_to_envoy(vllm: MetricsServer, late: Late) -> None:
    """With a status by which Envoy does what `failure_mode_allow` says; a pool that is known to be empty is another
    matter."""
    async with started(settings({"vllm": [vllm.address], "late": []}, default_pool="vllm")) as running:
        stream, reply = await ask(running, "late")
        assert reply is None
        assert await stream.code() == "UNAVAILABLE"
        status = running.app.status()
        assert status["streams"]["errors"] == 0
        late.found.set_result(())
        await eventually(lambda: running.app.router.plans["late"].pool.known, "it is told that there is nobody")
        _, reply = await ask(running, "late")
        assert reply is not None
        assert reply.immediate_response.status.code == 503
