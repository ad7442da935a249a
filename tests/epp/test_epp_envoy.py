"""Is the service, as envoy/istio/inference-pool runs it, an endpoint picker to real Envoy configured as Istio does it?

Over TLS with the certificate that the manifest has made, which nobody verifies; with its own settings, and the servers
from a Kubernetes API that has the manifest's InferencePool.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.epp import inference_gateway
from tests.epp.inference_gateway import PICKER, POOL
from tests.istio import manifests
from tests.istio.placing import Places, placed
from tests.istio.running import Running
from tests.support.envoy_config import free_port
from tests.support.envoy_stack import DESTINATION, digest, eventually
from tests.support.envoy_upstream import Held, Upstream, status
from tests.support.kubernetes_api import KubernetesApi, kubernetes_api, pod

Json = dict[str, Any]

pytestmark = pytest.mark.envoy

TELLS_SERVED = (1, 38)  # Envoy knows selected_host_key from then on


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """What the pod's own command makes, in the place of /tls."""
    folder = tmp_path_factory.mktemp("tls")
    (patch, _service) = manifests.objects("inference-pool/extproc.patch.yaml")
    (init,) = patch["spec"]["template"]["spec"]["initContainers"]
    command = [word.replace("/tls/", f"{folder}/") for word in init["command"]]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert result.returncode == 0, result.stderr
    assert (folder / "tls.key").stat().st_mode & 0o077 == 0, "the key is for nobody else"
    return {key: value.replace("/tls/", f"{folder}/") for key, value in _settings()["grpc"]["tls"].items()}


def _settings() -> Json:
    return manifests.settings("inference-pool")


class Pool:
    """An InferencePool on loopback: one pod, with a server on each of its target ports."""

    def __init__(self, binary: Path, folder: Path, tls: Json, upstreams: list[Upstream], api: KubernetesApi) -> None:
        self.upstreams, self.api = upstreams, api
        self._binary, self._folder, self._tls = binary, folder, tls
        self.grpc, self.listener, self.admin = (free_port() for _ in range(3))
        (pool,) = manifests.objects("inference-pool/inference-pool.yaml")
        pool["spec"]["targetPorts"] = [{"number": upstream.port} for upstream in upstreams]
        api.put("inferencepools", pool)
        api.put("pods", pod("vllm-0", "127.0.0.1"))

    @property
    def addresses(self) -> list[str]:
        return [upstream.address for upstream in self.upstreams]

    def running(
        self, scheduling: Json | None = None, picker: Sequence[tuple[str, int]] | None = None, **gateway: Any
    ) -> Running:
        """`picker`: the endpoints of the picker's cluster, if not what runs."""
        found = _settings()
        found.pop("drain")
        found["grpc"] = {"listen": f"127.0.0.1:{self.grpc}", "tls": self._tls}
        found["admin"]["listen"] = "127.0.0.1:0"
        found["pools"]["vllm"]["discovery"]["kubernetes"]["kubeconfig"] = str(self.api.kubeconfig(self._folder))
        found["scheduling"] = scheduling or {}
        endpoints: Mapping[str, Sequence[tuple[str, int]]] = {
            PICKER: [("127.0.0.1", self.grpc)] if picker is None else picker,
            POOL: [("127.0.0.1", upstream.port) for upstream in self.upstreams],
        }
        bootstrap = placed(inference_gateway.gateway(**gateway), Places(self.listener, self.admin, endpoints))
        count = len(self.upstreams)
        return Running(self._binary, self._folder, bootstrap, found, port=self.listener, servers=count)


@pytest.fixture
async def pool(envoy_binary: Path, tmp_path: Path, tls: Json) -> AsyncIterator[Pool]:
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(kubernetes_api())
        upstreams = []
        for _ in range(3):
            upstreams.append(await Upstream().start())
            stack.push_async_callback(upstreams[-1].stop)
        yield Pool(envoy_binary, tmp_path, tls, upstreams, api)


