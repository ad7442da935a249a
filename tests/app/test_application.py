"""The whole service in this process, on free ports, with metrics pages as its only surroundings."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from extproc import front
from extproc.app import App
from extproc.config.settings import Settings
from extproc.discovery.config_file import Followed
from extproc.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from extproc.server.listener import ListenError
from tests.support.ext_proc_client import BUFFERED, DUPLEX, NONE, Client, body, destination, headers, log_batch
from tests.support.metrics_server import MetricsServer
from tests.support.waiting import eventually

FREE = "127.0.0.1:0"
QUICK = {"interval_s": 0.05, "timeout_s": 2, "stale_after_s": 1, "max_backoff_s": 0.1}


class Clock:
    """Real time that a test can put forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


def settings(pools: dict[str, list[str]], **other: Any) -> Settings:
    document: dict[str, Any] = {
        "grpc": {"listen": FREE},
        "admin": {"listen": FREE},
        "scrape": QUICK,
        "shutdown_notice_s": 0,
        "shutdown_grace_s": 5,
        "pools": {
            name: {"endpoints": [{"address": address} for address in addresses]} for name, addresses in pools.items()
        },
    }
    return Settings.model_validate(document | other)


@dataclass
class Running:
    """A started application and a client of both its ports."""

    app: App
    client: Client
    http: aiohttp.ClientSession
    stop: asyncio.Event
    task: asyncio.Task[None]
    clock: Clock = field(default_factory=Clock)

    async def get(self, path: str) -> tuple[int, str]:
        async with self.http.get(f"http://{self.app.admin_address}{path}") as answer:
            return answer.status, await answer.text()

    async def status(self) -> Any:
        return json.loads((await self.get("/status"))[1])

    async def serving(self) -> bool:
        check = self.client.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=HealthCheckRequest.SerializeToString,
            response_deserializer=HealthCheckResponse.FromString,
        )
        answer = await check(HealthCheckRequest(service=""))
        return bool(answer.status == HealthCheckResponse.SERVING)

    async def ended(self) -> None:
        self.stop.set()
        await asyncio.wait_for(asyncio.shield(self.task), 10)


@asynccontextmanager
async def started(with_settings: Settings, followed: Followed | None = None) -> AsyncIterator[Running]:
    clock, stop, up = Clock(), asyncio.Event(), asyncio.Event()
    app = App(with_settings, followed=followed, clock=clock)
    task = asyncio.create_task(app.run(stop, lambda _: up.set()))
    try:
        await eventually(lambda: up.is_set() or task.done(), "the application is up")
        if task.done():
            await task
        channel = grpc.aio.insecure_channel(app.grpc_address, [("grpc.use_local_subchannel_pool", 1)])
        async with channel, aiohttp.ClientSession() as http:
            yield Running(app, Client(channel), http, stop, task, clock)
    finally:
        stop.set()
        if not task.done():
            await asyncio.wait_for(task, 10)


@pytest.fixture
async def vllm() -> AsyncIterator[MetricsServer]:
    async with MetricsServer().serve() as server:
        yield server


# Start and readiness


async def test_it_is_ready_once_one_endpoint_gave_a_usable_sample(vllm: MetricsServer) -> None:
    """R3: before that picks would be blind"""
    vllm.page = "process_start_time_seconds 1\n"
    async with started(settings({"vllm": [vllm.address, "127.0.0.1:1"]})) as running:
        await eventually(lambda: vllm.scrapes > 1, "the page was read")
        assert not await running.serving()
        assert await running.get("/readyz") == (503, "not ready\n")
        assert (await running.get("/healthz"))[0] == 200
        assert "extproc_ready 0.0" in (await running.get("/metrics"))[1]
        vllm.page = ""
        await eventually(running.serving, "one usable sample makes it ready")
        assert await running.get("/readyz") == (200, "ready\n")


async def test_it_is_ready_after_a_bounded_wait_without_any_sample(vllm: MetricsServer) -> None:
    """case d07"""
    vllm.page = None
    async with started(settings({"vllm": [vllm.address]}, ready_wait_s=30)) as running:
        assert not await running.serving()
        running.clock.ahead_s = 31
        assert await running.serving()


async def test_once_ready_it_stays_so_when_all_samples_are_stale(vllm: MetricsServer) -> None:
    """case d10: also within the first wait"""
    async with started(settings({"vllm": [vllm.address]}, ready_wait_s=1000)) as running:
        await eventually(running.serving, "ready")
        vllm.page = None
        running.clock.ahead_s = 100
        assert await running.serving()
        status = await running.status()
        assert status["ready"]
        assert any("no endpoint's load is known" in warning for warning in status["warnings"])
        assert destination(await running.client.stream().ask(body(b"{}", first_with_mode=BUFFERED))) == vllm.address


