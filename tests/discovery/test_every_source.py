"""What every source of servers has in common, whatever it asks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path

import pytest

from extproc.affinity.ring import Ring
from extproc.discovery.source import EndpointSet
from extproc.pool.pool import Pool
from tests.discovery.worlds import NEVER_EMPTY, NEVER_FAILS, STEP_S, WORLDS, World, tasks
from tests.support.waiting import eventually


@pytest.fixture(params=WORLDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with WORLDS[request.param](tmp_path) as found:
        yield found


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.node.callspec.params["world"])


class Watching:
    """Collects what a source says; `async with` it."""

    def __init__(self, world: World) -> None:
        self.sets: list[EndpointSet] = []
        self._source = world.source

    async def __aenter__(self) -> Watching:
        self._before = tasks()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        left = tasks() - self._before
        assert not left, "every task has ended with the watch"

    async def _watch(self) -> None:
        async with aclosing(self._source.watch()) as sets:
            async for endpoints in sets:
                self.sets.append(endpoints)

    @property
    def shown(self) -> list[list[str]]:
        return [[endpoint.address.text for endpoint in endpoints] for endpoints in self.sets]

    async def until(self, *addresses: str) -> None:
        await eventually(lambda: self.sets and set(self.shown[-1]) == set(addresses), f"the set {addresses}")

    async def quiet(self) -> None:
        """Long enough that a source would have looked several times."""
        await asyncio.sleep(8 * STEP_S)


async def test_it_says_complete_sets_each_unlike_the_last_with_every_address_once(world: World) -> None:
    """case b03: an IPv6 address is one, in brackets, in every source."""
    await world.say(["10.0.0.1", "fd00::10"])
    async with Watching(world) as seen:
        await seen.until("10.0.0.1:8000", "[fd00::10]:8000")
        await world.say(["10.0.0.1", "fd00::10", "10.0.0.2", "10.0.0.2"])
        await seen.until("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::10]:8000")
        await world.say(["10.0.0.2"])
        await seen.until("10.0.0.2:8000")
        await world.say(["10.0.0.2"])
        await seen.quiet()
    assert len(seen.sets) == 3
    assert all(set(before) != set(after) for before, after in pairwise(seen.sets))
    assert all(len(set(found)) == len(found) for found in seen.shown)


async def test_another_order_is_no_change_so_no_session_moves(world: World) -> None:
    """case e09"""
    ips = [f"10.0.0.{n}" for n in range(1, 9)]
    keys = [f"session {n}" for n in range(200)]
    pool = Pool("vllm", stale_after_s=3.0)

    def preferred() -> list[str]:
        ring = Ring([member.endpoint.address.text for member in pool.members])
        return [ring.preference(key, 1)[0] for key in keys]

    await world.say(ips)
    async with Watching(world) as seen:
        await seen.until(*[f"{ip}:8000" for ip in ips])
        pool.set_endpoints(seen.sets[-1])
        before = preferred()
        random.Random(7).shuffle(ips)
        await world.say(ips)
        await seen.quiet()
        assert len(seen.sets) == 1
    # The same order after a restart would be luck: the new process gets the shuffled one.
    pool.set_endpoints(tuple(reversed(seen.sets[-1])))
    assert preferred() == before


async def test_nobody_is_an_empty_set_not_silence(world: World, kind: str) -> None:
    if kind in NEVER_EMPTY:
        pytest.skip("it cannot say so")
    await world.say(["10.0.0.1"])
    async with Watching(world) as seen:
        await seen.until("10.0.0.1:8000")
        await world.say([])
        await seen.until()
        assert world.source.failing == {}


async def test_a_failure_keeps_the_last_set_is_told_and_heals(world: World, kind: str) -> None:
    if kind in NEVER_FAILS:
        pytest.skip("there is nothing that could fail")
    await world.say(["10.0.0.1", "10.0.0.2"])
    async with Watching(world) as seen:
        await seen.until("10.0.0.1:8000", "10.0.0.2:8000")
        await world.fail()
        await eventually(lambda: world.source.failing, "the failure is told")
        await seen.quiet()
        assert len(seen.sets) == 1
        await world.say(["10.0.0.2", "10.0.0.3"])
        await seen.until("10.0.0.2:8000", "10.0.0.3:8000")
        assert world.source.failing == {}


async def test_a_consumer_that_is_slow_gets_the_latest_set(world: World) -> None:
    await world.say(["10.0.0.1"])
    async with asyncio.timeout(10), aclosing(world.source.watch()) as sets:
        await anext(sets)
        await world.say(["10.0.0.2"])
        await asyncio.sleep(4 * STEP_S)
        await world.say(["10.0.0.3"])
        await asyncio.sleep(4 * STEP_S)
        while [endpoint.address.ip for endpoint in await anext(sets)] != ["10.0.0.3"]:
            pass


async def test_it_can_be_closed_between_two_sets_and_leaves_no_task(world: World) -> None:
    before = tasks()
    await world.say(["10.0.0.1"])
    sets = world.source.watch()
    async with asyncio.timeout(10):
        await anext(sets)
        await sets.aclose()
    assert tasks() == before


async def test_it_goes_on_until_it_is_cancelled(world: World) -> None:
    before = tasks()
    await world.say(["10.0.0.1"])
    sets = world.source.watch()
    async with asyncio.timeout(10):
        await anext(sets)
        second = asyncio.ensure_future(anext(sets))
        done, _ = await asyncio.wait([second], timeout=4 * STEP_S)
        assert not done
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await sets.aclose()
    assert tasks() == before
