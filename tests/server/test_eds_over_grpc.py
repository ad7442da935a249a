"""Members served to Envoy over a real gRPC channel, without Envoy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from extproc.config.settings import GrpcSettings
from extproc.pb.core_pb2 import DRAINING, HEALTHY
from extproc.pb.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from extproc.pb.endpoint_pb2 import ClusterLoadAssignment
from extproc.pool.pool import Pool
from extproc.server import eds, listener
from tests.support.fleet import STALE_AFTER_S, endpoint
from tests.support.waiting import eventually

METHOD = "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints"
QUIET_S = 4 * eds.LOOK_S  # a push would have come by then


class Call:
    """One Envoy's stream, which accepts each answer."""

    def __init__(self, channel: grpc.aio.Channel, *names: str, version: str = "") -> None:
        self.names = names
        self.version = version
        self.nonce = ""
        self._call = channel.stream_stream(METHOD)()

    async def send(self, refusal: str | None = None) -> None:
        request = DiscoveryRequest(version_info=self.version, resource_names=self.names, response_nonce=self.nonce)
        request.node.id, request.node.cluster = "envoy-1", "gateway"
        if refusal is not None:
            request.error_detail.message = refusal
        await self._call.write(request.SerializeToString())

    async def write(self, raw: bytes) -> None:
        await self._call.write(raw)

    async def read(self, timeout_s: float = 10.0) -> dict[str, list[int]]:
        """The health of the hosts by cluster, of the next answer. Raises TimeoutError: there is none."""
        raw = await asyncio.wait_for(asyncio.shield(self._reading()), timeout_s)
        response = DiscoveryResponse.FromString(raw)
        self.nonce, self.version = response.nonce, response.version_info
        found = [ClusterLoadAssignment.FromString(each.value) for each in response.resources]
        return {
            each.cluster_name: [host.health_status for part in each.endpoints for host in part.lb_endpoints]
            for each in found
        }

    async def quiet(self) -> bool:
        """No answer comes for a while."""
        try:
            await self.read(QUIET_S)
        except TimeoutError:
            return True
        return False

    async def code(self) -> str:
        code: grpc.StatusCode = await asyncio.wait_for(self._call.code(), 10)
        return code.name

    def cancel(self) -> None:
        self._call.cancel()

    _pending: asyncio.Task[Any] | None = None

    def _reading(self) -> asyncio.Task[Any]:
        if self._pending is None or self._pending.done():
            self._pending = asyncio.ensure_future(self._call.read())
        return self._pending


class Served:
    """An EndpointDiscovery that listens."""

    def __init__(self, *pools: Pool) -> None:
        self.now = 0.0
        self.failing: set[str] = set()
        self.discovery = eds.EndpointDiscovery(
            {pool.name: pool for pool in pools}, failing=self.failing.__contains__, clock=lambda: self.now
        )

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        settings = GrpcSettings(listen="127.0.0.1:0")
        server, target = listener.build(settings, 1 << 20, [eds.handlers(self.discovery)])
        await server.start()
        looking = asyncio.create_task(self.discovery.run())
        try:
            async with grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                yield channel
        finally:
            looking.cancel()
            await server.stop(0)


def silent(name: str = "vllm") -> Pool:
    """A pool whose source has not spoken."""
    return Pool(name, stale_after_s=STALE_AFTER_S)


async def test_an_envoy_is_told_of_members_and_of_each_change() -> None:
    pool = silent()
    served = Served(pool)
    pool.set_endpoints([endpoint(1)])
    async with served.channel() as channel:
        envoy = Call(channel, "vllm")
        await envoy.send()
        assert await envoy.read() == {"vllm": [HEALTHY]}
        await envoy.send()
        pool.set_endpoints([endpoint(1), endpoint(2)])
        assert await envoy.read() == {"vllm": [HEALTHY, HEALTHY]}
        await envoy.send()
        pool.set_endpoints([endpoint(1), replace(endpoint(2), leaving=True)])
        assert await envoy.read() == {"vllm": [HEALTHY, DRAINING]}
        await envoy.send()
        pool.set_endpoints([])
        assert await envoy.read() == {"vllm": []}


async def test_changes_between_two_looks_are_one_push_and_no_change_is_none() -> None:
    pool = silent()
    served = Served(pool)
    pool.set_endpoints([endpoint(1)])
    async with served.channel() as channel:
        envoy = Call(channel, "vllm")
        await envoy.send()
        await envoy.read()
        for number in range(2, 50):
            pool.set_endpoints([endpoint(1), endpoint(number)])
        assert await envoy.read() == {"vllm": [HEALTHY, HEALTHY]}
        pool.set_endpoints([endpoint(49), endpoint(1)])  # the same, in another order
        assert await envoy.quiet()
    assert served.discovery.pushes == 2


async def test_a_change_that_the_status_page_sees_first_is_pushed_all_the_same() -> None:
    pool = silent()
    served = Served(pool)
    pool.set_endpoints([endpoint(1)])
    async with served.channel() as channel:
        envoy = Call(channel, "vllm")
        await envoy.send()
        await envoy.read()
        pool.set_endpoints([])
        assert served.discovery.status()["versions"]["vllm"] != envoy.version
        assert await envoy.read() == {"vllm": []}


