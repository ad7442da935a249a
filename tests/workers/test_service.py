"""`extproc serve --workers 2`, as it is started, without Envoy."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from extproc.config.settings import WORKER_PORTS_APART
from extproc.pb.core_pb2 import DRAINING, HEALTHY
from extproc.pb.discovery_pb2 import DiscoveryRequest, DiscoveryResponse
from extproc.pb.endpoint_pb2 import ClusterLoadAssignment
from extproc.pb.externalscaler_pb2 import GetMetricsRequest, GetMetricsResponse, ScaledObjectRef
from extproc.server.assignment import TYPE_URL
from tests.support.envoy_wheels import ROOT
from tests.support.ext_proc_client import BUFFERED, Stream, body, destination, log_batch, pick_id
from tests.support.metrics_server import MetricsServer
from tests.support.worker_service import Running, free_ports, kill, runs, serving


def chat(prompt: str, **fields: Any) -> Any:
    document = {"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}
    return body(json.dumps(document).encode(), first_with_mode=BUFFERED)


LONG = "words of a document " * 500


# A start of three processes takes seconds, so most tests share one.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers() -> AsyncIterator[list[MetricsServer]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(MetricsServer().serve()) for _ in range(3)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(servers: list[MetricsServer], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder, scaled = tmp_path_factory.mktemp("workers"), {"autoscale": {"min_replicas": 3, "max_replicas": 5}}
    async with serving(folder, [server.address for server in servers], pool=scaled) as found:
        yield found


async def end(running: Running, *streams: Stream) -> None:
    """End them, and wait until nothing is in flight."""
    for stream in streams:
        assert await stream.end() == "OK"

    async def nothing() -> bool:
        return not any((await running.in_flight()).values()) and (await running.metrics())["extproc_open_streams"] == 0

    await running.eventually(nothing, "all have ended")


async def picks(running: Running, worker: int, count: int) -> list[tuple[Stream, str, str]]:
    """Open streams at one worker, each with the server and the id of its pick."""
    out = []
    for _ in range(count):
        stream = running.clients[worker].stream()
        reply = await stream.ask(chat("hello"))
        out.append((stream, destination(reply).partition(",")[0], pick_id(reply)))
    return out


async def test_workers_see_each_others_picks_and_ends_and_their_counts_are_summed(
    running: Running, servers: list[MetricsServer]
) -> None:
    """Without a word between them each would send its first three requests to any; the prompt is learned, too."""
    before = await running.metrics()
    picked = [each["picks"] for each in await running.workers()]
    first = running.clients[0].stream()
    chosen = destination(await first.ask(chat(LONG))).partition(",")[0]

    async def known() -> bool:
        return (await running.in_flight())[chosen] == 1

    await running.eventually(known, "the supervisor knows of the pick")
    assert (await _explained(running))[chosen]["held_tokens"] > 1000

    async def computed() -> bool:
        return bool((await _explained(running))[chosen]["owed_tokens"] == 0)

    await running.eventually(computed, "by all one knows, the server has computed it")
    second = running.clients[1].stream()
    assert destination(await second.ask(chat(LONG + " and a question"))).partition(",")[0] == chosen
    open_ = await picks(running, 0, 3) + await picks(running, 1, 3)

    async def all_in_flight() -> bool:
        return sum((await running.in_flight()).values()) == 8

    await running.eventually(all_in_flight, "all are in flight")
    assert [each["picks"] for each in await _settled(running, sum(picked) + 8)] == [each + 4 for each in picked]
    metrics = await running.metrics()
    for name in ("picks_total", "streams_total", "decision_seconds_count", "read_picks_total"):
        assert metrics[f"extproc_{name}"] == before.get(f"extproc_{name}", 0) + 8, name
    assert metrics["extproc_endpoint_in_flight_requests"] == metrics["extproc_open_streams"] == 8
    assert metrics["extproc_worker_ready"] == 2
    await end(running, first, second, *(each for each, _, _ in open_))
    assert len(await running.get("/decisions")) >= 1


async def test_a_log_entry_counts_whichever_worker_it_comes_to(running: Running) -> None:
    (stream, server, pick), *_ = await picks(running, 0, 1)
    logs = running.clients[1].logs()
    await logs.write(log_batch((pick, server, 200)))

    async def told() -> bool:
        recent = (await running.status())["recent"]
        return recent[0]["picked"] == server and recent[0]["outcome"] == "ok"

    await running.eventually(told, "the supervisor knows how it went")
    await end(running, stream)
    await logs.done_writing()
    await logs


async def test_a_drain_over_the_one_admin_port_holds_for_all_workers_at_once_and_can_be_cancelled(
    running: Running, servers: list[MetricsServer]
) -> None:
    """When the answer is there no worker picks the server any more."""
    drained = servers[0].address
    async with running.http.post(f"http://{running.admin}/v1/endpoints/{drained}/drain") as answer:
        assert answer.status == 200
    open_ = await picks(running, 0, 6) + await picks(running, 1, 6)
    assert drained not in {server for _, server, _ in open_}
    async with running.http.delete(f"http://{running.admin}/v1/endpoints/{drained}/drain") as answer:
        assert answer.status == 200
    # It is the one with the fewest in flight.
    back = await picks(running, 0, 1) + await picks(running, 1, 1)
    assert [server for _, server, _ in back] == [drained, drained]
    await end(running, *(each for each, _, _ in open_ + back))


async def test_each_worker_tells_envoy_and_keda_what_the_supervisor_knows(
    running: Running, servers: list[MetricsServer]
) -> None:
    """EDS and KEDA's scaler come to whichever worker they like."""
    drained = servers[1].address
    async with running.http.post(f"http://{running.admin}/v1/endpoints/{drained}/drain") as answer:
        assert answer.status == 200
    for client in running.clients:
        said: dict[str, int] = {}
        call = client.channel.stream_stream("/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints")()
        await call.write(DiscoveryRequest(resource_names=["vllm"], type_url=TYPE_URL).SerializeToString())
        while said.get(drained) != DRAINING:  # it is told when the worker looks next
            response = DiscoveryResponse.FromString(await asyncio.wait_for(call.read(), 30))
            (found,) = [ClusterLoadAssignment.FromString(each.value) for each in response.resources]
            for host in found.endpoints[0].lb_endpoints:
                socket_address = host.endpoint.address.socket_address
                said[f"{socket_address.address}:{socket_address.port_value}"] = host.health_status
        assert said == {each.address: DRAINING if each.address == drained else HEALTHY for each in servers}
        call.cancel()

        ask = client.channel.unary_unary(
            "/externalscaler.ExternalScaler/GetMetrics", response_deserializer=GetMetricsResponse.FromString
        )

        async def recommended(ask: Any = ask) -> list[int]:
            request = GetMetricsRequest(scaledObjectRef=ScaledObjectRef(name="vllm"))
            try:
                return [each.metricValue for each in (await ask(request.SerializeToString())).metricValues]
            except grpc.aio.AioRpcError:  # not known yet
                return []

        found_servers = await running.eventually(recommended, "it answers KEDA")
        assert found_servers == [(await running.get("/autoscale/v1/pools/vllm"))["desired"]] == [3]
    async with running.http.delete(f"http://{running.admin}/v1/endpoints/{drained}/drain") as answer:
        assert answer.status == 200


