"""The Kubernetes source over HTTP, against a small API server."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from extproc.config.discovery_settings import DiscoverySettings, KubernetesDiscoverySettings
from extproc.config.settings import PoolSettings
from extproc.discovery.choose import source_of
from extproc.discovery.kubernetes import connection
from extproc.discovery.kubernetes.connection import Connection, Query, refusal
from extproc.discovery.kubernetes.source import KubernetesSource
from extproc.discovery.source import EndpointSet
from tests.support import certificates
from tests.support.kubernetes_api import (
    NAMESPACE,
    KubernetesApi,
    inference_pool,
    kubernetes_api,
    pod,
    slice_endpoint,
    slice_of,
)


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with kubernetes_api() as running:
        yield running


def settings_for(api: KubernetesApi, folder: Path, resync_s: float = 60.0, **ways: Any) -> KubernetesDiscoverySettings:
    user = {"token": api.token or "any"}
    chosen = KubernetesDiscoverySettings(kubeconfig=str(api.kubeconfig(folder, **user)), **ways)
    return chosen.model_copy(update={"resync_s": resync_s})


class Following:
    """The sets of a source as they come."""

    def __init__(self, following: KubernetesSource) -> None:
        self.source = following
        self.sets: list[EndpointSet] = []

    async def run(self) -> None:
        async with aclosing(self.source.watch()) as sets:
            async for found in sets:
                self.sets.append(found)

    @property
    def last(self) -> list[str] | None:
        return [endpoint.address.text for endpoint in self.sets[-1]] if self.sets else None


async def until(condition: Callable[[], object], within_s: float = 8.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - what is waited for is spread over two parties
            await asyncio.sleep(0.005)


async def no_time(_: float) -> None:
    await asyncio.sleep(0.01)


@asynccontextmanager
async def following(settings: KubernetesDiscoverySettings) -> AsyncIterator[Following]:
    found = Following(KubernetesSource(settings, sleep=no_time))
    task = asyncio.create_task(found.run())
    try:
        yield found
        assert not task.done() or task.result() is None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("follow ")]


async def test_the_endpoints_of_a_service_are_followed(api: KubernetesApi, tmp_path: Path) -> None:
    api.put("endpointslices", slice_of("vllm", "s1", slice_endpoint("10.0.0.1", "u1")))
    api.put("endpointslices", slice_of("other", "s9", slice_endpoint("10.0.9.9", "u9")))
    async with following(settings_for(api, tmp_path, service="vllm")) as found:
        await until(lambda: found.last == ["10.0.0.1:8000"] and api.watches == 1)
        api.put("endpointslices", slice_of("vllm", "s2", slice_endpoint("10.0.0.2", "u2")))
        await until(lambda: found.last == ["10.0.0.1:8000", "10.0.0.2:8000"])
        leaving = slice_endpoint("10.0.0.1", "u1", ready=False, terminating=True)
        api.put("endpointslices", slice_of("vllm", "s1", leaving))
        await until(lambda: len(found.sets) == 3)
        assert [(e.uid, e.leaving) for e in found.sets[-1]] == [("u1", True), ("u2", False)]
        api.put("endpointslices", slice_of("vllm", "s1"))
        await until(lambda: found.last == ["10.0.0.2:8000"])
    assert {asked.path for asked in api.asked} == {f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"}
    assert (api.count("list", "endpointslices"), api.count("watch", "endpointslices")) == (1, 1)


async def test_pods_are_followed_as_they_come_leave_and_go(api: KubernetesApi, tmp_path: Path) -> None:
    api.put("pods", pod("a", "10.0.0.1"))
    api.put("pods", pod("x", "10.0.0.9", labels="app=other"))
    async with following(settings_for(api, tmp_path, selector={"app": "vllm"}, port=8000)) as found:
        await until(lambda: found.last == ["10.0.0.1:8000"] and api.watches)
        api.put("pods", pod("b", None))  # not yet scheduled
        api.put("pods", pod("b", "10.0.0.2"))
        await until(lambda: found.last == ["10.0.0.1:8000", "10.0.0.2:8000"])
        api.put("pods", pod("a", "10.0.0.1", deletionTimestamp="2026-01-01T00:00:09Z"))
        await until(lambda: found.sets[-1][0].leaving)
        api.delete("pods", "a")
        await until(lambda: found.last == ["10.0.0.2:8000"])
        api.put("pods", pod("b", "10.0.0.2", labels="app=quarantined"))  # it does not match any more
        await until(lambda: found.last == [])
        api.put("pods", pod("b", "10.0.0.2", uid="another"))
        await until(lambda: found.last == ["10.0.0.2:8000"])
        assert found.sets[-1][0].uid == "another"


async def test_an_inference_pool_is_followed_to_other_pods_and_ports(api: KubernetesApi, tmp_path: Path) -> None:
    api.put("pods", pod("a", "10.0.0.1", labels="app=one"))
    api.put("pods", pod("b", "10.0.0.2", labels="app=two"))
    api.put("inferencepools", inference_pool("main", {"app": "one"}, 8000))
    api.put("inferencepools", inference_pool("other", {"app": "two"}, 9000))
    async with following(settings_for(api, tmp_path, inference_pool="main")) as found:
        await until(lambda: found.last == ["10.0.0.1:8000"] and api.watches == 2)
        api.put("inferencepools", inference_pool("main", {"app": "one"}, 8000, 8001))
        await until(lambda: found.last == ["10.0.0.1:8000", "10.0.0.1:8001"])
        assert api.count("list", "pods") == 1
        api.put("inferencepools", inference_pool("main", {"app": "two"}, 8000))
        await until(lambda: found.last == ["10.0.0.2:8000"] and api.watches == 2)
        assert [] not in [[e.address.text for e in sets] for sets in found.sets]
        api.put("inferencepools", inference_pool("main", {}, 8000))
        await until(lambda: found.source.failing)
        assert list(found.source.failing.values()) == [
            "its selector is empty, which would make every pod of the namespace a server; the last servers known stand"
        ]
        api.delete("inferencepools", "main")
        await until(lambda: "no such InferencePool" in str(found.source.failing))
        assert found.last == ["10.0.0.2:8000"]
        api.put("inferencepools", inference_pool("main", {"app": "one"}, 8000))
        await until(lambda: found.last == ["10.0.0.1:8000"] and not found.source.failing)


async def test_a_long_list_comes_in_pages(api: KubernetesApi, tmp_path: Path) -> None:
    for number in range(120):
        api.put("pods", pod(f"p{number}", f"10.0.0.{number}"))
    async with following(settings_for(api, tmp_path, selector="app=vllm", port=8000)) as found:
        await until(lambda: found.sets)
        assert len(found.sets[0]) == 120
    assert [asked.query.get("continue") for asked in api.asked if asked.verb == "list"] == [None, "50", "100"]


async def test_pages_that_expire_are_asked_for_in_one_piece(api: KubernetesApi, tmp_path: Path) -> None:
    api.pages_expire = True
    for number in range(120):
        api.put("pods", pod(f"p{number}", f"10.0.0.{number}"))
    async with following(settings_for(api, tmp_path, selector="app=vllm", port=8000)) as found:
        await until(lambda: found.sets)
        assert len(found.sets[0]) == 120
    assert [asked.query.get("limit") for asked in api.asked if asked.verb == "list"] == ["50", "50", None]


async def test_a_missed_event_is_made_good_by_the_next_list(api: KubernetesApi, tmp_path: Path) -> None:
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(settings_for(api, tmp_path, resync_s=1.0, selector="app=vllm", port=8000)) as found:
        await until(lambda: found.last == ["10.0.0.1:8000"] and api.watches)
        api.loses_events = True
        api.put("pods", pod("b", "10.0.0.2"))
        api.delete("pods", "a")
        await until(lambda: found.last == ["10.0.0.2:8000"])
        assert found.source.failing == {}


async def test_bookmarks_are_asked_for_and_change_nothing(api: KubernetesApi, tmp_path: Path) -> None:
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(settings_for(api, tmp_path, selector="app=vllm", port=8000)) as found:
        await until(lambda: found.last and api.watches)
        api.bookmark()
        api.put("pods", pod("b", "10.0.0.2"))
        await until(lambda: len(found.sets) == 2)
    assert [asked.query["allowWatchBookmarks"] for asked in api.asked if asked.verb == "watch"] == ["true"]


@pytest.mark.parametrize("way", ["gone_status", "gone_event"])
async def test_a_version_that_is_gone_leads_to_a_new_list(api: KubernetesApi, tmp_path: Path, way: str) -> None:
    api.put("pods", pod("a", "10.0.0.1"))
    setattr(api, way, True)
    async with following(settings_for(api, tmp_path, selector="app=vllm", port=8000)) as found:
        await until(lambda: api.count("list", "pods") > 2)
        api.put("pods", pod("b", "10.0.0.2"))
        await until(lambda: found.last == ["10.0.0.1:8000", "10.0.0.2:8000"])


async def test_watches_that_break_lose_nothing(api: KubernetesApi, tmp_path: Path) -> None:
    api.put("pods", pod("a", "10.0.0.1"))
    async with following(settings_for(api, tmp_path, selector="app=vllm", port=8000)) as found:
        await until(lambda: found.last and api.watches)
        api.say(b'{"type": "ADDED", "object": {"metad')
        api.cut()
        api.put("pods", pod("b", "10.0.0.2"))
        await until(lambda: found.last == ["10.0.0.1:8000", "10.0.0.2:8000"] and api.watches)
        api.say(b"this is not JSON\n")
        await until(lambda: api.count("watch", "pods") == 3 and api.watches == 1)
        assert found.source.failing == {}
        assert len(found.sets) == 2


async def test_a_list_that_fails_at_first_is_no_empty_set(api: KubernetesApi, tmp_path: Path) -> None:
    api.put("pods", pod("a", "10.0.0.1"))
    api.answer = (500, {})
    async with following(settings_for(api, tmp_path, selector="app=vllm", port=8000)) as found:
        await until(lambda: found.source.failing)
        assert found.source.failing == {"pods (app=vllm)": "cannot list pods: 500 the test wants it so"}
        assert found.sets == []
        api.answer = None
        await until(lambda: found.last == ["10.0.0.1:8000"] and not found.source.failing)


async def test_the_last_set_stands_while_the_api_is_away(tmp_path: Path) -> None:
    async with kubernetes_api() as api:
        api.put("pods", pod("a", "10.0.0.1"))
        settings = settings_for(api, tmp_path, selector="app=vllm", port=8000)
        found = Following(KubernetesSource(settings, sleep=no_time))
        task = asyncio.create_task(found.run())
        await until(lambda: found.last == ["10.0.0.1:8000"])
    await until(lambda: found.source.failing)
    assert api.url.removeprefix("http://") in found.source.failing["pods (app=vllm)"].replace(":80/", "/")
    assert found.last == ["10.0.0.1:8000"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_what_is_forbidden_is_said_with_the_missing_rule(
    api: KubernetesApi, tmp_path: Path, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    api.forbidden = {(verb, "endpointslices")}
    async with following(settings_for(api, tmp_path, service="vllm")) as found:
        await until(lambda: found.source.failing.get("endpointslices (kubernetes.io/service-name=vllm)"))
        await until(lambda: f"may not {verb}" in str(found.source.failing))
        (said,) = found.source.failing.values()
        assert said == (
            f"may not {verb} endpointslices in namespace llm: the role needs verbs list and watch on resource"
            ' endpointslices in apiGroup "discovery.k8s.io" (envoy/kubernetes/base/rbac.yaml has it); the API server'
            f' says: endpointslices is forbidden: User "test" cannot {verb} resource "endpointslices"'
        )
        api.forbidden = set()
        api.put("endpointslices", slice_of("vllm", "s1", slice_endpoint("10.0.0.1", "u1")))
        await until(lambda: found.last == ["10.0.0.1:8000"] and not found.source.failing)
    assert [record.levelname for record in caplog.records if "may not" in record.message] == ["WARNING"]


async def test_a_missing_crd_is_said(api: KubernetesApi, tmp_path: Path) -> None:
    api.unknown = {"inferencepools"}
    async with following(settings_for(api, tmp_path, inference_pool="main")) as found:
        await until(lambda: found.source.failing)
        assert found.source.failing == {
            "inferencepools (metadata.name=main)": "the API server has no inferencepools of"
            " inference.networking.k8s.io/v1: is its CRD installed? (the server could not find the requested resource)"
        }


async def test_a_service_that_does_not_exist_is_an_empty_set_with_a_word(api: KubernetesApi, tmp_path: Path) -> None:
    async with following(settings_for(api, tmp_path, service="vlmm")) as found:
        await until(lambda: found.last == [])
        assert found.source.failing == {
            "endpointslices (kubernetes.io/service-name=vlmm)": "it has no EndpointSlices; is there a Service of this"
            " name, and does it select pods?"
        }


async def test_an_answer_that_is_no_list_is_waited_out(api: KubernetesApi, tmp_path: Path) -> None:
    async with following(settings_for(api, tmp_path, selector="app=vllm", port=8000)) as found:
        for body in (b"<html>a proxy's page</html>", b"[]", b'{"items": 5, "metadata": {}}', b"{}"):
            api.body = body
            asked = len(api.asked)
            await until(lambda asked=asked: len(api.asked) > asked + 2)  # type: ignore[misc]
            assert found.source.failing
        api.body = None
        await until(lambda: found.last == [] and not found.source.failing)


async def test_a_slow_api_is_given_up_in_time(
    api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_ANSWER_S", 0.05)
    api.slow_s = 0.5
    async with following(settings_for(api, tmp_path, selector="app=vllm", port=8000)) as found:
        await until(lambda: found.source.failing)
        assert found.source.failing == {"pods (app=vllm)": f"no answer in time from {api.url}"}


async def test_a_token_that_was_rotated_is_read_anew(api: KubernetesApi, tmp_path: Path) -> None:
    api.token = "first"
    api.put("pods", pod("a", "10.0.0.1"))
    token = tmp_path / "token"
    token.write_text("first")
    config = api.kubeconfig(tmp_path, tokenFile=str(token))
    settings = KubernetesDiscoverySettings(kubeconfig=str(config), selector="app=vllm", port=(8000,))
    async with following(settings) as found:
        await until(lambda: found.last == ["10.0.0.1:8000"] and api.watches)
        api.token = "second"
        api.cut()
        await until(lambda: found.source.failing)
        assert "the API server does not know us (401 Unauthorized)" in str(found.source.failing)
        token.write_text("second")
        api.put("pods", pod("b", "10.0.0.2"))
        await until(lambda: found.last == ["10.0.0.1:8000", "10.0.0.2:8000"] and not found.source.failing)
    assert {asked.token for asked in api.asked} == {"first", "second"}


async def test_in_a_pod_the_service_account_is_used_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca = certificates.authority(tmp_path, "ca")
    server = certificates.signed_by(ca, tmp_path, "api")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(server.cert, server.key)
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "token").write_text("mounted")
    (account / "ca.crt").write_bytes(ca.cert.read_bytes())
    (account / "namespace").write_text("llm\n")
    async with kubernetes_api(tls) as api:
        api.token = "mounted"
        api.put("pods", pod("a", "10.0.0.1"))
        host, port = api.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        reader = Connection(KubernetesDiscoverySettings(selector="app=vllm", port=(8000,)), account=account)
        try:
            items, _ = await reader.read(Query("", "v1", "pods"))
            assert [item["metadata"]["name"] for item in items] == ["a"]
            assert api.asked[-1].path == "/api/v1/namespaces/llm/pods"
            other = certificates.authority(tmp_path, "other")
            (account / "ca.crt").write_bytes(other.cert.read_bytes())
            await reader.close()
            with pytest.raises(connection.ApiError, match="certificate verify failed"):
                await reader.read(Query("", "v1", "pods"))
        finally:
            await reader.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no credentials for the Kubernetes API: kubeconfig "),
        ("clusters: [", "no credentials for the Kubernetes API: kubeconfig "),
        ("current-context: x\nclusters: []\ncontexts: []\n", "no credentials for the Kubernetes API: kubeconfig "),
    ],
)
async def test_a_kubeconfig_that_cannot_be_used_is_said(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    settings = KubernetesDiscoverySettings(kubeconfig=str(path), service="vllm")
    async with following(settings) as found:
        await until(lambda: found.source.failing)
        assert said in str(found.source.failing)
        assert found.sets == []


async def test_a_problem_is_logged_once_while_it_lasts(
    api: KubernetesApi, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    api.put("pods", pod("a", "10.0.0.1", annotations={"extproc/weight": "heavy"}))
    async with following(settings_for(api, tmp_path, selector="app=vllm", port=8000)) as found:
        await until(lambda: found.last and api.watches)
        api.put("pods", pod("b", "10.0.0.2"))
        await until(lambda: len(found.sets) == 2)
    assert len([record for record in caplog.records if "heavy" in record.message]) == 1


def test_the_settings_choose_the_source() -> None:
    found = DiscoverySettings(kubernetes=KubernetesDiscoverySettings(service="vllm"))
    assert isinstance(source_of(PoolSettings(discovery=found)), KubernetesSource)


def test_a_missing_package_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)
    monkeypatch.delitem(sys.modules, "kubernetes_asyncio.client", raising=False)
    with pytest.raises(ValueError, match=r"pip install 'vllm-extproc\[kubernetes\]'"):
        KubernetesSource(KubernetesDiscoverySettings(service="vllm"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "sets nothing to look for; set one of: service, selector, inference_pool"),
        ({"service": "a", "selector": "b", "port": 1}, "sets service and selector together"),
        ({"selector": "app=vllm"}, "selector needs a port"),
        ({"inference_pool": "p", "port": 8000}, "the InferencePool names the ports itself; remove port"),
        ({"service": "a", "port": 70000}, "70000 is no port; write a number from 1 to 65535, or the name of a port"),
        ({"service": "a", "port": ["http", None]}, "None is no port"),
        ({"service": "a", "resync_s": 1}, "greater than or equal to 5"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KubernetesDiscoverySettings(**given)


def test_every_status_has_its_words() -> None:
    pods = Query("", "v1", "pods")
    assert 'verbs list and watch on resource pods in apiGroup ""' in str(
        refusal(pods, "list", "a", status=403, said="")
    )
    assert refusal(pods, "list", "a", status=429, said="slow down", retry_after="3").retry_after_s == 3
    assert refusal(pods, "list", "a", status=503, said="", retry_after="Mon, 1 Jan").retry_after_s is None
    assert refusal(pods, "watch", "a", status=410, said="").gone
