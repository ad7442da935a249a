"""The fleet of the scaling bench changes as it says, and its figures say what the requests tell."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from bench.scaling import plot
from bench.scaling.page import page
from bench.scaling.run import FEW, MANY, POLICIES, Plan, Ran, moved, part, serve, windows

PLAN = Plan(seconds=100.0, grow_s=40.0, shrink_s=70.0, apart_s=4.0, window_s=5.0)
ONCE = Plan(seconds=100.0, grow_s=40.0, shrink_s=70.0, apart_s=0.0, window_s=5.0)


@cache
def ran(policy: str, plan: Plan = PLAN) -> Ran:
    return serve(policy, 1, plan)


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_go_only_to_servers_that_are_there(policy: str) -> None:
    each, changes = ran(policy), PLAN.changes()
    assert [len(change.servers) for change in changes] == [4, 5, 6, 7, 8, 7, 6, 5, 4]
    used: set[int] = set()
    for arrival, server in zip(each.arrivals, each.result.server, strict=True):
        there = next(change.servers for change in reversed(changes) if change.at_s <= arrival.at_s)
        assert server in there
        used.add(server)
    assert used == set(range(MANY))
    assert min(each.result.ttft_s) > 0


def test_a_newcomer_has_nothing_cached() -> None:
    each = ran("session")
    first: dict[int, int] = {}
    for n, server in enumerate(each.result.server):
        first.setdefault(server, n)
    assert all(each.result.cached[n] == 0 for server, n in first.items() if server >= FEW)


def test_a_modulo_moves_most_conversations_and_consistent_hashing_few() -> None:
    shares = {
        policy: [moved([ran(policy)], step, until_s).of_all for step, until_s in PLAN.steps()]
        for policy in ("ring-hash", "modulo-hash")
    }
    assert min(shares["modulo-hash"]) > 0.6
    assert max(shares["ring-hash"]) < 0.4
    by_modulo, by_ring = (part([ran(policy)], 70, 86) for policy in ("modulo-hash", "ring-hash"))
    assert by_modulo.hit_ratio < by_ring.hit_ratio - 0.1
    assert by_modulo.ttft_p90_s > 1.5 * by_ring.ttft_p90_s


def test_doubling_at_once_moves_half_with_a_modulo_too() -> None:
    step, until_s = ONCE.steps()[0]
    assert moved([ran("modulo-hash", ONCE)], step, until_s).of_all == pytest.approx(0.5, abs=0.1)


def test_nobody_moves_needlessly_by_a_ring_without_a_bound() -> None:
    for step, until_s in PLAN.steps():
        share = moved([ran("ring-hash")], step, until_s)
        if len(step.servers) < MANY and step.at_s >= PLAN.shrink_s:
            assert share.needlessly == 0
            assert share.of_all > 0


def test_the_same_seed_gives_the_same_run() -> None:
    again = serve("cache-aware", 1, PLAN)
    assert again.result == ran("cache-aware").result


def test_windows_cover_all_requests_and_the_page_tells_every_policy(tmp_path: Path) -> None:
    runs = {policy: [ran(policy)] for policy in POLICIES}
    over_time = {policy: windows(each, PLAN) for policy, each in runs.items()}
    for policy, points in over_time.items():
        assert sum(each.requests for _, each in points) == len(ran(policy).arrivals)
        assert all(0 <= each.hit_ratio < 1 for _, each in points)
    text = page(runs, {"modulo-hash": [ran("modulo-hash", ONCE)]}, PLAN, ONCE)
    assert text.count("\n| modulo-hash |") == 3
    assert all(f"\n| {policy} |" in text for policy in POLICIES)
    plot.draw(over_time, PLAN, tmp_path / "scaling.png", "")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
