"""Is the service reached over TLS as docs/envoy.md shows it, and what does a mismatch look like?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import certificates, envoy_config
from tests.support.envoy_docs import yaml_under
from tests.support.envoy_stack import DESTINATION, Stack, eventually


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files that the page names."""
    folder = tmp_path_factory.mktemp("tls")
    ca = certificates.authority(folder, "ca")
    for name, file in (("service", "tls"), ("envoy", "envoy")):
        signed = certificates.signed_by(ca, folder, name)
        signed.cert.rename(folder / f"{file}.crt")
        signed.key.rename(folder / f"{file}.key")
    ca.cert.rename(folder / "ca.crt")
    return folder


def _shown(folder: Path) -> tuple[Any, Any]:
    """The page's `grpc.tls` and `transport_socket`, with mutual TLS, on this folder's files."""
    places = {"/etc/extproc/": f"{folder}/", "extproc.example": "localhost"}
    settings, cluster, _istio = yaml_under("envoy.md", "TLS between Envoy and the service", replace=places)
    return settings["grpc"]["tls"], cluster["transport_socket"]


def _tls(folder: Path, *, service: bool = True, envoy: bool = True, mutual: bool = False) -> Callable[[Any], None]:
    tls, transport_socket = _shown(folder)
    if not mutual:
        del tls["client_ca_file"]
        del transport_socket["typed_config"]["common_tls_context"]["tls_certificates"]

    def change(config: Any) -> None:
        if service:
            envoy_config.settings_of(config)["grpc"]["tls"] = tls
        if envoy:
            envoy_config.cluster(config, "extproc")["transport_socket"] = transport_socket

    return change


@pytest.mark.parametrize("shape", envoy_config.SHAPES)
@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual"])
async def test_picks_are_followed_over_tls(start: Any, folder: Path, shape: str, mutual: bool) -> None:
    """The health check, the exchange and the access log all pass through the TLS connection."""
    stack: Stack = await start(shape=shape, profile="least-loaded", change=_tls(folder, mutual=mutual))
    for index in (1, 2, 0):
        favourite = stack.only(index)
        await stack.until_waiting_is_known()
        assert [(await stack.request()).port for _ in range(3)] == [favourite.port] * 3
    assert await stack.picks() == 9

    async def told() -> bool:
        return await stack.outcomes() == {"ok": 9}

    await eventually(told, "the access log told how all ended")
    stats = await stack.stats()
    assert stats["cluster.extproc.ssl.handshake"] >= 1
    assert (await stack.status())["requests"]["served_elsewhere"] == 0


def _mismatch(folder: Path, kind: str) -> Callable[[Any], None]:
    mutual = kind == "no certificate of Envoy"
    service, envoy = _tls(folder, envoy=False, mutual=mutual), _tls(folder, service=False)
    newer = kind == "TLS 1.3 alone"

    def change(config: Any) -> None:
        if kind != "envoy only":
            service(config)
        if kind != "service only":
            envoy(config)
        if newer:
            envoy_config.settings_of(config)["grpc"]["tls"]["min_version"] = "1.3"
        if kind == "no ALPN":
            context = envoy_config.cluster(config, "extproc")["transport_socket"]["typed_config"]
            del context["common_tls_context"]["alpn_protocols"]

    return change


@pytest.mark.parametrize("kind", ["service only", "envoy only", "no certificate of Envoy", "no ALPN", "TLS 1.3 alone"])
async def test_a_mismatch_looks_like_a_dead_service(start: Any, folder: Path, kind: str) -> None:
    """Case a20: gRPC status 14 for each request in Envoy's log, and all are served by the fallback policy."""
    stack: Stack = await start(change=_mismatch(folder, kind), await_used=False)
    assert [(await stack.request()).status for _ in range(10)] == [200] * 10
    assert all(DESTINATION not in seen.headers for seen in stack.seen())
    assert await stack.picks() == 0
    assert await stack.ext_proc_stat("streams_failed") == 10
    assert await stack.ext_proc_stat("failure_mode_allowed") == 10
    assert await stack.healthy("extproc", hosts=0)
    assert (await stack.stats())["cluster.extproc.health_check.network_failure"] >= 1

    def logged() -> bool:
        return sum("Received gRPC error on stream: 14" in line for line in stack.log) == 10

    await eventually(logged, "Envoy's log names status 14 for each")


@pytest.mark.newest_only
async def test_tls_1_3_alone_needs_an_envoy_that_offers_it(start: Any, folder: Path) -> None:
    """As docs/security.md says: to its clusters Envoy offers 1.2 by default."""

    def change(config: Any) -> None:
        _tls(folder, mutual=True)(config)
        envoy_config.settings_of(config)["grpc"]["tls"]["min_version"] = "1.3"
        context = envoy_config.cluster(config, "extproc")["transport_socket"]["typed_config"]["common_tls_context"]
        context["tls_params"] = {"tls_maximum_protocol_version": "TLSv1_3"}

    stack: Stack = await start(change=change)
    assert [(await stack.request()).status for _ in range(3)] == [200] * 3
    assert await stack.picks() == 3
    assert (await stack.stats())["cluster.extproc.ssl.versions.TLSv1.3"] >= 1
