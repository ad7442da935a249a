"""Does real Envoy accept what Istio makes of our EnvoyFilters, and does it follow the picks?"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.istio import istiod, manifests
from tests.istio.certificates import SPIFFE, authority, workload
from tests.istio.patching import Generated, Proxy, patched
from tests.istio.placing import Identity, Places, inbound, inbound_cluster, placed
from tests.istio.running import Running
from tests.support.envoy_config import free_port
from tests.support.envoy_sims import MODEL, NAME_HEADER, Sims
from tests.support.envoy_stack import DESTINATION, eventually
from tests.support.envoy_upstream import Upstream, status

Json = dict[str, Any]

pytestmark = pytest.mark.envoy

GATEWAY = Proxy("GATEWAY", "istio-system", {"istio": "ingressgateway"})
SIDECAR = Proxy("SIDECAR_OUTBOUND", "shop", {"extproc/client": "true"})
POOL, SERVICE = "outbound|8000||vllm.llm.svc.cluster.local", "outbound|9002||extproc.llm.svc.cluster.local"
OUTSIDE = {"vllm.llm.svc.cluster.local": "vllm.gpu.internal", "extproc.llm.svc.cluster.local": "extproc.gpu.internal"}
BODY = json.dumps({"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}).encode()
ATTEMPT = "x-envoy-attempt-count"
VERIFY = [sys.executable, str(manifests.FOLDER / "verify.py")]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    """What the mesh's CA has signed, for a gateway and for extproc, and what another one has."""
    folder = tmp_path_factory.mktemp("mesh")
    ca, other = authority(folder, "ca"), authority(folder, "other-ca")
    return {
        "gateway": workload(ca, folder, "gateway"),
        "extproc": workload(ca, folder, "extproc"),
        "stranger": workload(other, folder, "stranger"),
        "extproc.gpu.internal": workload(ca, folder, "outside", "DNS:extproc.gpu.internal"),
    }


def settings_for(port: int, ports: Sequence[int], *, folder: str = "extproc", **more: Any) -> Json:
    """The shipped settings, on loopback, with the servers that discovery would find."""
    found = manifests.settings(folder)
    found["grpc"]["listen"] = f"127.0.0.1:{port}"
    found["admin"]["listen"] = "127.0.0.1:0"
    found.pop("drain", None)
    found["pools"] = {"vllm": {"endpoints": [{"address": f"127.0.0.1:{port}"} for port in ports]}}
    return found | more


class Mesh:
    """The ports and the Envoy of one test."""

    def __init__(self, binary: Path, folder: Path, secrets: dict[str, Identity], ports: Sequence[int]) -> None:
        self.binary, self.folder, self.secrets, self.ports = binary, folder, secrets, list(ports)
        self.grpc, self.listener, self.admin, self.inbound = (free_port() for _ in range(4))

    def bootstrap(
        self, generated: Generated, proxy: Proxy, *filters: Json, sidecar: bool = True, identity: str = "gateway"
    ) -> Json:
        """Patched, with the sidecar of extproc in the same process (`sidecar`), or extproc without one."""
        made, patches = patched(generated, filters, proxy)
        self.unmatched = [patch for patch in patches if not patch.applied]
        _be_patient(made)
        names = [cluster["name"] for cluster in made.clusters]
        service = next(name for name in names if name.startswith("outbound|9002||"))
        pool = next(name for name in names if name.startswith("outbound|8000||"))
        where = self.inbound if sidecar else self.grpc
        more = [inbound(self.inbound, "inbound|9002||", self.secrets["extproc"])] if sidecar else []
        if sidecar:
            made.clusters.append(inbound_cluster("inbound|9002||", ("127.0.0.1", self.grpc)))
        places = Places(
            self.listener,
            self.admin,
            {service: [("127.0.0.1", where)], pool: [("127.0.0.1", port) for port in self.ports]},
            self.secrets[identity],
            SPIFFE + "extproc",
            more,
        )
        return placed(made, places)

    def running(self, bootstrap: Json, **settings: Any) -> Running:
        shipped = settings_for(self.grpc, self.ports, **settings)
        return Running(self.binary, self.folder, bootstrap, shipped, port=self.listener, servers=len(self.ports))