async def test_a_pick_follows_the_polled_state() -> None:
    """R3, R4: the server without waiting requests gets the request"""
    async with MetricsServer().serve() as busy, MetricsServer().serve() as idle:
        busy.waiting, idle.kv_usage = 3, 0.9
        async with started(settings({"vllm": [busy.address, idle.address]})) as running:
            await eventually(lambda: busy.scrapes > 1 and idle.scrapes > 1, "both were read")
            reply = await running.client.stream().ask(body(b"{}", first_with_mode=BUFFERED))
            assert destination(reply) == f"{idle.address},{busy.address}"
            status = await running.status()
            shown = {each["address"]: each for each in status["pools"]["vllm"]["endpoints"]}
            assert shown[busy.address]["sample"]["waiting"] == 3
            assert shown[idle.address]["in_flight"] == 1
            assert status["recent"][0]["picked"] == idle.address


@pytest.mark.parametrize("which", ["grpc", "admin"])
async def test_a_port_that_is_taken_is_told_with_the_setting(which: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ListenError, match=rf"{which}\.listen: cannot open {address} .*is another process there"):
            async with started(settings({"vllm": []}, **{which: {"listen": address}})):
                pass


def test_a_ca_file_that_cannot_be_used_is_told_at_once(tmp_path: Path) -> None:
    scrape = QUICK | {"scheme": "https", "ca_file": str(tmp_path / "absent.pem")}
    with pytest.raises(ListenError, match=r"scrape\.ca_file.*absent\.pem"):
        App(settings({"vllm": []}, scrape=scrape))


def test_drains_that_could_not_be_kept_are_told_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "absent" / "drains.json"
    words = (
        r"drain\.state_file: cannot use .*absent/drains\.json \(No such file or directory\); its directory must exist"
    )
    with pytest.raises(ListenError, match=words):
        App(settings({"vllm": ["127.0.0.1:1"]}, drain={"state_file": str(file)}))


# Pools, shapes


async def test_the_routes_grpc_metadata_chooses_the_pool() -> None:
    async with MetricsServer().serve() as small, MetricsServer().serve() as big:
        pools = {"small": [small.address], "big": [big.address]}
        async with started(settings(pools, default_pool="small")) as running:
            await eventually(running.serving, "ready")
            chosen = []
            for metadata in ((), (("x-extproc-pool", "big"),), (("x-extproc-pool", "small"),)):
                reply = await running.client.stream(metadata).ask(body(b"{}", first_with_mode=BUFFERED))
                chosen.append(destination(reply))
            assert chosen == [small.address, big.address, small.address]


