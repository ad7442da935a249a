"""The service recommends: over servers whose metrics say what a test wants, and over a peer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from extproc.app import App
from extproc.config.settings import Settings
from extproc.server.listener import ListenError
from tests.app.test_application import QUICK, Running, settings, started
from tests.autoscale.test_profile import GIVEN
from tests.support.envoy_config import free_port
from tests.support.ext_proc_client import BUFFERED, body
from tests.support.keda_client import Pushes, Trigger, connect
from tests.support.metrics_server import MetricsServer
from tests.support.waiting import eventually

WINDOW_S = 1.0
POOL = "/autoscale/v1/pools/vllm"


def autoscaled(addresses: list[str], *, other: dict[str, Any] | None = None, **autoscale: Any) -> Settings:
    """A pool of these servers that gets recommendations, and what else is to be in the settings."""
    section = {"max_replicas": 8, "window_s": WINDOW_S, "stale_after_s": 30} | autoscale
    endpoints = [{"address": address} for address in addresses]
    return Settings.model_validate(
        settings({}).model_dump()
        | {"scrape": QUICK, "pools": {"vllm": {"endpoints": endpoints, "autoscale": section}}}
        | (other or {})
    )


async def look(running: Running) -> tuple[int, Any]:
    code, text = await running.get(POOL)
    return code, json.loads(text)


async def desired(running: Running) -> Any:
    return (await look(running))[1]["desired"]


async def held(running: Running) -> Any:
    return (await look(running))[1]["held"]


async def ask(running: Running) -> None:
    """One request, to its pick."""
    stream = running.client.stream()
    await stream.ask(body(b"{}", first_with_mode=BUFFERED))


@pytest.fixture
async def two() -> AsyncIterator[list[MetricsServer]]:
    async with MetricsServer().serve() as one, MetricsServer().serve() as other:
        yield [one, other]


async def test_requests_that_wait_ask_for_a_server_more_and_its_reason_is_logged(
    two: list[MetricsServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "extproc.autoscaling")
    async with started(autoscaled([server.address for server in two])) as running:
        await eventually(lambda: desired(running), "the servers that are there are recommended")
        code, shown = await look(running)
        assert (code, shown["desired"], shown["provisioned"], shown["calibrated"]) == (200, 2, 2, False)
        assert "the first window of signals" in shown["held"]

        async def complete() -> bool:
            return await held(running) is None

        await eventually(complete, "the first window is over")
        for server in two:
            server.waiting, server.running = 9, 4

        async def more() -> bool:
            return bool(await desired(running) > 2)

        await eventually(more, "more servers are recommended")
        shown = (await look(running))[1]
        waiting = next(each for each in shown["signals"] if each["name"] == "waiting")
        assert waiting["value"] > waiting["threshold"] == 1.0
        assert waiting["replicas"] > 2
        assert "wait per server" in shown["reason"]
        metrics = (await running.get("/metrics"))[1]
        assert 'extproc_autoscale_signal_threshold{pool="vllm",signal="waiting"} 1.0' in metrics
        assert (await running.status())["pools"]["vllm"]["autoscale"]["desired"] > 2
    told = [record.getMessage() for record in caplog.records if "are recommended" in record.getMessage()]
    assert told[0].startswith("pool vllm: 2 servers are recommended: 2 stay: ")
    assert any("up from 2 to" in each and "wait per server" in each for each in told[1:])


async def test_when_nothing_is_known_any_more_the_number_is_kept_then_withheld_and_its_gauges_go(
    two: list[MetricsServer],
) -> None:
    """case f06"""
    async with started(autoscaled([server.address for server in two])) as running:
        await eventually(lambda: desired(running), "something is recommended")
        gauge = 'extproc_autoscale_desired_replicas{pool="vllm"} 2.0'
        assert gauge in (await running.get("/metrics"))[1]
        two[0].page = None

        async def unknown() -> bool:
            return bool((await look(running))[1]["stale_servers"] == 1)

        await eventually(unknown, "the load of one is not known")
        code, shown = await look(running)
        assert (code, shown["desired"], shown["stale"]) == (200, 2, False)
        two[1].page = None
        running.clock.ahead_s += 10

        async def all_unknown() -> bool:
            return bool((await look(running))[1]["stale_servers"] == 2)

        await eventually(all_unknown, "no load is known")
        code, shown = await look(running)
        assert (code, shown["desired"]) == (200, 2), "for a while the last number holds"
        running.clock.ahead_s += 31

        async def stale() -> bool:
            return (await look(running))[0] == 503

        await eventually(stale, "it is too old")
        shown = (await look(running))[1]
        assert (shown["desired"], shown["stale"]) == (2, True)
        assert "last known" in shown["error"]
        metrics = (await running.get("/metrics"))[1]
        assert "extproc_autoscale_desired_replicas{" not in metrics
        assert "extproc_autoscale_signal_value{" not in metrics
        assert 'extproc_autoscale_stale_servers{pool="vllm"} 2.0' in metrics


async def test_only_pools_with_the_section_get_recommendations() -> None:
    async with started(settings({"vllm": ["127.0.0.1:1"]})) as running:
        code, shown = await look(running)
        assert code == 404
        assert shown["error"].endswith("give it a section autoscale in the settings")
        assert json.loads((await running.get("/autoscale/v1/pools"))[1]) == {"pools": {}}
        assert "extproc_autoscale_desired_replicas{" not in (await running.get("/metrics"))[1]
        assert (await running.status())["pools"]["vllm"]["autoscale"] is None
        offered = json.loads((await running.get("/autoscale/v1/offered"))[1])
        assert offered["pools"] == {"vllm": 0}, "a peer may have it"


async def test_an_endpoint_that_is_drained_is_no_capacity_and_one_that_drains_is_told_apart(
    two: list[MetricsServer],
) -> None:
    endpoints = [{"address": two[0].address}, {"address": two[1].address, "drained": True}]
    section = {"max_replicas": 8, "window_s": WINDOW_S}
    pools = {"vllm": {"endpoints": endpoints, "autoscale": section}}
    async with started(Settings.model_validate(settings({}).model_dump() | {"pools": pools})) as running:

        async def settled() -> bool:
            shown = (await look(running))[1]
            return bool(shown["ready"] == 1 and shown["draining"] == 0)

        await eventually(settled, "the drained one counts for nothing")
        assert await desired(running) == 1


async def test_requests_that_come_while_there_is_no_server_ask_for_one() -> None:
    """case f09"""
    async with started(autoscaled(["127.0.0.1:1"], min_replicas=0, other={"ready_wait_s": 0.1})) as running:
        pool = running.app.router.plans["vllm"].pool
        await eventually(lambda: pool.known, "the list was read")
        pool.set_endpoints([])

        async def nobody() -> bool:
            return (await look(running))[1]["held"] is None

        await eventually(nobody, "the first window is over")

        async def asked() -> bool:
            await ask(running)
            return any(each["name"] == "demand" for each in (await look(running))[1]["signals"])

        await eventually(asked, "the demand is seen")
        shown = (await look(running))[1]
        assert shown["desired"] >= 1
        assert "there is no server" in next(each for each in shown["signals"] if each["name"] == "demand")["reason"]


async def test_a_profile_of_other_servers_is_warned_of_once(
    tmp_path: Path, two: list[MetricsServer], caplog: pytest.LogCaptureFixture
) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(GIVEN | {"server": {"model": "m", "kv_tokens": 10_000, "version": "0.11.0"}}))
    for server in two:
        server.page = server.text() + 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
        server.version = "0.12.0"
    async with started(autoscaled([server.address for server in two], profile=str(profile), tighten=True)) as running:
        first = min(server.address for server in two)
        expected = [
            f"the profile was made with room for 10,000 tokens in the KV cache, and {first} has room for 1,600",
            f"the profile was made with version 0.11.0 of the engine, and {first} runs 0.12.0",
        ]

        async def warned() -> bool:
            return bool((await look(running))[1]["warnings"] == expected)

        await eventually(warned, "it is seen")
        told = (await running.status())["warnings"]
        assert [each for each in told if "autoscaling" in each] == [f"pool vllm: autoscaling: {w}" for w in expected]
        shown = (await look(running))[1]
        assert (shown["calibrated"], shown["tightened_to"], shown["ttft_target_s"]) == (True, 1.0, 1.0)
    logged = [record.getMessage() for record in caplog.records]
    assert [logged.count(f"pool vllm: {each}") for each in expected] == [1, 1]


def test_a_profile_that_cannot_be_used_is_told_before_the_start(tmp_path: Path) -> None:
    words = r"pools\.vllm\.autoscale\.profile: .*none\.json: there is no such file"
    with pytest.raises(ListenError, match=words):
        App(autoscaled(["127.0.0.1:1"], profile=str(tmp_path / "none.json")))


async def test_keda_is_told_the_same_number_and_its_push_stream_ends_in_order(two: list[MetricsServer]) -> None:
    async with (
        started(autoscaled([server.address for server in two])) as running,
        connect(running.app.grpc_address) as channel,
    ):
        await eventually(lambda: desired(running), "something is recommended")
        trigger = Trigger(channel, {"pool": "vllm"})
        assert await trigger.metrics_and_activity("s0-desired-replicas") == ([2000], True)
        pushes = Pushes(trigger)
        pushing = asyncio.create_task(pushes.run())
        await eventually(lambda: pushes.heard == [True], "the push stream is open")
        await running.ended()
        await eventually(lambda: pushes.ends, "it has ended")
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)
    assert pushes.ends[0] is grpc.StatusCode.OK


async def test_what_comes_to_a_process_that_stops_is_unknown_not_less(two: list[MetricsServer]) -> None:
    """Envoy sends its requests elsewhere by then, which says nothing of the load."""
    with_notice = autoscaled([server.address for server in two], other={"shutdown_notice_s": 2})
    async with started(with_notice) as running:
        await eventually(lambda: running.app.ready(), "ready")
        await ask(running)
        assert await requests_of(running) == 1
        running.stop.set()

        async def unknown() -> bool:
            return await requests_of(running) is None

        await eventually(unknown, "it stops")
        offered = json.loads((await running.get("/autoscale/v1/offered"))[1])
        assert offered["pools"] == {"vllm": 1}, "peers go on adding it up"


# Peers


async def requests_of(running: Running) -> Any:
    """What the pool's arrivals are read from: over all processes; None: not known."""
    return running.app._autoscaling._pools["vllm"]._requests()


