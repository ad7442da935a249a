"""Endpoints from the service (EDS): Envoy follows the source of the members, and no stream is cut by that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from extproc.pb.endpoint_pb2 import ClusterLoadAssignment
from extproc.server import eds
from extproc.server.assignment import Assignment
from tests.support import envoy_config
from tests.support.envoy_config import Json
from tests.support.envoy_stack import BODY, DESTINATION, Stack, Subprocess, eventually
from tests.support.envoy_upstream import Held, Upstream

HEALTHY, DRAINING, UNHEALTHY = "HEALTHY", "DRAINING", "UNHEALTHY"


class Fleet:
    """Servers, and the file that lists them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "endpoints.yaml"
        self.servers: list[Upstream] = []

    async def start(self, count: int) -> list[Upstream]:
        new = [await Upstream().start() for _ in range(count)]
        self.servers += new
        return new

    async def stop(self) -> None:
        for server in self.servers:
            await server.stop()

    def list(self, *servers: Upstream, drained: tuple[Upstream, ...] = ()) -> None:
        entries: list[Any] = [server.address for server in servers]
        entries += [{"address": server.address, "drained": True} for server in drained]
        self.path.write_text(json.dumps(entries))

    def configure(self, config: Json) -> None:
        """The shipped file with this source. What only costs a test time is made short."""
        source = {"file": {"path": str(self.path), "poll_s": 0.1}}
        envoy_config.settings_of(config)["pools"]["vllm"]["discovery"] = source
        envoy_config.cluster(config, "vllm")["health_checks"][0].update(interval="0.5s", no_traffic_interval="0.5s")

    async def stack(self, start: Any, **arguments: Any) -> Stack:
        """`change` runs after `configure`."""
        change = arguments.pop("change", lambda config: None)

        def both(config: Json) -> None:
            self.configure(config)
            change(config)

        started: Stack = await start(shape="EDS", servers=(), change=both, **arguments)
        return started


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    made = Fleet(tmp_path)
    yield made
    await made.stop()


async def hosts(stack: Stack, cluster: str = "vllm") -> dict[int, str]:
    """What Envoy was told of the health of its hosts, by port."""
    async with stack.client.get(f"{stack.envoy_admin}/clusters?format=json") as response:
        statuses = (await response.json(content_type=None))["cluster_statuses"]
    found = next(c for c in statuses if c["name"] == cluster).get("host_statuses", ())
    return {h["address"]["socket_address"]["port_value"]: h["health_status"]["eds_health_status"] for h in found}


async def until(stack: Stack, wanted: dict[Upstream, str]) -> None:
    """Envoy has exactly these hosts."""
    ports = {server.port: health for server, health in wanted.items()}

    async def there() -> bool:
        return await hosts(stack) == ports

    await eventually(there, f"Envoy has the hosts {ports}")


async def test_a_new_server_is_picked_soon_after_its_source_lists_it(start: Any, fleet: Fleet) -> None:
    first, second = await fleet.start(2)
    fleet.list(first)
    stack = await fleet.stack(start, profile="least-loaded")
    await until(stack, {first: HEALTHY})
    assert (await stack.request()).port == first.port
    first.waiting = 20
    fleet.list(first, second)
    loop = asyncio.get_running_loop()
    listed_s = loop.time()
    await until(stack, {first: HEALTHY, second: HEALTHY})
    assert loop.time() - listed_s < 5.0  # a look at the file, a push; the rest is a busy machine
    served = await eventually(
        lambda: _served_by(stack, second), "the new server gets what the service sends it, as the first host named"
    )
    assert served[DESTINATION].startswith(second.address)
    assert {seen.headers[DESTINATION].partition(",")[0] for seen in first.seen} <= {first.address, second.address}
    await stack.nothing_in_flight()


async def _served_by(stack: Stack, server: Upstream) -> dict[str, str] | None:
    answer = await stack.request()
    assert answer.status == 200
    return server.seen[-1].headers if answer.port == server.port else None