async def test_a_full_pool_turns_a_request_away_by_the_priority_in_its_header() -> None:
    """What the settings say reaches the wire."""
    scheduling = {"shed": [{"waiting": 8, "priority": 1}], "priority_header": "X-Priority"}
    async with MetricsServer().serve() as busy:
        busy.waiting = 8
        async with started(settings({"vllm": [busy.address]}, scheduling=scheduling)) as running:
            await eventually(running.serving, "ready")
            low = await running.client.stream().ask(headers(NONE, fields={":method": "POST", "x-priority": "1"}))
            assert low is not None
            assert low.immediate_response.status.code == 429
            sent = {h.header.key: h.header.raw_value for h in low.immediate_response.headers.set_headers}
            assert 1 <= int(sent["retry-after"]) <= 30
            error = json.loads(low.immediate_response.body)["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            normal = await running.client.stream().ask(headers(NONE))
            assert destination(normal) == busy.address
            assert (await running.status())["requests"]["rejections"] == {"overloaded": 1}


async def test_a_route_that_names_an_unknown_pool_is_told_once_and_counted(
    vllm: MetricsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with started(settings({"vllm": [vllm.address]})) as running:
        await eventually(running.serving, "ready")
        for _ in range(2):
            stream = running.client.stream((("x-extproc-pool", "vlm"),))
            assert destination(await stream.ask(headers(NONE))) == vllm.address
        assert 'extproc_unknown_names_total{by="route_pool"} 2.0' in (await running.get("/metrics"))[1]
        assert "2 requests were routed as if their route's pool 'vlm'" in str((await running.status())["warnings"])
    told = [record.getMessage() for record in caplog.records if "vlm" in record.getMessage() and "names" in record.msg]
    assert told == ["a route names the pool 'vlm', which there is not: its requests are routed as if it named none"]


async def test_a_dns_name_that_does_not_resolve_and_a_log_that_does_not_decode_are_shown(vllm: MetricsServer) -> None:
    async with started(settings({"vllm": [vllm.address, "no..such..name:8000"]})) as running:
        logs = running.client.logs()
        await logs.write(b"\xff\xff")
        await eventually(lambda: running.app.status()["access_log"]["undecodable"] == 1, "the message arrived")
        await eventually(lambda: running.app.status()["pools"]["vllm"]["failing"], "the name was looked up")
        metrics = (await running.get("/metrics"))[1]
        assert 'extproc_discovery_failing{name="no..such..name",pool="vllm"} 1.0' in metrics
        assert "extproc_undecodable_log_messages_total 1.0" in metrics
        assert list(running.app.status()["pools"]["vllm"]["failing"]) == ["no..such..name"]
        logs.cancel()


async def test_a_full_duplex_stream_ends_early_while_an_access_log_is_received_and_else_stays(
    vllm: MetricsServer,
) -> None:
    async with started(settings({"vllm": [vllm.address]})) as running:
        stays = running.client.stream()
        assert destination(await stays.ask(headers(DUPLEX, end=True)))
        logs = running.client.logs()
        await logs.write(log_batch(("not-ours", vllm.address, 200)))
        await eventually(lambda: running.app.status()["access_log"]["connected"] == 1, "the log is received")
        early = running.client.stream()
        assert destination(await early.ask(headers(DUPLEX, end=True)))
        assert await early.read() is None
        assert await early.code() == "OK"
        streams = running.app.status()["streams"]
        assert (streams["total"], streams["open"]) == (2, 1)
        assert await stays.end() == "OK"
        logs.cancel()


# Stop


async def test_it_stops_in_order_not_ready_then_no_new_streams_then_the_open_ones_end(
    vllm: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cases f03, g09"""
    monkeypatch.setattr(front, "_STREAMS_CHECK_S", 0.001)
    async with started(settings({"vllm": [vllm.address]}, shutdown_notice_s=0.5)) as running:
        await eventually(running.serving, "ready")
        old = running.client.stream()
        await old.ask(headers(BUFFERED))
        running.stop.set()
        await eventually(lambda: not running.app.ready(), "it says that it is not ready")
        assert not await running.serving()
        assert await running.get("/healthz") == (200, "ok\n")
        late = running.client.stream()
        assert destination(await late.ask(body(b"{}", first_with_mode=BUFFERED))), "during the notice it still serves"
        assert await late.end() == "OK"
        await eventually(lambda: refused(running.app.grpc_address), "the listener is closed")
        looks = iter(range(20))
        await eventually(lambda: next(looks, None) is None, "it has looked many times for open streams")
        assert not running.task.done()
        assert destination(await old.ask(body(b"{}"))), "an open stream is served to its end"
        assert await old.end() == "OK"
        await running.ended()


def refused(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


async def test_it_does_not_wait_for_calls_that_never_end_by_themselves(vllm: MetricsServer) -> None:
    """Envoy's access log and a health watcher; the grace here is longer than the test may take"""
    async with started(settings({"vllm": [vllm.address]}, shutdown_grace_s=600)) as running:
        logs = running.client.logs()
        await logs.write(log_batch(("not-ours", vllm.address, 200)))
        watch = running.client.channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        await watch.read()
        await eventually(lambda: running.app.status()["access_log"]["connected"] == 1, "the log is received")
        await running.ended()


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
async def test_a_stream_that_does_not_end_is_left_after_the_grace(vllm: MetricsServer, mode: int) -> None:
    """Cases f03, g09: its request runs on, and in full duplex any end but OK would cut the response."""
    async with started(settings({"vllm": [vllm.address]}, shutdown_grace_s=0.2)) as running:
        stream = running.client.stream()
        if mode == DUPLEX:
            await stream.send(headers(DUPLEX))
        await stream.ask(body(b"{}", first_with_mode=None if mode == DUPLEX else mode))
        if mode == DUPLEX:
            assert await stream.read() is not None  # the body comes back
        await running.ended()
        assert await stream.code() == "OK"
        [reservation] = running.app.router.ledger.recent
        assert not reservation.open


async def test_a_stream_whose_request_is_not_whole_is_cut_after_the_grace(vllm: MetricsServer) -> None:
    """case g09"""
    async with started(settings({"vllm": [vllm.address]}, shutdown_grace_s=0.2)) as running:
        stream = running.client.stream()
        await stream.send(headers(DUPLEX), body(b"{", end=False))
        await eventually(lambda: running.app.status()["streams"]["open"] == 1, "the stream is there")
        await running.ended()
        assert await stream.code() != "OK"


async def test_after_the_end_nothing_is_left(vllm: MetricsServer) -> None:
    before = asyncio.all_tasks()
    async with started(settings({"vllm": [vllm.address]})) as running:
        await eventually(running.serving, "ready")
        address = running.app.admin_address
        await running.ended()
        assert refused(address)
        assert refused(running.app.grpc_address)
    await eventually(lambda: asyncio.all_tasks() <= before, "no task is left")
    scrapes = vllm.scrapes
    async with started(settings({"vllm": []})):
        assert vllm.scrapes == scrapes


async def test_a_task_that_dies_of_a_bug_takes_the_service_down_loudly(
    vllm: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(settings({"vllm": [vllm.address]}))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(app.router, "observe", broken)
    with pytest.raises(ExceptionGroup) as error:
        await asyncio.wait_for(app.run(asyncio.Event()), 10)
    assert error.value.subgroup(ZeroDivisionError) is not None
    assert refused(app.grpc_address)
    assert refused(app.admin_address)