def _be_patient(generated: Generated) -> None:
    """A busy machine may take longer than the shipped second; what a test is about never waits for it."""
    for listener in generated.listeners:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        for each in manager["http_filters"]:
            if each["name"] == "extproc":
                each["typed_config"]["message_timeout"] = "20s"


def gateway_and_filters() -> tuple[Generated, Proxy, Json]:
    return istiod.gateway(manifests.mesh_objects()), GATEWAY, manifests.envoy_filter("gateway")


def sidecar_and_filters() -> tuple[Generated, Proxy, Json]:
    return istiod.sidecar(manifests.mesh_objects()), SIDECAR, manifests.envoy_filter("sidecar")


def verified(dump: str, *options: str) -> tuple[int, list[str]]:
    """What envoy/istio/verify.py says of a dump: its exit status, and what is wrong."""
    result = subprocess.run([*VERIFY, *options], input=dump, capture_output=True, text=True, check=False, timeout=30)
    assert not result.stderr, result.stderr
    return result.returncode, [line for line in result.stdout.splitlines() if not line.startswith("ok ")]


@pytest.mark.parametrize("role", [gateway_and_filters, sidecar_and_filters], ids=["gateway", "sidecar"])
def test_envoy_accepts_it(envoy_binary: Path, tmp_path: Path, secrets: dict[str, Identity], role: Any) -> None:
    mesh = Mesh(envoy_binary, tmp_path, secrets, [free_port()])
    file = tmp_path / "bootstrap.json"
    file.write_text(json.dumps(mesh.bootstrap(*role())))
    assert mesh.unmatched == []
    command = [str(envoy_binary), "--mode", "validate", "-c", str(file), "--log-level", "warning"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.newest_only
@pytest.mark.parametrize("role", [gateway_and_filters, sidecar_and_filters], ids=["gateway", "sidecar"])
async def test_requests_go_where_the_service_says(
    envoy_binary: Path, tmp_path: Path, secrets: dict[str, Identity], role: Any
) -> None:
    """Through mutual TLS to extproc's sidecar, to simulated vLLM servers; the access log tells how all ended."""
    async with Sims("s", 3) as sims:
        mesh = Mesh(envoy_binary, tmp_path, secrets, list(sims.ports.values()))
        async with mesh.running(mesh.bootstrap(*role())) as running:
            answers = [await running.request(body=BODY) for _ in range(9)]
            assert [answer.status for answer in answers] == [200] * 9
            assert running.picks == 9
            ports = sims.ports
            by_pick = [reservation.pick.address.port for reservation in running.app.router.ledger.recent]
            assert [ports[answer.headers[NAME_HEADER]] for answer in answers] == by_pick
            await eventually(lambda: running.outcomes() == {"ok": 9}, "the access log told how all ended")
            assert running.in_flight() == 0
            assert running.app.router.ledger.served_elsewhere == 0
            assert (await running.request("GET", "/v1/models", b"")).status == 200
            assert running.picks == 9  # bodyless: Envoy alone chooses (case a15)
            stats = await running.stats()
            assert sum(value for key, value in stats.items() if key.endswith("ssl.handshake")) >= 1
            assert verified(await running.dump()) == (0, [])


async def test_a_gateway_keeps_the_rules(envoy_binary: Path, tmp_path: Path, secrets: dict[str, Identity]) -> None:
    """The client has no say, the limit holds, a dead first choice is followed by the second, the rest passes by."""
    upstreams = [await Upstream().start() for _ in range(3)]
    try:
        mesh = Mesh(envoy_binary, tmp_path, secrets, [upstream.port for upstream in upstreams])
        async with mesh.running(mesh.bootstrap(*gateway_and_filters())) as running:
            forged = {DESTINATION: "127.0.0.1:1", "x-gateway-pick-id": "forged"}
            answer = await running.request(headers=forged)
            assert answer.status == 200
            (seen,) = [each for upstream in upstreams for each in upstream.seen]
            assert seen.headers[DESTINATION].split(",")[0] == f"127.0.0.1:{answer.port}"
            assert seen.headers["x-gateway-pick-id"] != "forged"

            got = await running.request("GET", "/v1/models", b"", forged)
            assert got.status == 200
            bodyless = next(each for upstream in upstreams for each in upstream.seen if each.method == "GET")
            assert DESTINATION not in bodyless.headers

            large = b'{"prompt": "%s"}' % (b"a" * (3 << 20))
            assert (await running.request("POST", "/v1/completions", large)).status == 200
            refused = await running.request("POST", "/v1/completions", b"a" * ((16 << 20) + 1))
            assert refused.status == 413  # case a01
            assert "application/json" in refused.headers["content-type"]
            assert refused.json()["error"]["code"] == 413

            picks = running.picks
            socket = await running.client.ws_connect(f"{running.url}/v1/realtime", headers={"host": "vllm.llm"})
            await socket.send_str("hello")
            assert (await asyncio.wait_for(socket.receive(), 10)).data == "hello"  # case a13
            await socket.close()
            assert running.picks == picks

            upstreams[0].respond = status(503)
            for _ in range(30):  # one of them is its first choice
                assert (await running.request()).status == 200
                retried = [each for u in upstreams[1:] for each in u.seen if each.headers[ATTEMPT] == "2"]
                if retried:
                    break
            assert retried, "the second choice follows a first one that is full"
    finally:
        for upstream in upstreams:
            await upstream.stop()


@pytest.mark.newest_only
async def test_other_hosts_of_a_sidecar_are_not_touched(
    envoy_binary: Path, tmp_path: Path, secrets: dict[str, Identity]
) -> None:
    """They share the port, the listener and its filters. With extproc down all is served all the same."""
    upstreams = [await Upstream().start() for _ in range(2)]
    try:
        mesh = Mesh(envoy_binary, tmp_path, secrets, [upstream.port for upstream in upstreams])
        async with mesh.running(mesh.bootstrap(*sidecar_and_filters())) as running:
            other = await running.request(headers={"host": "other.shop"})
            assert other.status == 204
            assert await running.ext_proc_stat("streams_started") == 0
            assert (await running.request()).status == 200
            assert await running.ext_proc_stat("streams_started") == 1
            await running.stop_service()
            assert [(await running.request()).status for _ in range(3)] == [200] * 3  # case a21
            assert await running.ext_proc_stat("failure_mode_allowed") == 3
            running.log.clear()  # Envoy warns of a service that is away
    finally:
        for upstream in upstreams:
            await upstream.stop()


# Case a18: the order of EnvoyFilters, and those that match nothing.

AUTHORIZER = {
    "@type": istiod.TYPE + "envoy.extensions.filters.http.rbac.v3.RBAC",  # allows all: no rules
}


def authorization(created: str, priority: int = 0) -> Json:
    """Somebody else's EnvoyFilter: a WASM plugin's place is taken by a filter that does nothing."""

    def insert(name: str, config: Json) -> Json:
        chain = {
            "name": "envoy.filters.network.http_connection_manager",
            "subFilter": {"name": "envoy.filters.http.router"},
        }
        match = {"context": "GATEWAY", "listener": {"filterChain": {"filter": chain}}}
        value = {"name": name, "typed_config": config}
        return {"applyTo": "HTTP_FILTER", "match": match, "patch": {"operation": "INSERT_BEFORE", "value": value}}

    return {
        "metadata": {"name": "auth", "namespace": "istio-system", "creationTimestamp": created},
        "spec": {
            "priority": priority,
            "workloadSelector": {"labels": {"istio": "ingressgateway"}},
            "configPatches": [insert("company.wasm", istiod.NO_OP), insert("company.ext_authz", AUTHORIZER)],
        },
    }


def chain_of(bootstrap: Json) -> list[str]:
    manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return [each["name"] for each in manager["http_filters"]]


@pytest.mark.newest_only
@pytest.mark.parametrize("created", ["2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z"], ids=["older", "newer"])
async def test_beside_an_envoyfilter_of_others_ours_stands_before_the_router(
    envoy_binary: Path, tmp_path: Path, secrets: dict[str, Identity], created: str
) -> None:
    """case a18: in either order of creation"""
    upstream = await Upstream().start()
    try:
        mesh = Mesh(envoy_binary, tmp_path, secrets, [upstream.port])
        generated, proxy, ours = gateway_and_filters()
        ours["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
        bootstrap = mesh.bootstrap(generated, proxy, ours, authorization(created))
        expected = ["company.wasm", "company.ext_authz", "extproc", "extproc.buffer", "extproc.headers"]
        assert chain_of(bootstrap)[-6:] == [*expected, "envoy.filters.http.router"]
        async with mesh.running(bootstrap) as running:
            assert (await running.request()).status == 200
            assert running.picks == 1
            assert verified(await running.dump()) == (0, [])
    finally:
        await upstream.stop()


def _nothing(filters: Json) -> None:
    filters["spec"]["workloadSelector"]["labels"] = {"istio": "another"}


def _no_route(filters: Json) -> None:
    for patch in filters["spec"]["configPatches"]:
        if patch["applyTo"] == "HTTP_ROUTE":
            patch["match"]["routeConfiguration"]["vhost"]["route"]["name"] = "renamed"


def _no_router(filters: Json) -> None:
    for patch in filters["spec"]["configPatches"]:
        if patch["patch"]["operation"] == "INSERT_BEFORE":
            patch["match"]["listener"]["filterChain"]["filter"]["subFilter"]["name"] = "added.later"


def _twice(filters: Json) -> None:
    patches = filters["spec"]["configPatches"]
    patches += [patch for patch in patches if patch["patch"]["operation"] == "INSERT_BEFORE"]


def _no_authority(filters: Json) -> None:
    for patch in filters["spec"]["configPatches"]:
        if patch["patch"]["value"].get("name") == "extproc":
            del patch["patch"]["value"]["typed_config"]["grpc_service"]["envoy_grpc"]["authority"]


def _wrong_port(filters: Json) -> None:
    for patch in filters["spec"]["configPatches"]:
        if patch["applyTo"] in ("LISTENER", "CLUSTER"):
            for kind in ("listener", "cluster"):
                patch["match"].get(kind, {}).update({"portNumber": 80} if kind in patch["match"] else {})


MISTAKES = {
    "the selector": (_nothing, ["filter extproc once", "switches the filters on", "follows the pick", "hears how"]),
    "the route's name": (_no_route, ["the HTTP_ROUTE patch has not matched"]),
    "the anchor": (_no_router, ["the HTTP_FILTER patches have not matched"]),
    "applied twice": (_twice, ["but it is there 2 times: two EnvoyFilters add it", "in order"]),
    "the authority": (_no_authority, ["give envoy_grpc an authority"]),
    "the ports": (_wrong_port, ["the LISTENER patch has not matched", "the CLUSTER patch has not matched"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_filter_that_matches_nothing_shows(tmp_path: Path, secrets: dict[str, Identity], mistake: str) -> None:
    """Case a18: Istio says nothing; verify.py does."""
    mesh = Mesh(Path(), tmp_path, secrets, [free_port()])
    generated, proxy, filters = gateway_and_filters()
    change, expected = MISTAKES[mistake]
    change(filters)
    resources = mesh.bootstrap(generated, proxy, filters)["static_resources"]
    managers = [each["filter_chains"][0]["filters"][0]["typed_config"] for each in resources["listeners"]]
    dump = {
        "configs": [
            {"static_listeners": [{"listener": each} for each in resources["listeners"]]},
            {"static_route_configs": [{"route_config": each["route_config"]} for each in managers]},
            {"static_clusters": [{"cluster": each} for each in resources["clusters"]]},
        ]
    }
    code, wrong = verified(json.dumps(dump))
    assert code == 1
    for words in expected:
        assert any(words in line for line in wrong), f"{words!r} is not in {wrong}"


def test_what_is_no_dump_is_refused() -> None:
    for text in ("", "[]", "{}", '{"configs": 5}', "upstream connect error"):
        result = subprocess.run(VERIFY, input=text, capture_output=True, text=True, check=False, timeout=30)
        assert result.returncode == 2
        assert "no dump of Envoy's configuration" in result.stderr


# Case a20: TLS on one side only, and with a CA of one's own.


async def _falls_back(running: Running, mesh: Mesh) -> None:
    """A mismatch looks like a dead service: gRPC status 14, and requests flow by the fallback policy."""
    assert [(await running.request()).status for _ in range(3)] == [200] * 3
    assert running.picks == 0
    assert await running.ext_proc_stat("failure_mode_allowed") == 3
    await eventually(
        lambda: sum("Received gRPC error on stream: 14" in line for line in running.log) == 3, "the log names status 14"
    )
    running.log.clear()


@pytest.mark.newest_only
@pytest.mark.parametrize("kind", ["no sidecar beside extproc", "a stranger's certificate"])
async def test_a_mismatch_of_mutual_tls_looks_like_a_dead_service(
    envoy_binary: Path, tmp_path: Path, secrets: dict[str, Identity], kind: str
) -> None:
    """case a20"""
    upstream = await Upstream().start()
    try:
        mesh = Mesh(envoy_binary, tmp_path, secrets, [upstream.port])
        plain = kind == "no sidecar beside extproc"
        identity = "gateway" if plain else "stranger"
        bootstrap = mesh.bootstrap(*gateway_and_filters(), sidecar=not plain, identity=identity)
        async with mesh.running(bootstrap) as running:
            await _falls_back(running, mesh)
    finally:
        await upstream.stop()


def outside() -> tuple[Generated, Proxy, Json]:
    """The gateway's filters for servers outside of the cluster: the hosts are other ones."""
    text = json.dumps([manifests.objects("gateway/gateway.yaml"), manifests.envoy_filter("gateway")])
    for inside, out in OUTSIDE.items():
        text = text.replace(inside, out)
    gateway, filters = json.loads(text)
    entries = manifests.objects("outside/service-entries.yaml", "outside/destination-rules.yaml")
    return istiod.gateway([*gateway, *entries]), GATEWAY, filters


@pytest.mark.newest_only
@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "another CA"])
async def test_extproc_outside_of_the_mesh_is_verified_by_its_ca(
    envoy_binary: Path, tmp_path: Path, secrets: dict[str, Identity], trusted: bool
) -> None:
    """case a20"""
    upstream = await Upstream().start()
    try:
        mesh = Mesh(envoy_binary, tmp_path, secrets, [upstream.port])
        bootstrap = mesh.bootstrap(*outside(), sidecar=False, identity="gateway" if trusted else "stranger")
        assert mesh.unmatched == []
        own = secrets["extproc.gpu.internal"]
        tls = {"cert_file": str(own.cert), "key_file": str(own.key)}
        grpc = {"listen": f"127.0.0.1:{mesh.grpc}", "tls": tls}
        async with mesh.running(bootstrap, folder="outside", grpc=grpc) as running:
            if not trusted:
                await _falls_back(running, mesh)
                return
            assert (await running.request()).status == 200
            assert running.picks == 1
            names = ("--pool", POOL, "--service", SERVICE)
            renamed = [next((name.replace(a, b) for a, b in OUTSIDE.items() if a in name), name) for name in names]
            assert verified(await running.dump(), *renamed) == (0, [])
    finally:
        await upstream.stop()