async def test_a_worker_that_is_killed_comes_back_and_knows_what_the_others_do(
    running: Running, servers: list[MetricsServer]
) -> None:
    """What it had in flight is kept until its server says that it has nothing of it any more; its picks are counted."""
    for server in servers:
        server.running = 5  # while these run
    other = await picks(running, 0, 2)
    await picks(running, 1, 3)

    async def all_in_flight() -> bool:
        return sum((await running.in_flight()).values()) == 5

    await running.eventually(all_in_flight, "all are in flight")
    before = (await running.workers())[1]["pid"]
    counted_before = (await running.metrics())["extproc_picks_total"]
    kill(before)

    async def back() -> bool:
        return await running.all_ready() and (await running.workers())[1]["pid"] not in (before, None)

    await running.eventually(back, "another process is worker 1")
    assert sum((await running.in_flight()).values()) == 5
    assert (await running.metrics())["extproc_worker_restarts_total"] == 1
    assert running.said("worker 1")
    assert running.said("was ended by SIGKILL; of its requests 3 go on; it is started again")
    for stream, _, _ in other:
        assert await stream.end() == "OK"
    for server in servers:
        server.running = 0

    async def nothing_in_flight() -> bool:
        return not any((await running.in_flight()).values())

    await running.eventually(nothing_in_flight, "the servers' pages have told that all is over")

    async def picked_again() -> bool:
        stream = running.clients[1].stream()
        reply = await stream.ask(chat("again"))
        return reply is not None and bool(destination(reply))

    await running.eventually(picked_again, "the new process picks")

    async def counted() -> bool:
        return (await running.metrics())["extproc_picks_total"] > counted_before

    await running.eventually(counted, "the picks of both processes are counted")
    assert running.process.returncode is None