async def test_requests_without_a_pick_avoid_a_server_that_drains(start: Any, fleet: Fleet) -> None:
    """Those without a body, and all while the service is away."""
    first, second = await fleet.start(2)
    fleet.list(first, second)
    stack = await fleet.stack(start)
    await until(stack, {first: HEALTHY, second: HEALTHY})
    assert {(await stack.request("GET", "/v1/models", b"")).port for _ in range(40)} == {first.port, second.port}
    fleet.list(second, drained=(first,))
    await until(stack, {first: DRAINING, second: HEALTHY})
    assert {(await stack.request("GET", "/v1/models", b"")).port for _ in range(40)} == {second.port}
    assert stack.service is not None
    await stack.service.stop()
    assert {(await stack.request()).port for _ in range(20)} == {second.port}
    assert await hosts(stack) == {first.port: DRAINING, second.port: HEALTHY}


@pytest.mark.newest_only
async def test_a_server_that_is_down_is_told_to_be_unhealthy_until_it_is_back(start: Any, fleet: Fleet) -> None:
    first, second = await fleet.start(2)
    fleet.list(first, second)
    stack = await fleet.stack(start)
    await until(stack, {first: HEALTHY, second: HEALTHY})
    await first.stop()
    await until(stack, {first: UNHEALTHY, second: HEALTHY})
    assert {(await stack.request("GET", "/v1/models", b"")).port for _ in range(20)} == {second.port}
    await first.start()
    await until(stack, {first: HEALTHY, second: HEALTHY})


async def test_a_server_that_is_removed_while_it_streams_streams_to_the_end(start: Any, fleet: Fleet) -> None:
    first, second = await fleet.start(2)
    fleet.list(first)
    held = first.respond = Held(head_first=True)
    stack = await fleet.stack(start)
    await until(stack, {first: HEALTHY})
    headers = {"content-type": "application/json"}
    async with stack.client.post(f"{stack.url}/v1/chat/completions", data=BODY, headers=headers) as response:
        assert await response.content.readline() == b"data: first\n"
        fleet.list(second)
        await until(stack, {second: HEALTHY})
        await eventually(lambda: _served_by(stack, second), "the service and Envoy use the other")
        held.release()
        assert (await response.read()).endswith(b"data: [DONE]\n\n")
    await stack.nothing_in_flight()
    assert len(first.seen) == 1


@pytest.mark.newest_only
async def test_without_ignoring_health_a_removed_server_stays_while_it_is_healthy(start: Any, fleet: Fleet) -> None:
    """What `extproc check` warns of: eds-removal-waits."""
    first, second = await fleet.start(2)
    fleet.list(first, second)
    stack = await fleet.stack(
        start, change=lambda config: envoy_config.cluster(config, "vllm").pop("ignore_health_on_host_removal")
    )
    await until(stack, {first: HEALTHY, second: HEALTHY})
    await eventually(lambda: stack.healthy("vllm", hosts=2), "Envoy's own checks passed")
    fleet.list(second)
    await eventually(lambda: _all_accepted(stack, hosts=1), "Envoy has been told of one alone")
    assert {(await stack.request("GET", "/v1/models", b"")).port for _ in range(40)} == {first.port, second.port}
    first.health = 503
    await until(stack, {second: HEALTHY})


async def test_a_server_whose_health_fails_keeps_its_streams(start: Any, fleet: Fleet) -> None:
    (server,) = await fleet.start(1)
    fleet.list(server)
    held = server.respond = Held(head_first=True)
    stack = await fleet.stack(start)
    await eventually(lambda: stack.healthy("vllm", hosts=1), "Envoy's own check passed")
    headers = {"content-type": "application/json"}
    async with stack.client.post(f"{stack.url}/v1/chat/completions", data=BODY, headers=headers) as response:
        assert await response.content.readline() == b"data: first\n"
        server.health = 503
        await eventually(lambda: stack.healthy("vllm", hosts=0), "Envoy's own check fails")
        held.release()
        assert (await response.read()).endswith(b"data: [DONE]\n\n")


