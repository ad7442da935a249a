"""Servers that are listed, by IP address or by DNS name."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable
from contextlib import aclosing
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config.settings import EndpointSettings, PoolSettings
from extproc.discovery.listed import ListedSource
from extproc.discovery.source import EndpointSet, EndpointSource
from extproc.endpoint import Address


def pool(*addresses: str, refresh_s: float = 5.0) -> PoolSettings:
    return PoolSettings(
        endpoints=tuple(EndpointSettings(address=address) for address in addresses), dns_refresh_s=refresh_s
    )


def addresses(endpoints: EndpointSet) -> list[str]:
    return [endpoint.address.text for endpoint in endpoints]


class Zone:
    """A DNS that answers what the test has written into it."""

    def __init__(self, **records: list[str] | Exception) -> None:
        self.records: dict[str, list[str] | Exception] = {
            name.replace("_", "."): answer for name, answer in records.items()
        }
        self.asked: list[str] = []
        self.hang: set[str] = set()

    async def __call__(self, name: str) -> list[str]:
        self.asked.append(name)
        if name in self.hang:
            await asyncio.Event().wait()
        answer = self.records.get(name, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        if isinstance(answer, Exception):
            raise answer
        return answer


class Rounds:
    """In place of sleep: changes the zone between rounds, then waits for ever."""

    def __init__(self, *changes: Callable[[], object]) -> None:
        self.changes = list(changes)
        self.naps: list[float] = []
        self.over = asyncio.Event()

    async def __call__(self, nap_s: float) -> None:
        self.naps.append(nap_s)
        if not self.changes:
            self.over.set()
            await asyncio.Event().wait()
        self.changes.pop(0)()


async def collect(source: EndpointSource, rounds: Rounds) -> list[list[str]]:
    """All sets until the rounds are over."""
    seen: list[list[str]] = []

    async def watch() -> None:
        async for endpoints in source.watch():
            seen.append(addresses(endpoints))  # noqa: PERF401 - an async comprehension would lose it all when cancelled

    watching = asyncio.create_task(watch())
    try:
        async with asyncio.timeout(5):
            await rounds.over.wait()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("resolve ")]
    return seen


async def first(source: EndpointSource) -> EndpointSet:
    async with asyncio.timeout(5), aclosing(source.watch()) as sets:
        return await anext(sets)


async def test_the_first_set_comes_in_configured_order() -> None:
    found = await first(ListedSource(pool("10.0.0.2:8000", "[fd00::1]:8000", "10.0.0.1:8000")))
    assert addresses(found) == ["10.0.0.2:8000", "[fd00::1]:8000", "10.0.0.1:8000"]
    assert [endpoint.hostname for endpoint in found] == [None] * 3


async def test_an_address_that_comes_twice_is_one_endpoint_the_first() -> None:
    entries = (
        EndpointSettings(address="[fd00:0::1]:8000", weight=2.0),
        EndpointSettings(address="[fd00::1]:8000", weight=3.0),
    )
    found = await first(ListedSource(PoolSettings(endpoints=entries)))
    assert [(endpoint.address, endpoint.weight) for endpoint in found] == [(Address.of("fd00::1", 8000), 2.0)]


async def test_no_endpoints_are_an_empty_set_not_silence() -> None:
    source = ListedSource(pool())
    assert await first(source) == ()
    assert source.failing == {}


async def test_a_replaced_list_keeps_what_its_names_had_and_forgets_the_others() -> None:
    zone = Zone(a_test=["10.0.0.1"], b_test=["10.0.0.2"], c_test=["10.0.0.3"])

    def replace() -> None:
        zone.records["a.test"] = OSError("down")
        zone.records["b.test"] = OSError("down")
        source.replace(pool("a.test:8000", "c.test:8000").endpoints)

    def back() -> None:
        source.replace(pool("b.test:8000", "c.test:8000").endpoints)

    rounds = Rounds(replace, back)
    source = ListedSource(pool("a.test:8000", "b.test:8000"), zone, sleep=rounds)
    seen = await collect(source, rounds)
    assert seen == [
        ["10.0.0.1:8000", "10.0.0.2:8000"],
        ["10.0.0.1:8000", "10.0.0.3:8000"],
        ["10.0.0.3:8000"],
    ]
    assert list(source.failing) == ["b.test"]


async def test_a_replaced_list_is_followed_at_once_not_with_the_next_round() -> None:
    zone = Zone(a_test=["10.0.0.1"])
    source = ListedSource(pool("a.test:8000", refresh_s=3600.0), zone)
    async with asyncio.timeout(5), aclosing(source.watch()) as sets:
        await anext(sets)
        source.replace(pool("a.test:8000", "10.0.0.9:8000").endpoints)
        assert addresses(await anext(sets)) == ["10.0.0.1:8000", "10.0.0.9:8000"]
        source.replace(())
        assert await anext(sets) == ()


async def test_names_become_all_their_addresses_of_both_families_with_the_name_kept() -> None:
    zone = Zone(vllm_test=["fd00::2", "10.0.0.2", "10.0.0.1"])
    source = ListedSource(pool("10.0.0.9:8000", "vllm.test:8001"), zone)
    async with aclosing(source.watch()) as sets:
        found = await anext(sets)
    assert addresses(found) == ["10.0.0.9:8000", "10.0.0.1:8001", "10.0.0.2:8001", "[fd00::2]:8001"]
    assert [endpoint.hostname for endpoint in found] == [None, "vllm.test", "vllm.test", "vllm.test"]


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("all", ["10.0.0.1", "fd00::2"]),
        ("auto", ["fd00::2"]),
        ("v6_only", ["fd00::2"]),
        ("v4_only", ["10.0.0.1"]),
        ("v4_preferred", ["10.0.0.1"]),
    ],
)
async def test_only_the_family_that_envoy_would_use_counts(family: str, expected: list[str]) -> None:
    """case b10: a pick of an address that Envoy has not resolved is silently not followed."""
    zone = Zone(vllm_test=["fd00::2", "10.0.0.1"])
    settings = pool("vllm.test:8001").model_copy(update={"dns_family": family})
    async with aclosing(ListedSource(settings, zone).watch()) as sets:
        assert [endpoint.address.ip for endpoint in await anext(sets)] == expected


async def test_a_rotated_or_repeated_answer_is_no_change_and_a_new_one_is() -> None:
    zone = Zone(vllm_test=["10.0.0.1", "10.0.0.2"])

    def answer(*ips: str) -> Callable[[], None]:
        return lambda: zone.records.update({"vllm.test": list(ips)})

    rounds = Rounds(answer("10.0.0.2", "10.0.0.1", "10.0.0.1"), answer("10.0.0.2"), answer("10.0.0.2", "10.0.0.3"))
    seen = await collect(ListedSource(pool("vllm.test:8000"), zone, sleep=rounds), rounds)
    assert seen == [
        ["10.0.0.1:8000", "10.0.0.2:8000"],
        ["10.0.0.2:8000"],
        ["10.0.0.2:8000", "10.0.0.3:8000"],
    ]


@pytest.mark.parametrize(
    "failure",
    [socket.gaierror(socket.EAI_AGAIN, "try again"), OSError("no sockets"), UnicodeError("label too long"), []],
)
async def test_a_failing_resolution_keeps_the_last_addresses_and_is_logged_once(
    failure: list[str] | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "extproc.discovery.listed")
    zone = Zone(a_test=["10.0.0.1"], b_test=["10.0.1.1"])
    source_failing: list[list[str]] = []

    def step(records: dict[str, list[str] | Exception]) -> Callable[[], None]:
        def change() -> None:
            source_failing.append(sorted(source.failing))
            zone.records.update(records)

        return change

    rounds = Rounds(
        step({"a.test": failure}),
        step({"b.test": ["10.0.1.2"]}),
        step({"a.test": ["10.0.0.1"]}),
        step({}),
    )
    source = ListedSource(pool("a.test:8000", "b.test:8000"), zone, sleep=rounds)
    seen = await collect(source, rounds)
    assert seen == [["10.0.0.1:8000", "10.0.1.1:8000"], ["10.0.0.1:8000", "10.0.1.2:8000"]]
    assert source_failing == [[], ["a.test"], ["a.test"], []]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "cannot resolve a.test",
        "a.test resolves again",
    ]


async def test_a_name_that_never_resolved_gives_an_empty_set_and_appears_when_it_does() -> None:
    zone = Zone()
    rounds = Rounds(lambda: zone.records.update({"late.test": ["10.0.0.1"]}))
    seen = await collect(ListedSource(pool("late.test:8000"), zone, sleep=rounds), rounds)
    assert seen == [[], ["10.0.0.1:8000"]]


async def test_a_name_that_hangs_is_asked_once_and_holds_no_other_up() -> None:
    zone = Zone(good_test=["10.0.0.1"])
    zone.hang.add("hung.test")
    rounds = Rounds(lambda: zone.records.update({"good.test": ["10.0.0.2"]}), lambda: None)
    source = ListedSource(pool("hung.test:8000", "good.test:8000", refresh_s=0.05), zone, sleep=rounds)
    seen = await collect(source, rounds)
    assert seen == [["10.0.0.1:8000"], ["10.0.0.2:8000"]]
    assert zone.asked.count("hung.test") == 1
    assert "no answer within" in source.failing["hung.test"]


async def test_link_local_addresses_are_left_out_for_envoy_cannot_route_to_them() -> None:
    zone = Zone(vllm_test=["fe80::1%eth0", "10.0.0.1"])
    async with aclosing(ListedSource(pool("vllm.test:8000"), zone).watch()) as sets:
        assert addresses(await anext(sets)) == ["10.0.0.1:8000"]


async def test_two_names_of_one_address_are_one_endpoint() -> None:
    zone = Zone(a_test=["10.0.0.1"], b_test=["10.0.0.1", "10.0.0.2"])
    async with aclosing(ListedSource(pool("a.test:8000", "b.test:8000", "a.test:8001"), zone).watch()) as sets:
        found = await anext(sets)
    assert [(str(endpoint.address), endpoint.hostname) for endpoint in found] == [
        ("10.0.0.1:8000", "a.test"),
        ("10.0.0.2:8000", "b.test"),
        ("10.0.0.1:8001", "a.test"),
    ]
    assert zone.asked == ["a.test", "b.test"]


async def test_rounds_are_dns_refresh_s_apart_with_jitter() -> None:
    zone = Zone(vllm_test=["10.0.0.1"])
    rounds = Rounds(*[lambda: None] * 20)
    source = ListedSource(pool("vllm.test:8000", refresh_s=10.0), zone, rng=random.Random(1), sleep=rounds)
    await collect(source, rounds)
    assert all(9.0 <= nap <= 11.0 for nap in rounds.naps)
    assert len(set(rounds.naps)) == len(rounds.naps)


async def test_a_fault_of_our_own_is_raised() -> None:
    zone = Zone(vllm_test=KeyError("a bug"))
    async with aclosing(ListedSource(pool("vllm.test:8000"), zone).watch()) as sets:
        with pytest.raises(KeyError):
            await anext(sets)


async def test_the_systems_resolver_is_asked_by_default() -> None:
    async with asyncio.timeout(5), aclosing(ListedSource(pool("localhost:8000")).watch()) as sets:
        found = await anext(sets)
    assert set(addresses(found)) <= {"127.0.0.1:8000", "[::1]:8000"}
    assert {endpoint.hostname for endpoint in found} == {"localhost"}


@given(st.lists(st.lists(st.sampled_from([f"10.0.0.{n}" for n in range(6)]), max_size=6), max_size=6))
def test_consecutive_sets_differ_and_have_every_address_once(answers: list[list[str]]) -> None:
    async def run() -> list[list[str]]:
        zone = Zone(vllm_test=["10.0.0.1"])
        rounds = Rounds(*[lambda ips=ips: zone.records.update({"vllm.test": ips}) for ips in answers])
        return await collect(ListedSource(pool("10.0.0.0:8000", "vllm.test:8000"), zone, sleep=rounds), rounds)

    seen = asyncio.run(run())
    assert all(before != after for before, after in pairwise(seen))
    assert all(len(set(found)) == len(found) and found[0] == "10.0.0.0:8000" for found in seen)
    last = [ips for ips in [["10.0.0.1"], *answers] if ips][-1]
    assert set(seen[-1]) == {"10.0.0.0:8000", *(f"{ip}:8000" for ip in last)}
