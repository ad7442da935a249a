"""Servers from DNS SRV records, asked for over the wire."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from extproc.config.discovery_settings import DiscoverySettings, SrvDiscoverySettings
from extproc.config.settings import PoolSettings
from extproc.discovery.choose import source_of
from extproc.discovery.dns_client import DnsClient, DnsError
from extproc.discovery.source import EndpointSet
from extproc.discovery.srv import SrvSource
from extproc.endpoint import Address
from tests.support.dns_server import DnsServer, dns_server
from tests.support.waiting import eventually

NAME = "_http._tcp.vllm.test"


@pytest.fixture
async def zone() -> AsyncIterator[DnsServer]:
    async with dns_server() as server:
        server.set("a.test", "A", "10.0.0.1")
        server.set("b.test", "A", "10.0.0.2")
        server.set("c.test", "AAAA", "fd00::3")
        yield server


def source(zone: DnsServer, sleep: Any = asyncio.sleep, *, refresh_s: float = 5.0, **options: Any) -> SrvSource:
    settings = SrvDiscoverySettings(name=NAME, servers=(zone.address.text,), **options)
    return SrvSource(PoolSettings(dns_refresh_s=refresh_s), settings, sleep=sleep)


class Steps:
    """In place of sleep: one change of the zone between two rounds, then it waits for ever."""

    def __init__(self, *changes: Callable[[], object]) -> None:
        self.changes = list(changes)
        self.naps_s: list[float] = []
        self.over = asyncio.Event()

    async def __call__(self, nap_s: float) -> None:
        self.naps_s.append(nap_s)
        if not self.changes:
            self.over.set()
            await asyncio.Event().wait()
        self.changes.pop(0)()


async def first(found: SrvSource) -> EndpointSet:
    async with asyncio.timeout(5), aclosing(found.watch()) as sets:
        return await anext(sets)


async def collect(found: SrvSource, steps: Steps) -> list[list[str]]:
    seen: list[list[str]] = []

    async def watch() -> None:
        async with aclosing(found.watch()) as sets:
            async for endpoints in sets:
                seen.append([endpoint.address.text for endpoint in endpoints])  # noqa: PERF401 - kept when cancelled

    watching = asyncio.create_task(watch())
    over = asyncio.create_task(steps.over.wait())
    try:
        async with asyncio.timeout(20):
            await asyncio.wait((watching, over), return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
    finally:
        for task in (watching, over):
            task.cancel()
        await asyncio.gather(watching, over, return_exceptions=True)
    return seen


async def test_each_record_is_a_server_at_its_own_port(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", "0 10 8001 a.test.", "0 10 8000 a.test.", "0 10 8000 c.test.", "0 10 8000 b.test.")
    found = await first(source(zone, model="m, n", metrics_port=9100))
    assert [(str(endpoint.address), endpoint.hostname) for endpoint in found] == [
        ("10.0.0.1:8000", "a.test"),
        ("10.0.0.1:8001", "a.test"),
        ("10.0.0.2:8000", "b.test"),
        ("[fd00::3]:8000", "c.test"),
    ]
    assert {(endpoint.weight, endpoint.models, endpoint.metrics_port) for endpoint in found} == {
        (1.0, ("m", "n"), 9100)
    }


async def test_only_the_lowest_priority_counts_and_weights_are_shares_of_the_largest(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", "5 0 8000 a.test.", "5 30 8001 a.test.", "5 60 8000 b.test.", "9 90 8000 c.test.")
    found = await first(source(zone))
    assert {str(endpoint.address): endpoint.weight for endpoint in found} == {
        "10.0.0.1:8000": 0.01,
        "10.0.0.1:8001": 0.5,
        "10.0.0.2:8000": 1.0,
    }


async def test_where_no_record_has_a_weight_all_are_alike(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", "0 0 8000 a.test.", "0 0 8000 b.test.")
    assert [endpoint.weight for endpoint in await first(source(zone))] == [1.0, 1.0]


async def test_a_target_of_both_families_is_a_server_at_each_address(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", "0 1 8000 a.test.")
    zone.set("a.test", "AAAA", "fd00::1")
    assert [str(endpoint.address) for endpoint in await first(source(zone))] == ["10.0.0.1:8000", "[fd00::1]:8000"]


async def test_the_target_dot_says_that_there_is_nobody(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", "0 0 0 .")
    assert await first(source(zone)) == ()


async def test_a_change_of_records_or_addresses_is_followed_and_a_new_order_is_none(zone: DnsServer) -> None:
    """case e09: no session moves because a list is in another order."""
    zone.set(NAME, "SRV", "0 1 8000 a.test.", "0 1 8000 b.test.")
    steps = Steps(
        lambda: zone.set(NAME, "SRV", "0 1 8000 b.test.", "0 1 8000 a.test."),
        lambda: zone.set("a.test", "A", "10.0.0.9"),
        lambda: zone.set(NAME, "SRV", "0 1 8001 a.test."),
    )
    assert await collect(source(zone, steps), steps) == [
        ["10.0.0.1:8000", "10.0.0.2:8000"],
        ["10.0.0.9:8000", "10.0.0.2:8000"],
        ["10.0.0.9:8001"],
    ]


def gone(zone: DnsServer) -> None:
    zone.records.clear()


def fails(zone: DnsServer) -> None:
    zone.broken |= {NAME, "a.test"}


def is_silent(zone: DnsServer) -> None:
    zone.silent |= {NAME, "a.test"}


def has_no_records(zone: DnsServer) -> None:
    zone.set(NAME, "SRV")
    zone.set(NAME, "TXT", "there is the name")


@pytest.mark.parametrize("failure", [gone, fails, is_silent, has_no_records])
async def test_a_failure_keeps_the_servers_is_said_once_and_heals(
    failure: Callable[[DnsServer], None], zone: DnsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "extproc.discovery.srv")
    zone.set(NAME, "SRV", "0 1 8000 a.test.")
    failing: list[bool] = []

    def heal() -> None:
        failing.append(NAME in found.failing)
        zone.broken.clear()
        zone.silent.clear()
        zone.set(NAME, "SRV", "0 1 8000 b.test.")
        zone.set("a.test", "A", "10.0.0.1")
        zone.set("b.test", "A", "10.0.0.2")

    steps = Steps(lambda: failure(zone), lambda: None, heal, lambda: failing.append(NAME in found.failing))
    found = source(zone, steps, refresh_s=0.2)
    assert await collect(found, steps) == [["10.0.0.1:8000"], ["10.0.0.2:8000"]]
    assert failing == [True, False]
    said = [record.getMessage().partition(":")[0] for record in caplog.records if NAME in record.getMessage()]
    assert said == [f"cannot resolve {NAME}", f"{NAME} resolves again"]


async def test_of_two_targets_the_one_that_does_not_resolve_keeps_its_address(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", "0 1 8000 a.test.", "0 1 8000 b.test.")
    steps = Steps(lambda: zone.broken.add("a.test"), lambda: zone.set("b.test", "A", "10.0.0.7"))
    found = source(zone, steps)
    assert await collect(found, steps) == [["10.0.0.1:8000", "10.0.0.2:8000"], ["10.0.0.1:8000", "10.0.0.7:8000"]]
    assert list(found.failing) == ["a.test"]


async def test_servers_whose_addresses_are_all_unknown_do_not_empty_the_pool(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", "0 1 8000 a.test.")
    steps = Steps(lambda: zone.set(NAME, "SRV", "0 1 8000 new.test."), lambda: zone.set("new.test", "A", "10.0.0.8"))
    assert await collect(source(zone, steps), steps) == [["10.0.0.1:8000"], ["10.0.0.8:8000"]]


async def test_half_an_answer_of_two_families_is_none(zone: DnsServer) -> None:
    """A name whose IPv6 addresses do not come in time must not lose them."""
    zone.set("a.test", "AAAA", "fd00::1")
    client = DnsClient([zone.address], timeout_s=0.3)
    assert (await client.addresses("a.test", "all"))[0] == ("10.0.0.1", "fd00::1")
    answer = zone.answer

    def no_ipv6(raw: bytes, *, tcp: bool) -> bytes | None:
        return None if b"\x00\x1c\x00\x01" in raw else answer(raw, tcp=tcp)

    zone.answer = no_ipv6  # type: ignore[method-assign]
    with pytest.raises(DnsError, match="no answer in time"):
        await client.addresses("a.test", "all")


@pytest.mark.parametrize(
    ("ttls_s", "refresh_s", "nap_s"),
    [
        ((30, 3), 20.0, (3, 3)),  # the shortest TTL of an address
        ((4, 60), 20.0, (4, 4)),  # that of the records
        ((60, 60), 5.0, (4.5, 5.5)),  # dns_refresh_s bounds it
        ((0, 0), 5.0, (1, 1)),  # a TTL of 0 is not asked for all the time
    ],
)
async def test_they_are_asked_for_again_when_the_ttl_has_passed(
    ttls_s: tuple[int, int], refresh_s: float, nap_s: tuple[float, float], zone: DnsServer
) -> None:
    zone.set(NAME, "SRV", "0 1 8000 a.test.", ttl_s=ttls_s[0])
    zone.set("a.test", "A", "10.0.0.1", ttl_s=ttls_s[1])
    steps = Steps()
    await collect(source(zone, steps, refresh_s=refresh_s), steps)
    assert nap_s[0] <= steps.naps_s[0] <= nap_s[1]


async def test_an_answer_that_does_not_fit_into_udp_is_fetched_over_tcp(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", *[f"0 1 {port} a.test." for port in range(8000, 8200)])
    zone.truncated.add(NAME)
    assert len(await first(source(zone))) == 200
    assert zone.over_tcp[NAME, "SRV"] == 1


async def test_a_dead_dns_server_is_passed_over_for_the_next(zone: DnsServer) -> None:
    async with dns_server() as dead:
        dead.silent.add("a.test")
        client = DnsClient([dead.address, zone.address], timeout_s=2.0)
        assert (await client.addresses("a.test", "v4_only"))[0] == ("10.0.0.1",)
        assert dead.asked["a.test", "A"] == 1


async def test_it_is_what_a_pool_with_srv_discovery_gets(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", "0 1 8000 a.test.")
    discovery = DiscoverySettings(srv=SrvDiscoverySettings(name=NAME, servers=(zone.address.text,)))
    chosen = source_of(PoolSettings(discovery=discovery))
    assert isinstance(chosen, SrvSource)
    assert [endpoint.address for endpoint in await first(chosen)] == [Address.of("10.0.0.1", 8000)]


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name in ("extproc.discovery.srv", "extproc.discovery.dns_client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dns", None)
    settings = PoolSettings(discovery=DiscoverySettings(srv=SrvDiscoverySettings(name=NAME)))
    with pytest.raises(ValueError, match=re.escape('pip install "vllm-extproc[dns]"')):
        source_of(settings)


async def test_a_change_comes_within_the_ttl_by_the_clock(zone: DnsServer) -> None:
    zone.set(NAME, "SRV", "0 1 8000 a.test.", ttl_s=1)
    seen: list[str] = []

    async def watch() -> None:
        async with aclosing(source(zone, refresh_s=600.0).watch()) as sets:
            async for endpoints in sets:
                seen[:] = [str(endpoint.address) for endpoint in endpoints]

    watching = asyncio.create_task(watch())
    try:
        await eventually(lambda: seen == ["10.0.0.1:8000"], "the first set")
        zone.set(NAME, "SRV", "0 1 8000 b.test.", ttl_s=1)
        await eventually(lambda: seen == ["10.0.0.2:8000"], "the second set")
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_a_cancellation_that_the_library_loses_is_not_lost(
    zone: DnsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`asyncio.wait_for` did so before Python 3.12: a service that stops would wait for ever."""
    asked = asyncio.Event()

    async def resolve(*_: object, **__: object) -> None:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    monkeypatch.setattr("dns.asyncresolver.Resolver.resolve", resolve)
    asking = asyncio.create_task(DnsClient([zone.address]).addresses("a.test", "v4_only"))
    await asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
