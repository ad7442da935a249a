"""Who should go, if one must: what a drain of it would cost, and when nobody should."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from extproc.pool.deadline import Bounds
from extproc.pool.drain import By
from extproc.pool.health import REFUSED_IN_A_ROW
from extproc.pool.member import Member
from extproc.pool.victim import NoVictim, Proposal, propose
from extproc.router import Router
from tests.support.fleet import address, endpoint, member, observe_all, route, sample, sampled_router

NOW = 1.0


def ask(of: Router, alone: Mapping[int, float] | None = None, **options: int | None) -> Proposal | NoVictim:
    known = {member(of, number): tokens for number, tokens in (alone or {}).items()}

    def alone_tokens(of_: Member) -> float:
        return known.get(of_, 0.0)

    return propose(of.pools[0].members, NOW, alone_tokens=alone_tokens, bounds=Bounds(), **options)


def named(found: Proposal | NoVictim) -> str:
    assert isinstance(found, Proposal), found
    return str(found.member.address)


def why(found: Proposal | NoVictim) -> str:
    assert isinstance(found, NoVictim)
    return found.why


def load(of: Router, number: int, requests: int, **loads: float) -> None:
    """So many requests of ours on that server, and what its page says of them."""
    for _ in range(requests):
        route(of, 0.5, subset=[f"10.0.0.{number}"])
    of.observe("vllm", address(number), sample(0.9, running=float(requests), **loads), 0.9)


def test_it_is_the_one_with_the_fewest_tokens_in_flight() -> None:
    fleet = sampled_router(3)
    for number, requests in ((1, 2), (2, 1), (3, 2)):
        load(fleet, number, requests)
    found = ask(fleet, {2: 1e6})
    assert named(found) == "10.0.0.2:8000"
    assert isinstance(found, Proposal)
    assert found.why.startswith("fewest tokens in flight: at most 4,096 (next 8,192); holds about 1,000,000 tokens")


def test_of_equal_ones_it_is_the_one_whose_cache_is_worth_least() -> None:
    assert named(ask(sampled_router(3), {1: 300.0, 2: 100.0, 3: 200.0})) == "10.0.0.2:8000"


def test_a_request_that_is_not_ours_counts_as_the_longest() -> None:
    fleet = sampled_router(2)
    fleet.observe("vllm", address(1), sample(0.9, running=1.0), 0.9)
    assert named(ask(fleet)) == "10.0.0.2:8000"


def test_a_dead_server_goes_first_and_however_few_are_left() -> None:
    fleet = sampled_router(2)
    for _ in range(REFUSED_IN_A_ROW):
        fleet.pools[0].scrape_failed(address(2), "x", 0.5, answered=False, refused=True)
    found = ask(fleet, {2: 1e6}, floor=1)
    assert named(found) == "10.0.0.2:8000"
    assert isinstance(found, Proposal)
    assert found.why == "it serves nobody (connection refused)"


def test_one_at_a_time_but_a_configured_drain_is_no_change_under_way() -> None:
    fleet = sampled_router(4)
    fleet.pools[0].set_endpoints([endpoint(n, drained=n == 1) for n in range(1, 5)])
    assert isinstance(ask(fleet), Proposal)
    fleet.pools[0].drains.ask(member(fleet, 2), By.OPERATOR, NOW)
    assert why(ask(fleet)) == "10.0.0.2:8000 is draining; one at a time"


@pytest.mark.parametrize(("size", "floor"), [(1, 1), (3, 3), (2, 5)])
def test_never_below_the_floor(size: int, floor: int) -> None:
    assert why(ask(sampled_router(size), floor=floor)) == f"{size} ready, and the floor is {floor}"


def test_an_empty_queue_is_no_room() -> None:
    """case f11: four servers, nothing waits, and three requests run on each"""
    fleet = sampled_router(4)
    for number in range(1, 5):
        load(fleet, number, 3)
    assert isinstance(ask(fleet, server_requests=4), Proposal), "twelve fit into three times four"
    assert why(ask(fleet, server_requests=3)) == "12 requests run, and the others have room for 9"


def test_what_runs_must_fit_into_the_caches_of_the_others() -> None:
    """case f11, where nobody says how many requests a server can run"""
    fleet = sampled_router(3)
    observe_all(fleet, 0.9, kv=0.5)
    assert isinstance(ask(fleet), Proposal)
    observe_all(fleet, 0.95, kv=0.7)
    assert why(ask(fleet)) == "what runs would fill 105% of the others' KV caches"


def test_not_while_requests_wait() -> None:
    fleet = sampled_router(3)
    load(fleet, 2, 1, waiting=2.0)
    assert why(ask(fleet)) == "2 requests wait"


def test_not_while_the_load_of_one_is_unknown() -> None:
    fleet = sampled_router(3)
    observe_all(fleet, -10.0)
    assert why(ask(fleet)) == "the load of 10.0.0.1:8000 is not known"


def test_the_only_server_of_a_model_stays() -> None:
    fleet = sampled_router(3)
    models = {1: ("a",), 2: ("b",), 3: ("b",)}
    fleet.pools[0].set_endpoints([replace(endpoint(n), models=names) for n, names in models.items()])
    assert named(ask(fleet, {2: 1.0, 3: 2.0})) == "10.0.0.2:8000"
    fleet.pools[0].set_endpoints([replace(endpoint(n), models=(str(n),)) for n in models])
    assert why(ask(fleet)) == "each server is the only one for a model"
