"""A server that joins a busy fleet, in virtual time: it is used at once, and not flooded."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from extproc.sim.fleet import Change, Result, run
from extproc.sim.policies import POLICIES
from extproc.sim.spec import A100_8B
from extproc.sim.workloads import Arrival, Fleet, draw

JOINS_S, END_S, NEW = 30.0, 120.0, 3
SEEDS = (1, 2, 3)


@cache
def conversations(seed: int) -> tuple[list[Arrival], Result]:
    """Chats that three servers have to themselves until a fourth joins."""
    arrivals = draw("W2", seed, Fleet.of(A100_8B, 3), END_S)
    changes = (Change(0.0, (0, 1, 2)), Change(JOINS_S, (0, 1, 2, NEW)))
    return arrivals, run(arrivals, [A100_8B] * 4, POLICIES["cache-aware"], seed=seed, changes=changes)


def test_a_new_server_gets_its_share_of_new_conversations_at_once() -> None:
    """case e06: an empty cache costs a new conversation nothing, and nothing is owed there. Over three seeds, 88
    begin within half a minute, and more than half of them go there; a quarter is asked for."""
    begun: Counter[int] = Counter()
    for seed in SEEDS:
        arrivals, result = conversations(seed)
        seen: set[str | None] = set()
        for arrival, server in zip(arrivals, result.server, strict=True):
            if arrival.session not in seen and JOINS_S <= arrival.at_s < JOINS_S + 30.0:
                begun[server] += 1
            seen.add(arrival.session)
    assert begun[NEW] >= begun.total() / 4


@pytest.mark.parametrize("seed", SEEDS)
def test_within_a_minute_all_servers_have_about_as_much_to_do(seed: int) -> None:
    """case e06: by the requests of the half minute after that, the fullest server has less than 1.3 times the mean."""
    arrivals, result = conversations(seed)
    served = Counter(
        server for arrival, server in zip(arrivals, result.server, strict=True) if arrival.at_s >= JOINS_S + 60.0
    )
    assert max(served.values()) < 1.3 * served.total() / 4


@pytest.mark.parametrize("seed", SEEDS)
def test_conversations_that_ran_before_mostly_stay(seed: int) -> None:
    """case e06: of a conversation's turns after the join, few come to another server than the turn before."""
    arrivals, result = conversations(seed)
    last: dict[str | None, int] = {}
    turns = moved = 0
    for arrival, server in zip(arrivals, result.server, strict=True):
        if arrival.at_s >= JOINS_S and arrival.session in last:
            turns += 1
            moved += server != last[arrival.session]
        if arrival.at_s < JOINS_S or arrival.session in last:
            last[arrival.session] = server
    assert turns > 100
    assert moved < 0.15 * turns