def _version(binary: Path) -> tuple[int, ...]:
    told = subprocess.run([str(binary), "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    found = re.search(r"/(\d+)\.(\d+)\.\d+/", told)
    assert found, told
    return int(found[1]), int(found[2])


@pytest.fixture
def tells_served(envoy_binary: Path) -> bool:
    return _version(envoy_binary) >= TELLS_SERVED


async def test_requests_go_where_the_picker_says_and_answers_stream(pool: Pool, tells_served: bool) -> None:
    scheduling = {"profile": "least-loaded"}
    async with pool.running(scheduling, tells_served=tells_served) as running:
        forged = {DESTINATION: "127.0.0.1:1"}
        for _ in range(6):
            answer = await running.request(headers=forged)
            assert answer.status == 200
            pick = running.app.router.ledger.recent[-1].pick
            assert answer.port == pick.address.port
            seen = next(upstream for upstream in pool.upstreams if upstream.port == answer.port).seen[-1]
            assert seen.headers[DESTINATION] == pick.destination  # as in the metadata, by which Envoy went
        assert running.picks == 6
        assert await running.ext_proc_stat("streams_failed") == 0

        large = b'{"prompt": "%s"}' % (b"a" * (3 << 20))  # more than Envoy's buffers: it streams
        answer = await running.request("POST", "/v1/completions", large)
        assert (answer.status, answer.json()["sha256"]) == (200, digest(large))
        refused = await running.request("POST", "/v1/completions", b"a" * ((16 << 20) + 1))
        assert refused.status == 413  # case a01: by the picker itself
        assert refused.json()["error"]["type"] == "invalid_request_error"

        held = Held(head_first=True)
        for upstream in pool.upstreams:
            upstream.respond = held
        async with running.client.post(
            f"{running.url}/v1/completions", data=b'{"prompt": "x", "stream": true}'
        ) as open_:
            first = await asyncio.wait_for(open_.content.readany(), 10)
            assert first == b"data: first\n\n"  # while the server still holds the rest back
            assert running.in_flight() == 1
            completion = running.app.router.ledger.recent[-1].completion
            assert completion is not None
            assert completion.status == 200
            served = running.app.router.ledger.recent[-1].pick.address if tells_served else None
            assert completion.served == served
            held.release()
            assert await open_.read() == b"data: [DONE]\n\n"
        await eventually(lambda: running.in_flight() == 0, "nothing is in flight")


async def test_a_full_first_choice_is_followed_by_the_next_and_the_gateway_tells_who_served(
    pool: Pool, tells_served: bool
) -> None:
    full, second, third = pool.upstreams
    full.respond = status(503)
    second.waiting, third.waiting = 5, 9
    async with pool.running({"profile": "least-loaded"}, tells_served=tells_served) as running:
        shown = {upstream.address: upstream.waiting for upstream in pool.upstreams}
        await eventually(
            lambda: {str(m.address): m.sample.waiting for m in running.members if m.sample} == shown, "load is known"
        )
        answer = await running.request()
        assert (answer.status, answer.port) == (200, second.port)
        reservation = running.app.router.ledger.recent[-1]
        assert reservation.pick.destination == ",".join(pool.addresses)
        assert reservation.completion is not None
        if tells_served:
            assert str(reservation.completion.served) == second.address
            assert [str(member.address) for member in reservation.left] == [full.address]
            assert running.app.router.ledger.moved == 1
        else:
            assert reservation.completion.served is None
        await eventually(lambda: running.in_flight() == 0, "nothing is in flight")


async def test_the_errors_of_the_protocol_reach_the_client(pool: Pool) -> None:
    """503 for an empty or unknown subset (case b08) and without endpoints, 429 when all are full."""
    one, two, _three = pool.addresses
    subsets = {"/one/": [two], "/two/": [one, two], "/none/": [], "/unknown/": ["192.0.2.1:8000"]}
    scheduling = {"shed": [{"waiting": 20, "priority": 0}]}
    async with pool.running(scheduling, tells_served=False, subsets=subsets) as running:
        spoofed = {"x-gateway-destination-endpoint-subset": one}
        for _ in range(4):
            assert (await running.request(path="/one/v1/completions", headers=spoofed)).port == pool.upstreams[1].port
        within = [await running.request(path="/two/v1/completions") for _ in range(6)]
        assert {f"127.0.0.1:{answer.port}" for answer in within} <= {one, two}
        for path in ("/none/v1/completions", "/unknown/v1/completions"):
            refused = await running.request(path=path)
            assert (refused.status, refused.json()["error"]["code"]) == (503, "no_endpoints")
            assert refused.headers["retry-after"]

        reached = sum(len(upstream.seen) for upstream in pool.upstreams)
        for upstream in pool.upstreams:
            upstream.waiting = 50
        await eventually(lambda: all(m.sample and m.sample.waiting == 50 for m in running.members), "all are full")
        dropped = await running.request(body=b'{"prompt": "x", "priority": 1}')
        assert (dropped.status, dropped.json()["error"]["type"]) == (429, "rate_limit_error")
        assert int(dropped.headers["retry-after"]) >= 1
        assert (await running.request(body=b'{"prompt": "x", "priority": -1}')).status == 200

        pool.api.delete("pods", "vllm-0")
        await eventually(lambda: not running.members, "the pod has gone")
        gone = await running.request()
        assert (gone.status, gone.json()["error"]["code"]) == (503, "no_endpoints")
        assert sum(len(upstream.seen) for upstream in pool.upstreams) == reached + 1


@pytest.mark.newest_only
@pytest.mark.parametrize("fail_open", [True, False], ids=["FailOpen", "FailClose"])
async def test_what_becomes_of_a_request_while_the_picker_is_away(pool: Pool, fail_open: bool) -> None:
    """Case a21. FailOpen helps once the picker is out of the cluster, and with nothing of a body sent. Between, while
    connections are refused, Envoy has sent a part of it to nobody and cannot go on."""
    async with pool.running(tells_served=False, fail_open=fail_open) as running:
        assert (await running.request()).status == 200
        await running.stop_service()
        assert (await running.request()).status >= 500
        assert (await running.request("GET", "/v1/models", b"")).status == (200 if fail_open else 500)
        running.log.clear()
    async with pool.running(tells_served=False, fail_open=fail_open, picker=()) as running:
        assert (await running.request()).status == (200 if fail_open else 500)
        assert running.picks == 0
        running.log.clear()
