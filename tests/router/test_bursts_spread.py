"""Requests between two samples see those before them (decide, then act)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.fleet import address, in_flight, observe_all, route, router, sample, sampled_router
from tests.support.fleet import pool as pool_of


@pytest.mark.parametrize("seed", range(5))
def test_64_requests_over_8_idle_servers_whose_gauges_stay_at_zero_for_20_seconds(seed: int) -> None:
    """case e02: 8 +- 1 each, at once or drop by drop; the samples say 0 all the time"""
    at_once, drops = sampled_router(8, seed=seed), sampled_router(8, seed=seed)
    for _ in range(64):
        route(at_once, 0.0)
    assert all(7 <= count <= 9 for count in in_flight(at_once))
    for step in range(64):
        now = step * 20 / 64
        observe_all(drops, now)
        route(drops, now)
    assert all(7 <= count <= 9 for count in in_flight(drops))


@pytest.mark.parametrize("seed", range(5))
def test_200_requests_between_two_polls_stay_within_a_quarter_of_the_mean(seed: int) -> None:
    """case e02: over servers of unequal KV usage and none waiting"""
    fleet = router(pool_of(8), seed=seed)
    for number in range(1, 9):
        fleet.observe("vllm", address(number), sample(0.0, kv=number / 10), 0.0)
    picks = Counter(route(fleet, 0.2).address for _ in range(200))
    assert max(picks.values()) <= 1.25 * 25
    assert min(picks.values()) >= 0.75 * 25


def test_a_burst_fills_up_the_shorter_queues_first() -> None:
    """R4: 30 requests over queues of 10, 0 and 5 level them at 15"""
    fleet = router(pool_of(3))
    for number, waiting in ((1, 10.0), (2, 0.0), (3, 5.0)):
        fleet.observe("vllm", address(number), sample(0.0, waiting=waiting), 0.0)
    for _ in range(30):
        route(fleet, 0.0)
    assert in_flight(fleet) == [5, 15, 10]


def test_a_sample_that_has_seen_a_burst_is_not_added_to_it() -> None:
    """case e02: without double counting afterwards"""
    fleet = sampled_router(2)
    for _ in range(8):
        route(fleet, 0.0, subset=["10.0.0.1"])
    fleet.observe("vllm", address(1), sample(1.0, running=8.0, waiting=0.0, kv=0.1), 1.0)
    fleet.observe("vllm", address(2), sample(1.0, running=8.0, waiting=0.0, kv=0.2), 1.0)
    assert route(fleet, 1.0).address == address(1)
