"""May a server be given requests: what a scrape and what a request's end can say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.decision import Outcome, Pick
from extproc.pool.health import (
    ALLOWANCE_MAX,
    EJECT_MAX_S,
    EJECT_S,
    FAULTS_IN_A_ROW,
    FULL_MAX_S,
    FULL_S,
    PROBE_WAIT_S,
    RETURN_MAX_S,
    SILENT_AFTER_S,
    Health,
)
from extproc.pool.member import Member, State
from extproc.pool.reservation import Reservation
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
    health.scrape_worked(1.0)
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


def test_it_returns_slowly_and_then_all_is_forgotten() -> None:
    """case e15"""
    health = Health()
    health.scrape_worked(0.0)
    eject(health, 0.0)
    health.request_fault(EJECT_S)
    now = health.ejected_until_s
    allowed = []
    while (bound := health.bound(now)) is not None:
        allowed.append(bound)
        health.scrape_worked(now)
        assert not health.sound
        health.request_ok(now)
    assert allowed == [1, 2, 4, 8, 16, ALLOWANCE_MAX]
    assert health.sound
    assert [health.request_fault(30.0) for _ in range(FAULTS_IN_A_ROW)] == [False, False, True]
    assert health.ejected_until_s == 30.0 + EJECT_S


def test_a_fault_on_the_way_back_ejects_again_for_longer() -> None:
    health = Health()
    eject(health, 0.0)
    for _ in range(3):
        health.request_ok(EJECT_S)
    assert health.request_fault(EJECT_S + 1)
    assert health.ejected_until_s == EJECT_S + 1 + 2 * EJECT_S
    assert health.bound(health.ejected_until_s) == 1


def test_a_good_answer_in_panic_ends_the_ejection() -> None:
    health = Health()
    eject(health, 10.0)
    health.request_ok(11.0)
    assert health.problem(12.0) is None
    assert health.bound(12.0) == 2


def test_without_a_word_of_any_answer_it_is_sound_after_a_while() -> None:
    """The access log may have ceased."""
    health = Health()
    eject(health, 0.0)
    health.scrape_worked(EJECT_S + RETURN_MAX_S - 0.1)
    assert (health.sound, health.bound(EJECT_S + RETURN_MAX_S - 0.1)) == (False, 1)
    health.scrape_worked(EJECT_S + RETURN_MAX_S)
    assert (health.sound, health.bound(EJECT_S + RETURN_MAX_S)) == (True, None)


def test_the_late_faults_of_requests_sent_before_do_not_eject_a_returning_server() -> None:
    """A server hangs with many requests; they are reset when it is restarted, and it is well again."""
    health = Health()
    eject(health, 0.0)
    assert not any(health.request_fault(EJECT_S + 1, sent_at_s=-1.0) for _ in range(50))
    assert health.problem(EJECT_S + 1) is None


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


def test_an_ejected_server_returns_when_a_probe_has_passed() -> None:
    """case e15"""
    health = Health()
    health.scrape_worked(0.0)
    health.probe_passed(0.0)
    eject(health, 1.0)
    assert health.to_probe(2.0)
    health.probe_passed(0.9)  # sent before: it proves nothing
    assert health.problem(1.0 + EJECT_S) == "not probed yet"
    health.probe_passed(1.0 + EJECT_S)
    assert health.problem(1.0 + EJECT_S) is None
    assert not health.to_probe(1.0 + EJECT_S)


def test_a_probe_that_fails_prolongs_the_ejection_and_the_return_begins_after_it() -> None:
    health = Health()
    health.probe_passed(0.0)
    eject(health, 0.0)
    for now in range(1, 200):
        health.probe_failed("/health answers 503", float(now), certain=True)
        assert health.problem(now + 0.9) is not None
    assert health.problem(199.9) == "/health answers 503"
    health.probe_passed(200.0)
    assert health.problem(200.0) is None
    assert health.bound(200.0) == 1


def test_where_nobody_probes_an_ejection_ends_by_time_and_where_nobody_does_any_more_somewhat_later() -> None:
    never, no_more = Health(), Health()
    no_more.probe_passed(0.0)
    for health in (never, no_more):
        eject(health, 0.0)
    assert never.problem(EJECT_S) is None
    assert no_more.problem(EJECT_S + PROBE_WAIT_S - 0.1) is not None
    assert no_more.problem(EJECT_S + PROBE_WAIT_S) is None


@pytest.mark.parametrize("refused", [True, False])
def test_a_server_that_was_away_returns_when_a_probe_has_passed(refused: bool) -> None:
    """case e16: its metrics port may be up before its engine is"""
    health = Health()
    health.probe_passed(0.0)
    for now in range(1, 40):
        failing(health, float(now), refused=refused)
        health.probe_failed("/health: no answer", now + 0.1, certain=False)
    health.scrape_worked(40.0)
    assert health.problem(40.0) == "/health: no answer"
    health.probe_passed(40.1)
    assert health.problem(40.1) is None
    assert health.bound(40.1) is None, "it gave no wrong answer"


def test_a_probe_that_times_out_does_not_take_a_busy_server_out() -> None:
    """case d09"""
    health = Health()
    failing(health, 0.0)
    health.probe_failed("/health: no answer", 1.0, certain=False)
    assert health.problem(1.0) is None


def test_a_new_server_whose_engine_is_dead_is_out_though_its_page_answers() -> None:
    health = Health()
    assert health.to_probe(0.0)
    health.scrape_worked(0.0)
    assert not health.to_probe(0.0)
    health.probe_failed("/health answers 503", 0.1, certain=True)
    assert health.problem(0.1) == "/health answers 503"
    assert health.to_probe(0.1)


def test_a_full_server_comes_last_for_seconds_and_is_not_ejected() -> None:
    """case e15: 429 and 503"""
    health, now, lengths = Health(), 0.0, []
    health.scrape_worked(now)
    for _ in range(5):
        for _ in range(10):
            health.request_full(now)
        assert health.problem(now) is None
        lengths.append(health.full_until_s - now)
        now = health.full_until_s
        assert not health.full(now)
    assert lengths == [FULL_S, 2 * FULL_S, 4 * FULL_S, FULL_MAX_S, FULL_MAX_S]
    health.request_ok(now - FULL_MAX_S - 1)  # sent before it was full
    health.request_full(now)
    assert health.full_until_s - now == FULL_MAX_S
    health.request_ok(now + 1)
    assert health.sound
    health.request_full(now + 1)
    assert health.full_until_s - now - 1 == FULL_S


def test_what_is_held_against_a_server_is_not_forgotten_by_a_scrape() -> None:
    health = Health()
    health.scrape_worked(0.0)
    assert health.sound
    health.request_full(1.0)
    health.scrape_worked(1.5)
    assert not health.sound
    health.scrape_worked(1.0 + FULL_S)
    assert health.sound


def sent(fleet: Member, now: float) -> Reservation:
    return Reservation(Pick("x", fleet.address, (), ""), fleet, "p", "/", now)


def test_a_returning_server_has_so_many_at_once_and_old_requests_do_not_count() -> None:
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S)
    member.observe(sample(0.0))
    old = [sent(member, 1.0) for _ in range(5)]
    eject(member.health, 2.0)
    in_panic = sent(member, 3.0)
    now = 2.0 + EJECT_S
    assert (member.problem(now), member.state(now)) == (None, State.RETURNING)
    first = sent(member, now)
    assert member.problem(now) == "returning: 1 of 1 in flight"
    assert member.state(now) is State.RETURNING
    for number in range(2, 4):
        first.move(Member(endpoint(number), stale_after_s=STALE_AFTER_S), now)
    assert member.problem(now) is None
    for reservation in (*old, in_panic, first):
        reservation.close(Outcome.OK, now)
    assert (member.in_flight, len(member.trials)) == (0, 1), "how it went in panic is not told yet"


_KINDS = [
    *("page", "404", "refused", "time-out", "asleep"),
    *("ok", "old ok", "fault", "old fault", "declined", "full"),
    *("probe", "old probe", "probe 503", "probe time-out"),
]

# What can happen to a server, in any order; the numbers are seconds that pass before.
_EVENTS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 1.0, 7.0, 40.0]),
        st.sampled_from(_KINDS),
    ),
    max_size=60,
)


def happen(health: Health, event: str, now: float) -> None:
    match event:
        case "page" | "asleep":
            health.scrape_worked(now, asleep=event == "asleep")
        case "404" | "refused" | "time-out":
            failing(health, now, refused=event == "refused", answered=event == "404")
        case "ok" | "old ok":
            health.request_ok(now - 20.0 * (event == "old ok"))
        case "fault" | "old fault":
            health.request_fault(now, now - 20.0 * (event == "old fault"))
        case "declined":
            health.request_declined(now)
        case "full":
            health.request_full(now)
        case "probe" | "old probe":
            health.probe_passed(now - 20.0 * (event == "old probe"))
        case _:
            health.probe_failed(event, now, certain=event == "probe 503")


@given(events=_EVENTS, probing=st.booleans(), told=st.booleans())
def test_a_server_that_is_well_from_some_time_on_is_sound_within_a_bound(
    events: list[tuple[float, str]], probing: bool, told: bool
) -> None:
    """Whatever was before; whether or not it is probed, and whether or not its good answers are told."""
    health, now = Health(), 0.0
    for after_s, event in events:
        now += after_s
        happen(health, event, now)
        assert health.ejected_until_s <= now + EJECT_MAX_S
        assert health.full_until_s <= now + FULL_MAX_S
        assert health.allowance is None or 1 <= health.allowance <= ALLOWANCE_MAX
        if health.sound:
            assert health.reached
            assert (health.problem(now), health.bound(now), health.full(now)) == (None, None, False)
    well_s = now
    within_s = EJECT_MAX_S + (0 if probing else PROBE_WAIT_S) + (10.0 if told else RETURN_MAX_S) + 1.0
    while not health.sound:
        now += 0.5
        health.scrape_worked(now)
        if probing and health.to_probe(now):
            health.probe_passed(now)
        if told and health.problem(now) is None:
            health.request_ok(now)
        assert now - well_s <= within_s
    assert health.problem(now) is None


def test_a_sleeping_engine_is_out_until_it_says_that_it_is_awake() -> None:
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S)
    member.observe(sample(0.0, sleeping=True))
    assert member.state(0.0) is State.UNHEALTHY
    assert member.health.problem(0.0) == "the engine sleeps"
    member.observe(sample(1.0, sleeping=False))
    assert member.state(1.0) is State.READY


def test_a_page_about_load_makes_a_starting_server_ready() -> None:
    """case b06"""
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S)
    assert member.state(0.0) is State.STARTING
    member.observe(sample(0.0))
    assert member.state(0.0) is State.READY


def test_a_server_whose_page_never_tells_its_load_is_ready_after_a_while() -> None:
    """case d07"""
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S)
    for now in (0.0, PROBE_WAIT_S - 1.0):
        member.observe(sample(now, waiting=None, running=None, kv=None))
        assert member.state(now) is State.STARTING
    member.observe(sample(PROBE_WAIT_S, waiting=None, running=None, kv=None))
    assert member.state(PROBE_WAIT_S) is State.READY
    assert member.fresh_sample(PROBE_WAIT_S) is None


@pytest.mark.parametrize("page_first", [True, False])
def test_where_servers_are_probed_a_new_one_needs_its_health_too(page_first: bool) -> None:
    """case b06: the page may come from what starts the engine, and so may /health"""
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S, probed=True)
    health = member.health
    for now, page in ((1.0, page_first), (2.0, not page_first)):
        assert member.state(now) is State.STARTING
        assert health.to_probe(now)
        if page:
            member.observe(sample(now))
        else:
            health.probe_passed(now)
    assert member.state(2.0) is State.READY
    assert not health.to_probe(2.0)


def test_a_new_server_whose_health_is_bad_is_out() -> None:
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S, probed=True)
    member.observe(sample(0.0))
    member.health.probe_failed("/health answers 503", 0.5, certain=True)
    assert member.problem(0.5) == "/health answers 503"


def test_a_new_server_whose_health_is_never_told_is_ready_after_a_while() -> None:
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S, probed=True)
    for now in (0.0, PROBE_WAIT_S - 1.0):
        member.observe(sample(now))
        member.health.probe_failed("/health: no answer", now, certain=False)
        assert member.state(now) is State.STARTING
    member.observe(sample(PROBE_WAIT_S))
    assert member.state(PROBE_WAIT_S) is State.READY


def test_a_good_answer_to_a_request_is_proof_enough() -> None:
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S, probed=True)
    member.health.request_ok(0.0)
    assert member.state(0.0) is State.READY


def test_a_sample_is_believed_for_stale_after_and_no_longer() -> None:
    member = Member(endpoint(1), stale_after_s=STALE_AFTER_S)
    member.observe(sample(10.0))
    assert member.fresh_sample(10.0 + STALE_AFTER_S) is not None
    assert member.fresh_sample(10.0 + STALE_AFTER_S + 0.001) is None


def test_drained_is_a_wish_and_unhealthy_an_observation_and_both_are_told() -> None:
    member = Member(endpoint(1, drained=True), stale_after_s=STALE_AFTER_S)
    eject(member.health, 0.0)
    assert member.state(0.0) is State.DRAINING
    assert member.health.problem(0.0) == "errors in a row"
