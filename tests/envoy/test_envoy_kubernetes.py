"""Servers that Kubernetes runs, and the gateway's own end, with real Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.support import envoy_config
from tests.support.envoy_config import Json
from tests.support.envoy_stack import BODY, Stack, eventually
from tests.support.envoy_upstream import Held, Upstream
from tests.support.envoy_wheels import ROOT
from tests.support.kubernetes_api import KubernetesApi, kubernetes_api, slice_endpoint, slice_of

pytestmark = pytest.mark.newest_only
HEADERS = {"content-type": "application/json"}


class Cluster:
    """Servers as the endpoints of a Service; each has a slice of its own, for each has a port of its own here."""

    def __init__(self, api: KubernetesApi, folder: Path) -> None:
        self.api = api
        self.servers: list[Upstream] = []
        self._config = api.kubeconfig(folder, token="any")

    async def start(self, count: int) -> list[Upstream]:
        new = [await Upstream().start() for _ in range(count)]
        self.servers += new
        for server in new:
            self.show(server)
        return new

    def show(self, server: Upstream, **conditions: bool) -> None:
        endpoint = slice_endpoint("127.0.0.1", f"uid-{server.port}", **conditions)
        ports = [{"name": "http", "port": server.port, "protocol": "TCP"}]
        self.api.put("endpointslices", slice_of("vllm", f"s{server.port}", endpoint, ports=ports))

    def configure(self, config: Json) -> None:
        discovery = {"kubernetes": {"service": "vllm", "kubeconfig": str(self._config)}}
        envoy_config.settings_of(config)["pools"]["vllm"]["discovery"] = discovery
        envoy_config.cluster(config, "vllm")["health_checks"][0].update(interval="0.5s", no_traffic_interval="0.5s")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with kubernetes_api() as api:
        made = Cluster(api, tmp_path)
        yield made
        for server in made.servers:
            await server.stop()


async def health(stack: Stack) -> dict[int, str]:
    async with stack.client.get(f"{stack.envoy_admin}/clusters?format=json") as response:
        statuses = (await response.json(content_type=None))["cluster_statuses"]
    found = next(c for c in statuses if c["name"] == "vllm").get("host_statuses", ())
    return {h["address"]["socket_address"]["port_value"]: h["health_status"]["eds_health_status"] for h in found}


async def test_a_pod_that_terminates_gets_no_new_requests_and_keeps_its_stream(start: Any, cluster: Cluster) -> None:
    """cases f01 and f02: its metrics and its health are as good as ever."""
    leaving, staying = await cluster.start(2)
    both = {leaving.port: "HEALTHY", staying.port: "HEALTHY"}
    held = leaving.respond = Held(head_first=True)
    stack: Stack = await start(shape="EDS", servers=(), profile="least-loaded", change=cluster.configure)

    async def shown(wanted: dict[int, str]) -> bool:
        return await health(stack) == wanted

    await eventually(lambda: shown(both), "Envoy knows both pods")
    staying.waiting = 20  # so that the first request goes to the other
    await eventually(lambda: _waiting(stack, staying) == 20, "the service has seen who is busy")
    async with stack.client.post(f"{stack.url}/v1/chat/completions", data=BODY, headers=HEADERS) as stream:
        assert await stream.content.readline() == b"data: first\n"
        assert len(leaving.seen) == 1
        cluster.show(leaving, ready=False, serving=True, terminating=True)
        await eventually(lambda: shown({**both, leaving.port: "DRAINING"}), "Envoy knows that one leaves")
        for method, path, body in (("POST", "/v1/chat/completions", BODY), ("GET", "/v1/models", b"")):
            answers = [await stack.request(method, path, body) for _ in range(10)]
            assert {(answer.status, answer.port) for answer in answers} == {(200, staying.port)}
        held.release()
        assert (await stream.read()).endswith(b"data: [DONE]\n\n")
    cluster.api.delete("endpointslices", f"s{leaving.port}")
    await eventually(lambda: shown({staying.port: "HEALTHY"}), "the pod is gone")
    assert len([seen for seen in leaving.seen if seen.path == "/v1/chat/completions"]) == 1
    await stack.nothing_in_flight()


def _waiting(stack: Stack, server: Upstream) -> int | None:
    (pool,) = stack.app.router.pools
    found = [m.sample.waiting for m in pool.members if m.sample and m.endpoint.address.port == server.port]
    return found[0] if found else None


def gateway_container() -> Json:
    manifests = yaml.safe_load_all((ROOT / "envoy" / "kubernetes" / "base" / "gateway.yaml").read_text())
    deployment = next(item for item in manifests if item["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


async def test_the_gateways_hook_ends_when_the_last_stream_has(start: Any) -> None:
    stack: Stack = await start(servers=1)
    (server,) = stack.upstreams
    held = server.respond = Held(head_first=True)
    port = stack.envoy_admin.rpartition(":")[2]
    script: str = gateway_container()["lifecycle"]["preStop"]["exec"]["command"][2]
    script = script.replace("/9901", f"/{port}").replace("sleep 5", "sleep 0").replace("sleep 1", "sleep 0.1")
    async with stack.client.post(f"{stack.url}/v1/chat/completions", data=BODY, headers=HEADERS) as stream:
        assert await stream.content.readline() == b"data: first\n"
        hook = await asyncio.create_subprocess_exec("bash", "-c", script)
        try:
            await eventually(lambda: _asked_to_go(stack), "Envoy asks its clients to go elsewhere")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(hook.wait(), 1)
            held.release()
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
            assert await asyncio.wait_for(hook.wait(), 20) == 0
        finally:
            if hook.returncode is None:
                hook.kill()
                await hook.wait()


async def _asked_to_go(stack: Stack) -> bool:
    """While it drains in order, answers over HTTP/1.1 say that the connection closes."""
    async with aiohttp.ClientSession() as session, session.get(f"{stack.url}/v1/models") as response:
        return response.status == 200 and response.headers.get("connection") == "close"


async def test_each_gateway_has_its_pods_name_whatever_the_shared_file_says(envoy_binary: Path, tmp_path: Path) -> None:
    """The service tells the access logs of several Envoys apart by it. These are the manifest's own arguments."""
    port = envoy_config.free_port()
    config = tmp_path / "envoy.yaml"
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    node = {"id": "envoy-1", "cluster": "gateway"}
    config.write_text(yaml.safe_dump({"node": node, "admin": {"address": address}}))
    files = {"/etc/envoy/envoy.yaml": str(config), "$(POD_NAME)": "gateway-7"}
    arguments = [files.get(text, text) for text in gateway_container()["args"]]
    envoy = await asyncio.create_subprocess_exec(envoy_binary, *arguments, "--use-dynamic-base-id", "-l", "critical")
    try:
        info = await eventually(lambda: _server_info(port), "Envoy tells who it is")
    finally:
        envoy.terminate()
        await envoy.wait()
    assert info["node"]["id"] == "gateway-7"
    assert info["command_line_options"]["drain_time"] == "170s"


async def _server_info(port: int) -> Json | None:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/server_info") as response:
            found: Json = await response.json(content_type=None)
            return found
    except aiohttp.ClientError:
        return None
