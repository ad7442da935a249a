"""What is charged to whom, from the pick to the end, whoever tells of the end."""

from __future__ import annotations

import pytest

from extproc.decision import Outcome
from extproc.endpoint import Address
from extproc.pool.ledger import DETACHED_MAX_S, LOG_WAIT_S, RECENT
from extproc.pool.member import SETTLE_S
from extproc.request import RawRequest, Route
from tests.support.fleet import (
    address,
    ended,
    endpoint,
    in_flight,
    member,
    pool,
    route,
    router,
    sample,
    sampled_router,
)

ONE = ["10.0.0.1"]


def test_the_end_of_the_stream_ends_the_charge_and_the_log_tells_how_it_went() -> None:
    fleet = sampled_router(1)
    pick = route(fleet, 0.0)
    assert in_flight(fleet) == [1]
    fleet.stream_ended(pick.pick_id, 1.0)
    assert in_flight(fleet) == [0]
    fleet.complete(ended(pick), 1.25)
    assert fleet.ledger.outcomes == {("vllm", Outcome.OK): 1}
    [shown] = fleet.ledger.recent
    assert (shown.outcome, shown.ended_at_s) == (Outcome.OK, 1.0)


def test_the_log_may_come_before_the_end_of_the_stream() -> None:
    fleet = sampled_router(1)
    pick = route(fleet, 0.0)
    fleet.complete(ended(pick), 1.0)
    assert in_flight(fleet) == [0]
    fleet.stream_ended(pick.pick_id, 1.1)
    assert in_flight(fleet) == [0]
    assert fleet.ledger.outcomes == {("vllm", Outcome.OK): 1}


def test_a_request_whose_log_never_comes_is_counted_as_unknown_and_forgotten() -> None:
    fleet = sampled_router(1)
    first = route(fleet, 0.0)
    fleet.stream_ended(first.pick_id, 0.0)
    fleet.stream_ended("another", LOG_WAIT_S)
    assert not fleet.ledger.outcomes
    fleet.stream_ended("another", LOG_WAIT_S + 0.1)
    assert fleet.ledger.outcomes == {("vllm", Outcome.UNKNOWN): 1}
    fleet.complete(ended(first), LOG_WAIT_S + 0.2)
    assert fleet.ledger.outcomes == {("vllm", Outcome.UNKNOWN): 1}


def test_a_log_entry_twice_counts_once() -> None:
    fleet = sampled_router(1)
    pick = route(fleet, 0.0)
    for _ in range(2):
        fleet.complete(ended(pick), 1.0)
    assert fleet.ledger.outcomes.total() == 1
    assert fleet.ledger.unpicked == 0


def test_requests_without_a_pick_are_told_from_those_of_another_process() -> None:
    fleet = sampled_router(1)
    pick = route(fleet, 0.0)
    other = ended(pick)
    fleet.complete(type(other)(pick_id="someone-else-1", served=address(1), status=200), 0.0)
    assert fleet.ledger.unpicked == 0
    fleet.complete(type(other)(pick_id=None, served=address(1), status=200), 0.0)
    fleet.complete(type(other)(pick_id=None, served=address(1), final=False), 0.0)
    assert fleet.ledger.unpicked == 1


def test_after_a_retry_the_charge_is_with_the_server_that_answers() -> None:
    fleet = sampled_router(2)
    pick = route(fleet, 0.0, subset=ONE)
    fleet.complete(ended(pick, served=address(2), final=False, attempts=2, status=None), 0.5)
    assert in_flight(fleet) == [0, 1]
    fleet.complete(ended(pick, served=address(2), attempts=2), 1.0)
    assert in_flight(fleet) == [0, 0]
    assert fleet.ledger.moved == 1


@pytest.mark.parametrize("stream_first", [True, False])
def test_how_it_went_is_told_of_the_server_that_served_also_when_the_stream_ended_first(stream_first: bool) -> None:
    """case e15: else the dead first choice gets the good answer of its stand-in, and nothing ever takes it out"""
    fleet = sampled_router(2)
    for _ in range(3):
        pick = route(fleet, 3.0, subset=ONE)
        if stream_first:
            fleet.stream_ended(pick.pick_id, 3.0)
        fleet.complete(ended(pick, served=address(2), attempts=2), 3.0)
    fleet.stream_ended("tick", 4.5)  # nothing told how the first attempts ended
    assert member(fleet, 1).health.problem(4.5) == "errors in a row"
    assert member(fleet, 2).health.problem(4.5) is None


def test_a_move_told_twice_is_counted_once() -> None:
    fleet = sampled_router(2)
    pick = route(fleet, 0.0, subset=ONE)
    fleet.stream_ended(pick.pick_id, 0.4)
    for final in (False, False, True):
        fleet.complete(ended(pick, served=address(2), attempts=2, final=final), 0.5)
    assert fleet.ledger.moved == 1


def test_a_server_that_envoy_never_tried_is_not_blamed() -> None:
    """case b10: an address that Envoy's cluster does not have goes to the fallback policy in the first attempt"""
    fleet = sampled_router(2)
    for _ in range(5):
        pick = route(fleet, 0.0, subset=ONE)
        fleet.complete(ended(pick, served=address(2), attempts=1), 0.0)
    assert member(fleet, 1).health.problem(0.0) is None
    assert fleet.ledger.served_elsewhere == 5