async def test_several_envoys_hear_the_same_and_one_that_leaves_is_forgotten() -> None:
    pool = silent()
    served = Served(pool)
    pool.set_endpoints([endpoint(1)])
    async with served.channel() as channel:
        first, second = Call(channel, "vllm"), Call(channel, "vllm")
        for envoy in (first, second):
            await envoy.send()
            assert await envoy.read() == {"vllm": [HEALTHY]}
        assert served.discovery.streams == 2
        assert first.version == second.version
        first.cancel()
        await eventually(lambda: served.discovery.streams == 1, "the stream that was cancelled is forgotten")
        pool.set_endpoints([])
        assert await second.read() == {"vllm": []}


async def test_an_empty_set_is_said_and_silence_of_the_source_is_not() -> None:
    """An Envoy that reconnects to a restarted service keeps its hosts until the service knows better."""
    pool = silent()
    served = Served(pool)
    async with served.channel() as channel:
        envoy = Call(channel, "vllm", version="of the former process")
        await envoy.send()
        served.now = 1000.0
        assert await envoy.quiet()
        pool.set_endpoints([])
        assert await envoy.read() == {"vllm": []}


async def test_an_envoy_that_has_nothing_yet_waits_for_the_source_only_so_long() -> None:
    served = Served(silent())
    async with served.channel() as channel:
        envoy = Call(channel, "vllm")
        await envoy.send()
        assert await envoy.quiet()
        served.now = eds.WAIT_S + 1.0
        assert await envoy.read() == {"vllm": []}


async def test_a_source_that_half_fails_at_its_start_is_given_time() -> None:
    pool = silent()
    served = Served(pool)
    served.failing.add("vllm")
    pool.set_endpoints([endpoint(1)])  # of two names one did not resolve
    async with served.channel() as channel:
        envoy = Call(channel, "vllm", version="of the former process")
        await envoy.send()
        assert await envoy.quiet()
        served.now = eds.SETTLE_S + 1.0
        assert await envoy.read() == {"vllm": [HEALTHY]}
        pool.set_endpoints([endpoint(1), endpoint(2)])
        assert await envoy.read() == {"vllm": [HEALTHY, HEALTHY]}, "what is known is said, failing or not"


async def test_a_source_that_fails_altogether_says_nothing_of_who_is_gone() -> None:
    pool = silent()
    served = Served(pool)
    served.failing.add("vllm")
    pool.set_endpoints([])  # no name resolved
    async with served.channel() as channel:
        envoy = Call(channel, "vllm", version="of the former process")
        await envoy.send()
        served.now = 1000.0
        assert await envoy.quiet()
        served.failing.clear()
        pool.set_endpoints([endpoint(1)])
        assert await envoy.read() == {"vllm": [HEALTHY]}


async def test_a_refusal_is_logged_once_counted_and_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    pool = silent()
    served = Served(pool)
    pool.set_endpoints([endpoint(1)])
    async with served.channel() as channel:
        envoy = Call(channel, "vllm")
        await envoy.send()
        for refused in (1, 2):
            await envoy.read()
            envoy.version = ""
            await envoy.send(refusal="weights exceed the limit")
            await eventually(lambda wanted=refused: served.discovery.refused == wanted, "the refusal is counted")
            assert await envoy.quiet()
            pool.set_endpoints([endpoint(1), endpoint(1 + refused)])
        (stream,) = served.discovery.status()["streams"]
    assert stream["refusal"] == "weights exceed the limit"
    assert (stream["node"], stream["cluster"], stream["accepted"]) == ("envoy-1", "gateway", None)
    logged = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR and r.name.startswith("extproc")]
    assert logged == ["Envoy 'envoy-1' refuses the endpoints sent to it: weights exceed the limit"]


async def test_an_unknown_cluster_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    served = Served(silent())
    async with served.channel() as channel:
        for _ in range(2):
            envoy = Call(channel, "vlm")
            await envoy.send()
            assert await envoy.read() == {"vlm": []}
            assert {tuple(each["unknown"]) for each in served.discovery.status()["streams"]} == {("vlm",)}
    logged = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert logged == ["Envoy 'envoy-1' asks for the endpoints of 'vlm', which is no pool here: of vllm"]


async def test_what_does_not_decode_ends_its_own_stream_alone() -> None:
    pool = silent()
    served = Served(pool)
    pool.set_endpoints([])
    async with served.channel() as channel:
        broken, good = Call(channel, "vllm"), Call(channel, "vllm")
        await good.send()
        assert await good.read() == {"vllm": []}
        await broken.write(b"\xff\xff")
        assert await broken.code() == "INVALID_ARGUMENT"
        other = Call(channel)
        await other.write(DiscoveryRequest(type_url="type.googleapis.com/x").SerializeToString())
        assert await other.code() == "INVALID_ARGUMENT"
        pool.set_endpoints([endpoint(1)])
        assert await good.read() == {"vllm": [HEALTHY]}
    assert served.discovery.undecodable == 1