async def test_the_requests_of_peers_are_added_up_also_over_a_restart_and_unknown_without_one(
    two: list[MetricsServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extproc.peers.SILENT_S", 0.5)
    addresses = [server.address for server in two]
    own, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
    with_peers = {"peers": [own, other], "other": {"admin": {"listen": own}}}
    async with started(autoscaled(addresses, **with_peers)) as running:
        await eventually(lambda: running.app.ready(), "ready")
        assert await requests_of(running) is None, "the peer is not there"
        plain = settings({"vllm": addresses}, admin={"listen": other})
        async with started(plain) as peer:

            async def known() -> bool:
                return await requests_of(running) is not None

            await eventually(known, "the peer was heard")
            before = await requests_of(running)
            await ask(running)
            for _ in range(2):
                await ask(peer)

            async def added() -> bool:
                return bool(await requests_of(running) == before + 3)

            await eventually(added, "its requests are added to ours, and ours count once")

        async def lost() -> Any:
            return (await look(running))[1]["warnings"]

        warnings = await eventually(lost, "it is missed")
        assert any(f"peer {other}: connection refused" in each for each in warnings)
        assert await requests_of(running) is None
        async with started(plain) as peer:
            await eventually(known, "its successor was heard")
            again = await requests_of(running)
            assert again >= before + 3
            await ask(peer)

            async def more() -> bool:
                return bool(await requests_of(running) == again + 1)

            await eventually(more, "its requests are added too")


async def test_a_peer_without_the_pool_is_no_peer(two: list[MetricsServer]) -> None:
    addresses = [server.address for server in two]
    own = free_port()
    with_peer = autoscaled(addresses, peers=[f"127.0.0.1:{own}"])
    peer_settings = settings({"another": addresses}, admin={"listen": f"127.0.0.1:{own}"})
    async with started(peer_settings), started(with_peer) as running:

        async def said() -> bool:
            return "it has no pool 'vllm'" in str((await look(running))[1]["warnings"])

        await eventually(said, "it is warned of")
        assert await requests_of(running) is None
