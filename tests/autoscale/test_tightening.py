"""Thresholds that the time to first token proves too high are lowered, step by step, and never raised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.autoscale.recommendation import Verdict
from extproc.autoscale.signals import TTFT_WINDOWS
from extproc.autoscale.thresholds import LEAST_RATIO
from extproc.autoscale.tightening import STEP, Tightening
from tests.autoscale.fleet import CALIBRATION, Run, policy, servers

SPAN_S = TTFT_WINDOWS * 60.0  # over which the time to first token is read


def test_only_a_verdict_that_persists_lowers_the_rate_and_each_step_takes_as_long() -> None:
    tightening = Tightening(policy())
    assert tightening.judged(0.0, Verdict.LATE) is None
    assert tightening.judged(SPAN_S - 1.0, Verdict.LATE) is None
    first = tightening.judged(SPAN_S, Verdict.LATE)
    assert first is not None
    assert first.knee.rate_per_s == pytest.approx(10.0 * STEP)
    assert tightening.judged(2 * SPAN_S - 1.0, Verdict.LATE) is None
    second = tightening.judged(2 * SPAN_S, Verdict.LATE)
    assert second is not None
    assert second.knee.rate_per_s == pytest.approx(10.0 * STEP * STEP)


@pytest.mark.parametrize("other", [*(v for v in Verdict if v is not Verdict.LATE), None])
def test_any_other_verdict_begins_the_time_anew_and_raises_nothing(other: Verdict | None) -> None:
    tightening = Tightening(policy())
    tightening.judged(0.0, Verdict.LATE)
    assert tightening.judged(SPAN_S, Verdict.LATE) is not None
    for at_s in range(int(SPAN_S), int(5 * SPAN_S), 60):
        assert tightening.judged(float(at_s), other) is None
    assert tightening.ratio == STEP
    assert tightening.judged(5 * SPAN_S, Verdict.LATE) is None


def test_it_ends_at_the_least_share_of_the_knee() -> None:
    tightening = Tightening(policy())
    changed = [tightening.judged(step * SPAN_S, Verdict.LATE) for step in range(100)]
    policies = [each for each in changed if each is not None]
    rates = [each.knee.rate_per_s or 0.0 for each in policies]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == pytest.approx(LEAST_RATIO * CALIBRATION.knee_per_s)
    assert changed[-1] is None
    grown = policies[-1].thresholds(1.0, 1e6)
    assert grown.rate_per_s == pytest.approx(LEAST_RATIO * CALIBRATION.knee_per_s), "growth takes it no further"


def test_without_a_load_test_there_is_nothing_to_lower() -> None:
    tightening = Tightening(policy(calibration=None))
    assert [tightening.judged(step * SPAN_S, Verdict.LATE) for step in range(5)] == [None] * 5


def test_a_tightened_policy_makes_the_recommender_ask_for_more_at_the_same_load() -> None:
    """28 requests/s are 2.8 servers at the knee, and 3.3 at 0.85 of it."""
    run = Run(policy())
    assert run.for_s(200.0, servers(3), 28.0).desired == 3
    calibration = replace(CALIBRATION, tightened_to=0.85)
    run.recommender.policy = replace(run.recommender.policy, calibration=calibration)
    assert run.for_s(30.0, servers(3), 28.0).desired == 4


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="tightened_to"):
        replace(CALIBRATION, tightened_to=share)
