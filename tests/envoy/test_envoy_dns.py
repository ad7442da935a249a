"""Do Envoy and the service see the same hosts behind a DNS name?

A pick names addresses. If they are not those that Envoy found, each request goes by the fallback policy.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from tests.support import envoy_config
from tests.support.envoy_names import NameServer
from tests.support.envoy_stack import DESTINATION, Stack, eventually
from tests.support.envoy_upstream import Upstream

NAME = "vllm.test"
V4, V6 = "127.0.0.1", "::1"
REQUESTS = 20  # that both of two equal families get some is then sure enough


def _has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind((V6, 0))
        except OSError:
            return False
    return True


HOSTS = (V4, V6) if _has_ipv6() else (V4,)


@pytest.fixture
async def servers() -> AsyncIterator[list[Upstream]]:
    """Two servers, each at one port on 127.0.0.1 and on ::1."""
    async with contextlib.AsyncExitStack() as stack:
        listening = []
        for port in (envoy_config.free_port(), envoy_config.free_port()):
            for host in HOSTS:
                listening.append(await Upstream(port, host=host).start())
                stack.push_async_callback(listening[-1].stop)
        yield listening


@pytest.fixture
async def names(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NameServer]:
    """A name with both addresses: Envoy hears it from a server, the service from what it takes for the system."""
    by_system = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != NAME:
            return by_system(host, port, *args, **options)
        return [entry for address in (V4, V6) for entry in by_system(address, port, *args, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    server = NameServer(NAME, [V4, V6])
    await server.start()
    yield server
    server.stop()


def _by_name(name: str, family: str | None, resolver: dict[str, Any] | None = None) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        pool = envoy_config.cluster(config, "vllm")
        pool["type"] = "STRICT_DNS"
        if family is not None:
            pool["dns_lookup_family"] = family
        if resolver is not None:
            pool["typed_dns_resolver_config"] = resolver
        for group in pool["load_assignment"]["endpoints"]:
            for item in group["lb_endpoints"]:
                item["endpoint"]["address"]["socket_address"]["address"] = name

    return change


async def _follows_picks(stack: Stack, servers: Sequence[Upstream]) -> set[str]:
    """Send requests; each must be served by the first host of its pick. Gives the hosts that served."""
    for _ in range(REQUESTS):
        assert (await stack.request()).status == 200
    for server in servers:
        assert all(seen.headers[DESTINATION].split(",")[0] == server.address for seen in server.seen)
    assert sum(len(server.seen) for server in servers) == REQUESTS
    assert await stack.picks() == REQUESTS

    async def told() -> bool:
        return await stack.outcomes() == {"ok": REQUESTS}

    await eventually(told, "the access log told how all ended")
    assert (await stack.status())["requests"]["served_elsewhere"] == 0
    return {server.host for server in servers if server.seen}


@pytest.mark.parametrize("shape", envoy_config.SHAPES)
async def test_picks_of_a_pool_by_name_are_followed(start: Any, servers: list[Upstream], shape: str) -> None:
    """`localhost` by the resolvers that Envoy and the service have anyway, IPv4 only."""
    ports = sorted({server.port for server in servers})
    stack: Stack = await start(shape=shape, servers=ports, change=_by_name("localhost", "V4_ONLY"))
    assert await _follows_picks(stack, servers) == {V4}


@pytest.mark.skipif(V6 not in HOSTS, reason="this machine has no ::1")
@pytest.mark.parametrize(
    ("family", "hosts"),
    [
        pytest.param(None, {V6}, id="default"),
        ("AUTO", {V6}),
        ("V4_ONLY", {V4}),
        ("V6_ONLY", {V6}),
        ("V4_PREFERRED", {V4}),
        ("ALL", {V4, V6}),
    ],
)
async def test_of_a_name_with_both_families_the_service_takes_those_that_envoy_takes(
    start: Any, servers: list[Upstream], names: NameServer, family: str | None, hosts: set[str]
) -> None:
    ports = sorted({server.port for server in servers})
    stack: Stack = await start(servers=ports, change=_by_name(NAME, family, names.resolver_config()))
    assert await _follows_picks(stack, servers) == hosts