async def test_without_servers_the_answer_is_a_503_in_json_until_there_is_one(start: Any, fleet: Fleet) -> None:
    (server,) = await fleet.start(1)
    fleet.list()
    stack = await fleet.stack(start, change=lambda config: envoy_config.settings_of(config).update(ready_wait_s=0.1))
    for method, path, body in (("GET", "/v1/models", b""), ("POST", "/v1/chat/completions", BODY)):
        answer = await stack.request(method, path, body)
        assert answer.status == 503
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["error"]["type"] == "server_error"
    fleet.list(server)
    await until(stack, {server: HEALTHY})
    assert (await stack.request("GET", "/v1/models", b"")).port == server.port
    await eventually(lambda: _served_by(stack, server), "the service sends requests there")
    fleet.list()
    await until(stack, {})
    assert (await stack.request("GET", "/v1/models", b"")).status == 503


@pytest.mark.newest_only
async def test_envoy_keeps_its_hosts_while_the_service_is_away_and_follows_it_again(start: Any, fleet: Fleet) -> None:
    first, second = await fleet.start(2)
    fleet.list(first, second)
    # A service without servers is not ready for so long, and till then Envoy does not call it.
    soon = {"ready_wait_s": 0.1}
    stack = await fleet.stack(
        start, service="process", change=lambda config: envoy_config.settings_of(config).update(soon)
    )
    await until(stack, {first: HEALTHY, second: HEALTHY})
    await stack.process.kill()
    fleet.path.unlink()  # the source says nothing at first
    assert {(await stack.request()).port for _ in range(40)} == {first.port, second.port}
    await stack.start_service()

    async def streams() -> list[Json]:
        found: list[Json] = (await stack.status())["eds"]["streams"]
        return found

    async def called_again() -> bool:
        if not await stack.healthy("extproc"):
            return False
        return [stream["names"] for stream in await streams()] == [["vllm"]]

    await stack.process.until_answers()
    await eventually(called_again, "Envoy asks the new process")
    assert await hosts(stack) == {first.port: HEALTHY, second.port: HEALTHY}
    assert [stream["sent"] for stream in await streams()] == [None]
    fleet.list(second)
    await until(stack, {second: HEALTHY})


@pytest.mark.newest_only
async def test_two_envoys_are_told_the_same(start: Any, fleet: Fleet) -> None:
    first, second = await fleet.start(2)
    fleet.list(first)
    one = await fleet.stack(start)

    def beside(config: Json) -> None:
        config["node"]["id"] = "envoy-2"
        extproc = envoy_config.cluster(config, "extproc")["load_assignment"]["endpoints"][0]["lb_endpoints"]
        extproc[0]["endpoint"]["address"]["socket_address"]["port_value"] = one.grpc_port

    two = await fleet.stack(start, service="none", change=beside)
    for listed in ((first,), (first, second), (second,)):
        fleet.list(*listed)
        for stack in (one, two):
            await until(stack, dict.fromkeys(listed, HEALTHY))
    streams = (await one.status())["eds"]["streams"]
    assert [(stream["node"], stream["names"]) for stream in streams] == [("envoy-1", ["vllm"]), ("envoy-2", ["vllm"])]
    await eventually(lambda: _all_accepted(one), "both have accepted the present version")


async def _all_accepted(stack: Stack, *, hosts: int | None = None) -> bool:
    """Every Envoy has taken the present version, of so many hosts if that is said."""
    status = await stack.status()
    found = status["eds"]
    current = {stream["accepted"] for stream in found["streams"]} == {found["versions"]["vllm"]}
    return current and hosts in (None, len(status["pools"]["vllm"]["endpoints"]))


@pytest.mark.newest_only
async def test_of_two_services_the_other_takes_over(start: Any, fleet: Fleet) -> None:
    first, second = await fleet.start(2)
    fleet.list(first)
    grpc, admin = envoy_config.free_port(), envoy_config.free_port()

    def beside(config: Json) -> None:
        endpoints = envoy_config.cluster(config, "extproc")["load_assignment"]["endpoints"][0]["lb_endpoints"]
        other = json.loads(json.dumps(endpoints[0]))
        other["endpoint"]["address"]["socket_address"]["port_value"] = grpc
        endpoints.append(other)

    fleet.configure(config := envoy_config.shipped("EDS"))
    envoy_config.place(config, listener=0, admin=0, grpc=grpc, service_admin=admin, servers=())
    services = {
        "other": Subprocess(envoy_config.write(config, fleet.path.with_name("other.yaml")), f"127.0.0.1:{admin}")
    }
    await services["other"].start()
    try:
        await services["other"].until_answers()
        stack = await fleet.stack(start, service="process", change=beside)
        services["own"] = stack.process
        await until(stack, {first: HEALTHY})

        async def who() -> list[str]:
            return [name for name, service in services.items() if (await service.status())["eds"]["streams"]]

        (asked,) = await who()
        await services.pop(asked).kill()
        fleet.list(first, second)
        await until(stack, {first: HEALTHY, second: HEALTHY})
        assert await who() == list(services)
    finally:
        if "other" in services:
            await services["other"].stop()