async def test_sigterm_ends_all_in_order(servers: list[MetricsServer], tmp_path: Path) -> None:
    """Cases f03, g09: an open request is waited for, and then all end with status 0."""
    async with serving(tmp_path, [servers[0].address]) as running:
        (stream, _, _), *_ = await picks(running, 1, 1)
        pids = [each["pid"] for each in await running.workers()]
        running.process.send_signal(signal.SIGTERM)

        async def not_ready() -> bool:
            async with running.http.get(f"http://{running.admin}/readyz") as answer:
                return answer.status == 503

        await running.eventually(not_ready, "it is not ready")
        assert running.process.returncode is None
        assert await stream.end() == "OK"
        assert await asyncio.wait_for(running.process.wait(), 30) == 0
        assert not any(runs(pid) for pid in pids)
        assert not running.said("ERROR")


async def test_workers_without_a_supervisor_leave_their_ports_at_once_and_end_with_their_requests(
    servers: list[MetricsServer], tmp_path: Path
) -> None:
    """So whoever starts the service again can; `shutdown_notice_s` would hold the ports for so long."""
    async with serving(tmp_path, [servers[0].address], shutdown_notice_s=600, shutdown_grace_s=60) as running:
        (stream, _, _), *_ = await picks(running, 1, 1)
        workers = await running.workers()
        running.process.kill()  # not waited for: asyncio waits for its pipe, too, which the workers hold

        def ports_are_free() -> bool:
            with socket.socket() as first, socket.socket() as second:
                try:
                    for own, worker in zip((first, second), workers, strict=True):
                        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                        own.bind(("127.0.0.1", int(worker["address"].rpartition(":")[2])))
                        own.listen()
                except OSError:
                    return False
                return True

        await running.eventually(ports_are_free, "the ports are free")
        assert runs(workers[1]["pid"])
        assert await stream.end() == "OK"
        await running.eventually(lambda: not any(runs(each["pid"]) for each in workers), "the workers have ended")
        assert running.said("the supervisor has gone")


async def _explained(running: Running) -> dict[str, Any]:
    """By server, what the supervisor thinks of sending the document there."""
    document = {"model": "m", "messages": [{"role": "user", "content": LONG}]}
    async with running.http.post(f"http://{running.admin}/explain", json=document) as answer:
        return {row["address"]: row for row in (await answer.json())["endpoints"]}


async def _settled(running: Running, picked: int) -> list[Any]:
    """The workers, once they have reported so many picks, together."""

    async def reported() -> list[Any]:
        found = await running.workers()
        return found if sum(each["picks"] or 0 for each in found) == picked else []

    found: list[Any] = await running.eventually(reported, f"{picked} picks are reported")
    return found


async def test_a_workers_port_that_is_taken_is_told_and_nothing_is_left_running(tmp_path: Path) -> None:
    first = free_ports(2)
    document = {
        "workers": 2,
        "grpc": {"listen": f"127.0.0.1:{first}"},
        "admin": {"listen": "127.0.0.1:0"},
        "pools": {"vllm": {"endpoints": [{"address": "127.0.0.1:1"}]}},
    }
    path = tmp_path / "extproc.yaml"
    path.write_text(json.dumps(document))
    with socket.socket() as other:
        taken = first + WORKER_PORTS_APART
        other.bind(("127.0.0.1", taken))
        other.listen()
        command = ["-c", "from extproc.cli import main; main()", "serve", "--config", str(path)]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        _, said = await asyncio.wait_for(process.communicate(), 60)  # till all who hold the pipe have ended
    assert process.returncode == 1
    assert f"extproc: grpc.listen: cannot open 127.0.0.1:{taken}" in said.decode()
    assert "Traceback" not in said.decode()
