"""May a server be given requests: what a scrape and what a request's end can say."""

from __future__ import annotations

import pytest

from extproc.pool.health import EJECT_MAX_S, EJECT_S, FAULTS_IN_A_ROW, SILENT_AFTER_S, Health
from extproc.pool.member import Member, State
from tests.support.fleet import STALE_AFTER_S, endpoint, sample


def failing(health: Health, now: float, *, refused: bool = False, answered: bool = False) -> None:
    health.scrape_failed("refused" if refused else "timeout", now, answered=answered, refused=refused)


def eject(health: Health, now: float) -> None:
    for _ in range(FAULTS_IN_A_ROW):
        health.request_fault(now)


def test_a_server_that_refuses_twice_is_out_until_a_scrape_works() -> None:
    health = Health()
    failing(health, 0.0, refused=True)
    assert health.problem(0.0) is None
    failing(health, 1.0, refused=True)
    assert health.problem(1.0) == "connection refused"
    health.scrape_worked()
    assert health.problem(1.0) is None


def test_a_refusal_between_time_outs_is_not_two_in_a_row() -> None:
    health = Health()
    for now, refused in enumerate((True, False, True, False)):
        failing(health, float(now), refused=refused)
    assert health.problem(4.0) is None


def test_a_slow_server_is_stale_not_dead_until_it_was_silent_for_long() -> None:
    """case d09: a loaded vLLM answers its metrics page late and serves fine"""
    health = Health()
    for now in range(int(SILENT_AFTER_S) + 1):
        failing(health, float(now))
        assert health.problem(float(now)) is None
    assert health.problem(SILENT_AFTER_S + 0.1) == "no answer"


def test_any_answer_shows_that_somebody_is_there() -> None:
    """case d07: a 404 from the metrics path is no reason to send nothing"""
    health = Health()
    failing(health, 0.0, refused=True)
    failing(health, 1.0, answered=True)
    failing(health, 2.0, refused=True)
    assert health.reached
    assert health.problem(100.0 + SILENT_AFTER_S) == "no answer"
    failing(health, 131.0, answered=True)
    assert health.problem(131.0) is None


def test_faults_in_a_row_eject_and_time_lets_it_return() -> None:
    """case e15"""
    health = Health()
    assert [health.request_fault(0.0) for _ in range(FAULTS_IN_A_ROW)] == [False, False, True]
    assert health.problem(EJECT_S - 0.01) == "errors in a row"
    assert health.problem(EJECT_S) is None


def test_a_good_answer_between_faults_starts_the_row_anew() -> None:
    health = Health()
    for now in range(20):
        health.request_fault(float(now))
        health.request_fault(float(now))
        health.request_ok(float(now))
    assert health.problem(20.0) is None


def test_after_its_return_the_first_fault_ejects_again_for_twice_as_long_up_to_a_bound() -> None:
    """case e15: a black hole may not take three requests each time"""
    health, now, lengths = Health(), 0.0, []
    eject(health, now)
    for _ in range(8):
        lengths.append(health.ejected_until_s - now)
        now = health.ejected_until_s
        assert health.problem(now) is None
        assert health.request_fault(now)
    assert lengths == [5, 10, 20, 40, 60, 60, 60, 60]
    assert lengths[-1] == EJECT_MAX_S


def test_a_server_that_has_failed_for_days_is_still_ejected_for_the_bound() -> None:
    """2**1024 seconds are no float."""
    health, now = Health(), 0.0
    eject(health, now)
    for _ in range(1_100):
        now = health.ejected_until_s
        health.request_fault(now)
    assert health.ejected_until_s - now == EJECT_MAX_S


def test_a_good_answer_since_forgets_all_ejections() -> None:
    health = Health()
    eject(health, 0.0)
    health.request_fault(EJECT_S)
    health.request_ok(2 * EJECT_S)
    assert health.problem(2 * EJECT_S) is None
    assert [health.request_fault(20.0) for _ in range(FAULTS_IN_A_ROW)] == [False, False, True]
    assert health.ejected_until_s == 20.0 + EJECT_S


def test_the_late_answer_to_a_request_sent_before_the_ejection_proves_nothing() -> None:
    """A long stream of a server that broke a second ago ends well all the same."""
    health = Health()
    eject(health, 10.0)
    health.request_ok(9.0)
    assert health.problem(11.0) == "errors in a row"


def test_late_faults_while_ejected_do_not_prolong_it() -> None:
    health = Health()
    eject(health, 0.0)
    eject(health, 1.0)
    assert health.problem(EJECT_S) is None


def test_requests_that_others_had_to_take_eject_shortly_and_never_longer() -> None:
    """cases b05, b06; and a server that is only full (503, retried elsewhere) must not be shut out for a minute"""
    health, now = Health(), 0.0
    for _ in range(5):
        assert [health.request_declined(now) for _ in range(FAULTS_IN_A_ROW)] == [False, False, True]
        assert health.ejected_until_s - now == EJECT_S
        now = health.ejected_until_s
        assert health.problem(now) is None


def test_a_sleeping_engine_is_out_until_it_says_that_it_is_awake() -> None:
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S)
    member.observe(sample(0.0, sleeping=True))
    assert member.state(0.0) is State.UNHEALTHY
    assert member.health.problem(0.0) == "the engine sleeps"
    member.observe(sample(1.0, sleeping=False))
    assert member.state(1.0) is State.READY


@pytest.mark.parametrize("usable", [True, False])
def test_a_page_of_any_kind_makes_a_starting_server_ready(usable: bool) -> None:
    """case d07"""
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S)
    assert member.state(0.0) is State.STARTING
    member.observe(sample(0.0) if usable else sample(0.0, waiting=None, running=None, kv=None))
    assert member.state(0.0) is State.READY
    assert (member.fresh_sample(0.0) is not None) == usable


def test_a_sample_is_believed_for_stale_after_and_no_longer() -> None:
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S)
    member.observe(sample(10.0))
    assert member.fresh_sample(10.0 + STALE_AFTER_S) is not None
    assert member.fresh_sample(10.0 + STALE_AFTER_S + 0.001) is None


def test_drained_is_a_wish_and_unhealthy_an_observation_and_both_are_told() -> None:
    member = Member(endpoint(1, drained=True), stale_after_s=STALE_AFTER_S)
    eject(member.health, 0.0)
    assert member.state(0.0) is State.DRAINED
    assert member.health.problem(0.0) == "errors in a row"
