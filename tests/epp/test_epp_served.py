"""What is made of a gateway's word on who served, and with which status? Without an access log it is all there is."""

from __future__ import annotations

from random import Random

import pytest

from extproc.decision import Outcome, Pick
from extproc.endpoint import Address
from extproc.pool.health import FAULTS_IN_A_ROW
from extproc.pool.ledger import ATTEMPT_WAIT_S, LOG_WAIT_S
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from tests.support.fleet import address, ended, in_flight, member, observe_all, pool, route, sampled_router

UNLOGGED_S = LOG_WAIT_S + 1.0  # from then on no log entry is waited for


def fleet(size: int = 3) -> Router:
    return sampled_router(size)


def over(router: Router, pick: Pick, now: float) -> None:
    """The stream ends, and no log entry comes."""
    router.stream_ended(pick.pick_id, now)
    router.stream_ended("another", now + UNLOGGED_S)


def outcomes(router: Router) -> dict[Outcome, int]:
    return {outcome: count for (_, outcome), count in router.ledger.outcomes.items()}


def test_the_charge_moves_to_the_server_that_answers() -> None:
    router = fleet()
    pick = route(router, 0.0, subset=["10.0.0.1", "10.0.0.2"])
    second = pick.fallbacks[0]
    router.answered(pick.pick_id, second, 200, 1.0)
    assert [m.address for m in router.pools[0].members if m.in_flight] == [second]
    assert router.ledger.moved == 1
    router.answered(pick.pick_id, second, 200, 1.5)  # said again
    assert router.ledger.moved == 1
    over(router, pick, 2.0)
    assert in_flight(router) == [0, 0, 0]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.OK),
        (400, Outcome.OK),
        (404, Outcome.OK),
        (429, Outcome.BACKPRESSURE),
        (503, Outcome.BACKPRESSURE),
        (500, Outcome.FAILED),
        (None, Outcome.UNKNOWN),
    ],
)
def test_where_no_log_entry_comes_the_answer_tells_the_outcome(status: int | None, outcome: Outcome) -> None:
    router = fleet()
    pick = route(router, 0.0)
    router.answered(pick.pick_id, pick.address, status, 1.0)
    over(router, pick, 2.0)
    assert outcomes(router) == {outcome: 1}
    assert router.ledger.recent[-1].outcome is outcome


def test_without_any_word_it_is_unknown_as_before() -> None:
    router = fleet()
    over(router, route(router, 0.0), 2.0)
    assert outcomes(router) == {Outcome.UNKNOWN: 1}


def test_a_log_entry_counts_more_and_nothing_twice() -> None:
    router = fleet()
    pick = route(router, 0.0, subset=["10.0.0.1", "10.0.0.2"])
    second = pick.fallbacks[0]
    router.answered(pick.pick_id, second, 200, 1.0)
    router.stream_ended(pick.pick_id, 2.0)
    broken = ended(pick, served=second, flags=["upstream_remote_reset"], attempts=2)
    router.complete(broken, 2.2)
    router.stream_ended("another", 2.0 + UNLOGGED_S)
    assert outcomes(router) == {Outcome.FAILED: 1}
    assert router.ledger.moved == 1
    assert router.ledger.served_elsewhere == 0
    assert router.ledger.recent[-1].completion == broken


def test_failing_answers_in_a_row_take_a_server_out_at_once() -> None:
    """case e15"""
    router = fleet()
    for _ in range(FAULTS_IN_A_ROW):
        pick = route(router, 1.0, subset=["10.0.0.1"])
        router.answered(pick.pick_id, address(1), 500, 1.0)
        router.stream_ended(pick.pick_id, 1.0)
    assert not member(router, 1).health.sound
    assert all(route(router, 1.1).address != address(1) for _ in range(6))


def test_one_failure_told_by_answer_and_log_counts_once() -> None:
    router = fleet()
    for _ in range(FAULTS_IN_A_ROW - 1):
        pick = route(router, 1.0, subset=["10.0.0.1"])
        router.answered(pick.pick_id, address(1), 500, 1.0)
        router.stream_ended(pick.pick_id, 1.0)
        router.complete(ended(pick, status=500), 1.1)
    assert member(router, 1).health.sound


def test_a_client_error_takes_nobody_out() -> None:
    """case e15"""
    router = fleet()
    for _ in range(3 * FAULTS_IN_A_ROW):
        pick = route(router, 1.0, subset=["10.0.0.1"])
        router.answered(pick.pick_id, address(1), 400, 1.0)
        over(router, pick, 1.0)
    assert member(router, 1).health.sound


def test_a_server_that_says_503_is_spared_while_another_can_serve() -> None:
    router = fleet()
    pick = route(router, 0.0, subset=["10.0.0.1"])
    router.answered(pick.pick_id, address(1), 503, 0.0)
    assert all(route(router, 0.1).address != address(1) for _ in range(6))


def test_a_failure_of_nobody_knows_whom_is_nobodys() -> None:
    """A 503 that the gateway made up itself, or one that does not say who served."""
    router = fleet()
    for _ in range(3 * FAULTS_IN_A_ROW):
        pick = route(router, 1.0, subset=["10.0.0.1"])
        router.answered(pick.pick_id, None, 503, 1.0)
        router.stream_ended(pick.pick_id, 1.0)
    assert member(router, 1).health.sound


def test_a_first_choice_that_others_had_to_serve_for_has_declined() -> None:
    """Three times in a row: nobody listens there, say, and no log tells."""
    router = fleet()
    for _ in range(FAULTS_IN_A_ROW):
        pick = route(router, 1.0, subset=["10.0.0.1"])
        router.answered(pick.pick_id, address(2), 200, 1.0)
        router.stream_ended(pick.pick_id, 1.0)
    assert member(router, 1).health.sound, "the log may tell more"
    router.stream_ended("another", 1.1 + ATTEMPT_WAIT_S)
    assert not member(router, 1).health.sound
    assert member(router, 2).health.sound


def test_a_server_that_was_not_named_is_counted() -> None:
    """case b10"""
    router = fleet(4)
    pick = route(router, 0.0, subset=["10.0.0.1"])
    router.answered(pick.pick_id, Address.of("10.0.0.4", 8000), 200, 1.0)
    over(router, pick, 2.0)
    assert router.ledger.served_elsewhere == 1


def test_the_prompt_is_learned_where_it_was_served() -> None:
    router = Router([PoolPlan(pool(3), PROFILES["cache-aware"], 3)], rng=Random(1))
    observe_all(router, 0.0)
    body = b'{"prompt": "%s"}' % (b"a long story " * 400)
    subset = frozenset({"10.0.0.1"})
    pick = router.route(RawRequest("POST", "/v1/completions", body=body, subset=subset), 0.0)
    assert isinstance(pick, Pick)
    router.answered(pick.pick_id, address(2), 200, 0.5)
    explained = router.explain(RawRequest("POST", "/v1/completions", body=body), 0.5)
    assert explained.request is not None
    holders = {row.address for row in explained.endpoints if row.held_blocks == explained.request.blocks}
    assert holders == {"10.0.0.1:8000", "10.0.0.2:8000"}


def test_what_is_forgotten_is_passed_over() -> None:
    router = fleet()
    router.answered("nobody's", address(1), 200, 1.0)
    assert router.ledger.moved == 0