async def test_what_envoy_refuses_is_told_counted_and_not_repeated(
    start: Any, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await fleet.start(2)
    fleet.list(first)
    stack = await fleet.stack(start)
    await until(stack, {first: HEALTHY})
    right = eds.assignment

    def wrong(name: str, members: Any) -> Assignment:
        made = right(name, members)
        message = ClusterLoadAssignment.FromString(made.resource)
        message.endpoints[0].lb_endpoints[0].endpoint.address.socket_address.address = "not an IP address"
        return Assignment("wrong", message.SerializeToString())

    monkeypatch.setattr(eds, "assignment", wrong)
    fleet.list(first, second)

    async def told() -> Json:
        found: Json = (await stack.status())["eds"]
        return found

    async def refused() -> bool:
        return (await told())["refused"] > 0

    await eventually(refused, "Envoy refuses what it cannot use")
    found = await told()
    (stream,) = found["streams"]
    assert "not an IP address" in stream["refusal"]
    assert stream["accepted"] != stream["sent"] == "wrong"
    assert await hosts(stack) == {first.port: HEALTHY}
    assert any("not an IP address" in warning for warning in (await stack.status())["warnings"])
    await asyncio.sleep(5 * eds.LOOK_S)
    assert ((await told())["refused"], (await told())["pushes"]) == (1, found["pushes"])
    monkeypatch.undo()
    fleet.list(second)
    await until(stack, {second: HEALTHY})
    await eventually(lambda: _all_accepted(stack), "Envoy accepts the next")
    assert (await told())["streams"][0]["refusal"] is None


@pytest.mark.newest_only
async def test_a_cluster_that_no_pool_has_does_not_keep_envoy_from_starting(start: Any, fleet: Fleet) -> None:
    (server,) = await fleet.start(1)
    fleet.list(server)

    def more(config: Json) -> None:
        vllm = envoy_config.cluster(config, "vllm")
        other = {key: vllm[key] for key in ("type", "connect_timeout", "eds_cluster_config")} | {"name": "other"}
        config["static_resources"]["clusters"].append(json.loads(json.dumps(other)))
        vllm["eds_cluster_config"]["service_name"] = "by another name"
        for each in config["static_resources"]["clusters"]:
            if each.get("type") == "EDS":
                each["eds_cluster_config"]["eds_config"]["initial_fetch_timeout"] = "0s"

    stack = await fleet.stack(start, change=more)
    await until(stack, {server: HEALTHY})
    assert await hosts(stack, "other") == {}


@pytest.mark.newest_only
async def test_an_envoy_that_starts_waits_for_the_source_as_long_as_its_file_says(start: Any, fleet: Fleet) -> None:
    (server,) = await fleet.start(1)

    def short(config: Json) -> None:
        envoy_config.settings_of(config)["ready_wait_s"] = 0.1
        envoy_config.cluster(config, "vllm")["eds_cluster_config"]["eds_config"]["initial_fetch_timeout"] = "1s"

    stack = await fleet.stack(start, change=short)

    async def asked() -> list[Json]:
        found: list[Json] = (await stack.status())["eds"]["streams"]
        return found

    assert [stream["sent"] for stream in await eventually(asked, "Envoy asks for its endpoints")] == [None]
    assert (await stack.request("GET", "/v1/models", b"")).status == 503
    fleet.list(server)
    await until(stack, {server: HEALTHY})
    assert (await stack.request("GET", "/v1/models", b"")).port == server.port
