"""A fleet that follows its load, in virtual time: the recommender and the router as in service, over simulated engines,
cold starts of two minutes and an HPA.

Runs are seeded, so that they give the same figures everywhere; each bound says what it follows from. K is the knee of
the load test: the rate at which one server still meets the target.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import inf

import pytest

from extproc.autoscale.policy import Policy
from extproc.autoscale.recommendation import Recommendation, SignalName, Verdict
from extproc.autoscale.schedule import Schedule
from extproc.sim.scaling.run import Ran, run
from extproc.sim.scaling.scalers import ours
from extproc.sim.scaling.scenarios import (
    COLD_START,
    LARGE,
    SCENARIOS,
    SLOWER,
    TARGET_S,
    Scenario,
    profile,
    sine,
    without_lead,
)
from extproc.sim.scaling.traffic import bursts, steady

COLD_S = COLD_START.total_s()


@cache
def ran(name: str) -> Ran:
    return follow(SCENARIOS[name])


def follow(scenario: Scenario, policy: Policy | None = None) -> Ran:
    return run(scenario.plan(), ours(policy or scenario.policy(), scenario.unix_s), seed=1)


def desired(of: Ran) -> list[int]:
    return [said.desired or 0 for said in of.seen]


def value(said: Recommendation, name: SignalName) -> float | None:
    return next((row.value for row in said.signals if row.name is name), None)


def replicas(said: Recommendation, name: SignalName) -> int | None:
    return next((row.replicas for row in said.signals if row.name is name), None)


def directions(of: Ran) -> list[int]:
    return [after - before for (_, before), (_, after) in pairwise(of.wanted)]


# Load that changes ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_steady_load_with_noise_is_followed_by_no_reversal_for_two_hours() -> None:
    of = ran("steady")
    assert of.reversals(inf) == 0
    assert set(directions(of)) <= {1}
    assert max(desired(of)) <= 4, "2.2 K fit on three, and chance asks for one more at most"
    assert of.attained(TARGET_S) >= 0.99


def test_a_ramp_within_the_design_growth_stays_in_target_and_without_the_lead_it_does_not() -> None:
    """0.008 K a second on three servers or more is at most 0.44 K a server within a lead of 165 s; 0.45 K are designed
    for. The control run takes servers to be there as soon as they are asked for: it asks for the fourth when three are
    full, and 1.2 K more have come until it is there."""
    scenario = SCENARIOS["growth"]
    with_lead, control = ran("growth"), follow(scenario, without_lead(scenario.policy()))
    assert with_lead.ttft_p99_s(200.0) <= TARGET_S
    assert control.ttft_p99_s(200.0) > TARGET_S
    assert with_lead.attained(TARGET_S) >= 0.99


def test_a_doubling_step_is_answered_at_once_and_bears_the_load_after_a_cold_start() -> None:
    of = ran("doubling")
    first = next(at_s for (_, before), (at_s, after) in pairwise(of.wanted) if after > before)
    assert 300.0 < first <= 300.0 + 60.0, "within a window"
    assert max(desired(of)) >= 4
    assert of.ttft_p99_s(300.0 + 60.0 + 1.1 * COLD_S + 150.0) <= TARGET_S
    assert of.reversals(300.0) == 0, "what the backlog asked for stays for the time of scaling down"


def test_a_step_is_answered_by_what_it_takes_and_no_more() -> None:
    """3.3 K fit on four. A step is no ramp, and the queue of the cold start is worked off by the four."""
    of = ran("step")
    assert desired(of)[-1] == max(desired(of)) == 4
    assert of.attained(TARGET_S) >= 0.99


@pytest.mark.slow
def test_a_pool_that_was_calm_for_an_hour_gives_a_server_back_that_it_does_not_need() -> None:
    """3.4 K are more than 0.7 of four servers and less than 0.9 of them."""
    scenario = Scenario("", 5400.0, steady(3.4), servers=5)
    eased, other = follow(scenario), follow(scenario, scenario.policy(ease=False))
    assert [replicas for _, replicas in eased.wanted] == [5, 4]
    assert 3600.0 < eased.wanted[-1][0] < 3600.0 + 300.0 + 120.0
    assert eased.attained(TARGET_S) >= 0.99
    assert [replicas for _, replicas in other.wanted] == [5]


def test_bursts_of_ten_seconds_ask_for_nothing() -> None:
    of = ran("bursts")
    assert of.wanted == [(0.0, 4)]
    assert of.attained(TARGET_S) >= 0.99


def test_bursts_ask_for_nothing_where_they_are_more_than_all_servers_bear() -> None:
    """The load of 5.8 servers on seven, which is that of 11.6 for ten seconds: a queue in each burst."""
    rate = bursts(steady(5.8), 2.0, every_s=180.0, seconds=10.0, from_s=90.0)
    of = follow(Scenario("", 1800.0, rate, servers=7))
    assert max(value(said, SignalName.WAITING) or 0.0 for said in of.seen) > 1.0
    assert of.wanted == [(0.0, 7)]
    assert of.attained(TARGET_S) >= 0.99


def test_three_requests_of_100_000_tokens_on_one_of_eight_ask_for_nothing() -> None:
    """The router puts two of them on one server, whose cache they fill to 85 % over a window; the threshold is 50 %."""
    of = ran("long-prompts")
    assert max(each.prompt_tokens for each in of.arrivals) == 100_000
    full = [said for said in of.seen if "a server has a KV usage of" in said.reason]
    assert full, "its cache is fuller than the threshold of one server, and no server may go meanwhile"
    assert {said.desired for said in of.seen if said.at_s <= full[-1].at_s} == {8}
    assert all(replicas(said, SignalName.KV_USAGE) is None for said in of.seen)
    assert set(directions(of)) == {-1}, "afterwards one goes"


def test_answers_twice_as_long_are_seen_by_littles_law_before_any_queue() -> None:
    of = ran("long-answers")
    asks = [said.at_s for said in of.seen if (replicas(said, SignalName.REQUESTS) or 0) > 3]
    waits = [said.at_s for said in of.seen if (replicas(said, SignalName.WAITING) or 0) > 3 and said.at_s > 600.0]
    assert asks
    assert 600.0 < asks[0] < 600.0 + 120.0
    assert not waits or asks[0] < waits[0]
    before, after = ([s for s in of.seen if low < s.at_s < high] for low, high in ((400.0, 600.0), (700.0, 900.0)))
    needs = [max(value(said, SignalName.REQUESTS) or 0.0 for said in part) for part in (before, after)]
    assert needs[1] > 1.5 * needs[0]


def test_long_prompts_with_little_kv_usage_ask_for_servers() -> None:
    of = ran("prefill")
    assert max(desired(of)) >= 4
    usage = [value(said, SignalName.KV_USAGE) or 0.0 for said in of.seen]
    first = next(said for said in of.seen if (said.desired or 0) > 2)
    assert (value(first, SignalName.KV_USAGE) or 0.0) < 0.1
    assert max(usage) < 0.3
    assert of.ttft_p99_s(900.0) <= TARGET_S


def test_falling_load_takes_servers_one_at_a_time_and_cuts_nothing() -> None:
    of = ran("falling")
    assert len(of.gone) >= 3
    assert set(directions(of)) == {-1}
    assert all(left == 0 for _, left in of.gone), "no server went with a request"
    assert all(later - before >= 300.0 for (before, _), (later, _) in pairwise(of.wanted[1:]))
    for (wanted_s, _), (gone_s, _), (next_s, _) in zip(of.wanted[1:], of.gone, of.wanted[2:], strict=False):
        assert wanted_s <= gone_s <= next_s, "the next goes after the one before has gone"
    assert of.attained(TARGET_S) >= 0.99
    assert (of.refused, of.in_flight_left) == (0, 0)


def test_the_large_fleet_is_the_small_one_in_slow_motion() -> None:
    """Half as fast with twice the target: the same queue at half the rate. Gauges are not read at the same moments."""
    assert profile(fleet=LARGE).knee_per_s == pytest.approx(profile().knee_per_s / SLOWER, rel=0.02)
    plan = replace(SCENARIOS["large-step"], seconds=60.0).plan()
    assert (plan.servers, plan.max_replicas, plan.tolerance) == (9, 36, 0.0)
    assert SCENARIOS["step"].plan().tolerance == 0.1


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_from_zero_the_first_requests_bring_a_server() -> None:
    """case f09: what is refused is counted as demand."""
    of = ran("from-zero")
    assert of.refused > 0
    assert of.wanted[0] == (0.0, 0)
    assert of.wanted[1][1] >= 1
    assert of.wanted[1][0] <= 90.0, "a window to look, and the platform's interval"
    there_s = next(moment.at_s for moment in of.moments if moment.ready >= 2)
    assert of.ttft_p99_s(there_s + 150.0) <= TARGET_S
    late = [ttft_s for each, ttft_s in zip(of.arrivals, of.ttft_s, strict=True) if each.at_s > there_s + 10.0]
    assert all(ttft_s < inf for ttft_s in late), "nothing is refused any more"


def test_at_max_it_says_so() -> None:
    of = ran("at-max")
    assert of.wanted == [(0.0, 2)]
    assert of.seen[-1].verdict is Verdict.AT_CAPACITY
    assert "max_replicas" in of.seen[-1].reason


@pytest.mark.parametrize("lost", ["one", "half", "all"])
def test_lost_metrics_take_no_server(lost: str) -> None:
    """1 K on four: two servers might go in half an hour. While metrics are lost, and for the time of scaling down after
    it, none does."""
    of = ran(f"metrics-lost-{lost}")
    gone = [at_s for (_, before), (at_s, after) in pairwise(of.wanted) if after < before]
    assert all(not 200.0 < at_s < 800.0 + 300.0 for at_s in gone)
    assert gone, "afterwards one goes"
    unknown = [said for said in of.seen if 230.0 < said.at_s < 790.0]
    assert all(said.stale_servers == {"one": 1, "half": 2, "all": 4}[lost] for said in unknown)
    assert unknown[-1].stale == (lost == "all"), "without any metrics there is no number after 300 s"


# Advice ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("waiting", "said"), [(100.0, Verdict.LATE), (2.0, Verdict.SCALING)])
def test_thresholds_twice_too_high_give_the_verdict_late_unless_the_queue_asks(waiting: float, said: Verdict) -> None:
    """A profile whose knee is twice the true one asks for half of the servers. A queue of twice its threshold comes as
    soon as one of the threshold itself, so waiting makes up for it, too late, but as long as it is out by no more."""
    scenario = replace(SCENARIOS["doubling"], seconds=900.0, rate=lambda _: 2.4, servers=2)
    true = profile().calibration
    twice = tuple(
        replace(
            step,
            rate_per_s=2.0 * step.rate_per_s,
            waiting=waiting * (step.waiting or 0.0),
            running=2.0 * (step.running or 0.0),
            kv_usage_ratio=min(1.0, 2.0 * (step.kv_usage_ratio or 0.0)),
            prefill_tokens_per_s=2.0 * (step.prefill_tokens_per_s or 0.0),
        )
        for step in true.steps
    )
    wrong = replace(true, knee_per_s=2.0 * true.knee_per_s, steps=twice)
    late = follow(scenario, scenario.policy(calibration=wrong))
    right = follow(scenario)
    verdicts = {each.verdict for each in late.seen}
    assert said in verdicts
    assert (Verdict.LATE in verdicts) is (said is Verdict.LATE)
    assert late.seen[-1].ttft_p99_s is not None
    assert Verdict.LATE not in {each.verdict for each in right.seen}


def test_a_day_with_a_schedule_has_its_servers_before_the_morning() -> None:
    """08:00 in Berlin on a working day, load by noon; the schedule opens a lead earlier."""
    pytest.importorskip("croniter")
    monday_s = 1_750_636_800.0 - 2 * 3600.0  # 2025-06-23 00:00 in Berlin
    opens_s = 1800.0
    scenario = Scenario(
        "an hour of morning",
        3000.0,
        lambda at_s: 0.6 if at_s < opens_s else sine(0.6, 2.6, 2400.0)(at_s - opens_s),
        servers=1,
        schedules=(Schedule("0 8 * * 1-5", "0 20 * * 1-5", 3, "Europe/Berlin"),),
        unix_s=monday_s + 8 * 3600.0 - opens_s,
    )
    of = follow(scenario)
    ready_s = next(moment.at_s for moment in of.moments if moment.ready >= 3)
    asked_s = next(at_s for at_s, wanted in of.wanted if wanted >= 3)
    assert opens_s - 200.0 <= asked_s < ready_s <= opens_s
    assert of.attained(TARGET_S) >= 0.99
    assert of.reversals(inf) == 0


@pytest.mark.slow
def test_a_day_of_a_sine_with_a_schedule_keeps_its_servers_while_that_is_open_and_gives_them_back_after_it() -> None:
    """A day in two hours: the schedule opens a lead before 40 minutes and closes at 80, as the load falls."""
    pytest.importorskip("croniter")
    opens_s, closes_s = 2400.0, 4800.0
    midnight_s = 1_750_636_800.0
    scenario = Scenario(
        "a day with a schedule",
        7200.0,
        sine(0.6, 2.6, 7200.0),
        schedules=(Schedule("40 0 * * *", "20 1 * * *", 5, "UTC"),),
        unix_s=midnight_s,
    )
    of, without = follow(scenario), follow(replace(scenario, schedules=()))
    assert max(desired(without)) < 5, "the load alone asks for fewer"
    by_time = [(moment.at_s, moment.ready) for moment in of.moments]
    assert all(ready >= 5 for at_s, ready in by_time if opens_s <= at_s <= closes_s)
    assert all(ready < 5 for at_s, ready in by_time if at_s < opens_s - 200.0)
    assert by_time[-1][1] < 5
    changes = directions(of)
    falls = changes.index(-1)
    assert set(changes[falls:]) == {-1}, "one at a time, and none comes back"
    assert of.wanted[1 + falls][0] > closes_s
    assert of.reversals() == 0
    assert of.attained(TARGET_S) >= 0.99