def test_a_host_that_is_not_ours_counts_for_nobodys_health() -> None:
    """case b10"""
    fleet = sampled_router(1)
    stranger = Address.of("10.9.9.9", 8080)
    for _ in range(2):
        fleet.complete(ended(route(fleet, 0.0), status=500), 0.0)
    fleet.complete(ended(route(fleet, 0.0), served=stranger), 0.0)
    fleet.complete(ended(route(fleet, 0.0), status=500), 0.0)
    assert member(fleet, 1).health.problem(0.0) == "errors in a row"
    assert in_flight(fleet) == [0]
    for _ in range(5):
        fleet.complete(ended(route(fleet, 9.0), served=stranger, status=500), 9.0)
    assert member(fleet, 1).health.problem(9.0) is None


def test_a_server_in_two_pools_is_charged_in_the_pool_of_the_request() -> None:
    fleet = router(pool(2, "a"), pool(2, "b"))
    pick = fleet.route(RawRequest(route=Route("b"), subset=frozenset(ONE)), 0.0)
    fleet.complete(ended(pick, served=address(2), final=False), 0.0)  # type: ignore[arg-type]
    assert in_flight(fleet) == [0, 0, 0, 1]


def test_a_detached_request_ends_with_its_log_entry_not_with_its_stream() -> None:
    fleet = sampled_router(1)
    pick = route(fleet, 0.0)
    fleet.detach(pick.pick_id)
    fleet.stream_ended(pick.pick_id, 0.1)
    assert in_flight(fleet) == [1]
    fleet.complete(ended(pick), 5.0)
    assert in_flight(fleet) == [0]


def test_samples_end_the_oldest_detached_requests_that_the_server_no_longer_has() -> None:
    fleet = sampled_router(1)
    picks = [route(fleet, float(now)) for now in range(3)]
    for pick in picks:
        fleet.detach(pick.pick_id)
        fleet.stream_ended(pick.pick_id, 2.0)
    fleet.observe("vllm", address(1), sample(10.0, running=1.0, waiting=1.0), 10.0)
    assert [reservation.open for reservation in fleet.ledger.recent] == [False, True, True]
    fleet.observe("vllm", address(1), sample(11.0, running=0.0, waiting=0.0), 11.0)
    assert in_flight(fleet) == [0]


def test_samples_end_nothing_whose_stream_is_open_or_that_was_sent_just_now() -> None:
    fleet = sampled_router(1)
    attached, late = route(fleet, 0.0), route(fleet, 9.95)
    fleet.detach(late.pick_id)
    fleet.observe("vllm", address(1), sample(10.0), 10.0)
    assert in_flight(fleet) == [2]
    fleet.stream_ended(attached.pick_id, 10.0)
    assert in_flight(fleet) == [1]


def test_a_sample_without_counts_ends_nothing() -> None:
    """case d07"""
    fleet = sampled_router(1)
    fleet.detach(route(fleet, 0.0).pick_id)
    fleet.observe("vllm", address(1), sample(10.0, running=None), 10.0)
    assert in_flight(fleet) == [1]


def test_a_detached_request_on_a_server_that_left_ends_after_a_bound() -> None:
    """Neither log nor sample will ever tell: memory and counts must not grow for ever."""
    fleet = sampled_router(1)
    pick = route(fleet, 0.0)
    fleet.detach(pick.pick_id)
    fleet.stream_ended(pick.pick_id, 0.1)
    fleet.pools[0].set_endpoints([endpoint(2)])
    fleet.stream_ended("another", DETACHED_MAX_S)
    assert len(fleet.pools[0].leaving) == 1
    fleet.stream_ended("another", DETACHED_MAX_S + 1)
    assert fleet.pools[0].leaving == ()
    fleet.stream_ended("another", DETACHED_MAX_S + LOG_WAIT_S + 2)
    assert fleet.ledger.outcomes == {("vllm", Outcome.UNKNOWN): 1}
    assert fleet.ledger.open_count == 0


def test_requests_sent_since_the_sample_are_those_it_cannot_have_seen() -> None:
    """case e02: added to the scraped value, and not again once a sample has seen them"""
    fleet = sampled_router(1)
    route(fleet, 5.0)
    route(fleet, 5.2)
    server = member(fleet, 1)
    assert (server.unseen, server.in_flight) == (2, 2)
    fleet.observe("vllm", address(1), sample(5.0 + SETTLE_S, running=1.0), 5.3)
    assert (server.unseen, server.in_flight) == (1, 2)
    fleet.observe("vllm", address(1), sample(6.0, running=2.0), 6.0)
    assert (server.unseen, server.in_flight) == (0, 2)


def test_a_request_sent_a_moment_before_a_sample_may_not_be_in_it_yet() -> None:
    """It has Envoy, HTTP parsing and tokenising still before it; 50 ms are too few, 200 ms are enough."""
    fleet = sampled_router(1)
    route(fleet, 5.0)
    fleet.observe("vllm", address(1), sample(5.05), 5.05)
    assert member(fleet, 1).unseen == 1
    fleet.observe("vllm", address(1), sample(5.2), 5.2)
    assert member(fleet, 1).unseen == 0


def test_a_request_that_ended_before_the_next_sample_is_not_counted_on_top() -> None:
    fleet = sampled_router(1)
    pick = route(fleet, 5.0)
    fleet.stream_ended(pick.pick_id, 5.1)
    assert member(fleet, 1).unseen == 0


def test_only_the_last_picks_are_kept_to_look_at() -> None:
    fleet = sampled_router(2)
    for _ in range(RECENT + 50):
        fleet.stream_ended(route(fleet, 0.0).pick_id, 0.0)
    assert len(fleet.ledger.recent) == RECENT
    assert fleet.ledger.picks == {"vllm": RECENT + 50}
