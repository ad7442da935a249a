"""A pool whose requests fare well for an hour needs less room; what shows that it does not takes that back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from extproc.autoscale.calm import CALM_DOWN_RATIO, Calm
from extproc.autoscale.known import Measured
from extproc.autoscale.policy import DOWN_RATIO
from extproc.autoscale.reading import ServerReading
from extproc.autoscale.recommendation import Recommendation, Verdict
from extproc.autoscale.signals import LONG_S, Signals
from extproc.pool.sample import Histogram
from tests.autoscale.fleet import STEP_S, Run, policy, server

TARGET_S = 1.0
BOUNDS_S = (0.25, 0.5, 1.0, 2.0, 4.0)


class Told:
    """One `Calm` that is told of a pool every five seconds."""

    def __init__(self) -> None:
        self.calm = Calm()
        self.now = 0.0

    def for_s(
        self, seconds: float, p99_s: float | None = 0.4, *, target_s: float | None = TARGET_S, **more: Any
    ) -> Calm:
        until_s = self.now + seconds
        while self.now < until_s:
            self.now += STEP_S
            p99 = None if p99_s is None else Measured(p99_s, 0.0)
            self.calm.note(Signals(self.now, ttft_long_p99_s=p99, **more), target_s, 60.0)
        return self.calm


def test_an_hour_well_within_the_target_makes_it_calm_and_no_less() -> None:
    told = Told()
    told.for_s(2 * STEP_S)  # before the first look nobody looked
    assert not told.for_s(LONG_S - STEP_S).now
    calm = told.for_s(STEP_S)
    assert calm.now
    assert calm.down_ratio == CALM_DOWN_RATIO


@pytest.mark.parametrize("trouble", [{"p99_s": 0.81}, {"p99_s": None}], ids=["near the target", "not known"])
def test_it_is_calm_only_while_the_last_hour_was_well_within_the_target(trouble: dict[str, Any]) -> None:
    """That is read over an hour, so it takes no other one."""
    told = Told()
    told.for_s(2 * LONG_S)
    assert not told.for_s(STEP_S, **trouble).now
    assert told.calm.down_ratio == DOWN_RATIO
    assert told.for_s(STEP_S).now


@pytest.mark.parametrize("trouble", [{"jumped": True}, {"target_s": None}], ids=["a jump", "no target"])
def test_what_is_amiss_for_a_moment_costs_an_hour(trouble: dict[str, Any]) -> None:
    told = Told()
    told.for_s(2 * LONG_S)
    calm = told.for_s(STEP_S, **trouble)
    assert not calm.now
    assert calm.down_ratio == DOWN_RATIO
    assert not told.for_s(LONG_S).now
    assert told.for_s(STEP_S).now


def test_near_the_target_it_keeps_its_servers() -> None:
    told = Told()
    calm = told.for_s(2 * LONG_S, 0.6)
    assert calm.now
    assert calm.down_ratio == DOWN_RATIO
    assert told.for_s(STEP_S, 0.5).down_ratio == CALM_DOWN_RATIO


def test_a_time_without_looks_is_no_proof() -> None:
    told = Told()
    told.for_s(LONG_S - 60.0)
    told.now += 120.0
    assert not told.for_s(LONG_S).now


def test_after_a_server_was_asked_for_none_goes_early_for_an_hour() -> None:
    told = Told()
    calm = told.for_s(2 * LONG_S)
    calm.up(told.now)
    assert calm.now
    assert calm.down_ratio == DOWN_RATIO
    assert told.for_s(LONG_S - STEP_S).down_ratio == DOWN_RATIO
    assert told.for_s(STEP_S).down_ratio == CALM_DOWN_RATIO


def test_a_server_that_is_missed_within_a_quarter_of_an_hour_takes_twice_as_long_each_time_up_to_a_day() -> None:
    told = Told()
    told.for_s(2 * LONG_S)
    took = []
    for _ in range(7):
        told.calm.down(told.now)
        told.for_s(600.0)
        for _ in range(3):
            told.calm.up(told.now)  # what is asked for step by step is one question
        began_s = told.now
        while told.calm.down_ratio == DOWN_RATIO:
            told.for_s(STEP_S)
        took.append((told.now - began_s) / LONG_S)
    assert took == [2.0, 4.0, 8.0, 16.0, 24.0, 24.0, 24.0]
    told.calm.down(told.now)
    told.for_s(LONG_S / 4)
    told.calm.up(told.now)
    assert told.for_s(LONG_S).down_ratio == CALM_DOWN_RATIO, "one that is not missed makes up for it"


class Served:
    """A pool of a recommender, whose requests have their first token within a time."""

    def __init__(self, **changes: Any) -> None:
        self.run = Run(policy(ttft_target_s=TARGET_S, **changes))
        self.counts = [0.0] * (len(BOUNDS_S) + 1)

    def for_s(
        self, seconds: float, count: int, rate: float | Callable[[float], float], first_token: int = 0
    ) -> Recommendation:
        """`first_token`: the bucket of all of them."""
        last = None
        for i in range(int(seconds / STEP_S)):
            each = rate(i * STEP_S) if callable(rate) else rate
            self.counts[first_token] += each * STEP_S
            last = self.run.look([self._server(n) for n in range(count)], each)
        assert last is not None
        return last

    def _server(self, number: int) -> ServerReading:
        """The first one's histogram tells of all."""
        cumulated = tuple(sum(self.counts[: n + 1]) for n in range(len(self.counts)))
        ttft = Histogram((*BOUNDS_S, float("inf")), cumulated, 0.0) if not number else None
        return server(number, ttft=ttft)


def test_a_calm_pool_may_be_used_to_what_servers_of_one_queue_bear() -> None:
    """29 requests/s and then 32 are 3.2 servers at their knee of 10. Sakasegawa's formula gives three a tenth more."""
    calm, other, told_not_to = Served(), Served(), Served(ease=False)
    first = calm.for_s(1.5 * LONG_S, 3, 29.0)
    assert (first.calm, first.desired) == (True, 3)
    assert 1.07 < first.room < 1.2
    last = calm.for_s(600.0, 3, 32.0)
    assert (last.desired, last.verdict) == (3, Verdict.OK)
    assert "of the load test" in next(row.words for row in calm.run.seen[-1].signals if row.name == "requests")
    other.for_s(0.5 * LONG_S, 3, 29.0)
    last = other.for_s(600.0, 3, 32.0)
    assert (last.desired, last.verdict) == (4, Verdict.EARLY)
    assert told_not_to.for_s(1.5 * LONG_S, 3, 29.0).room == 1.0
    assert told_not_to.for_s(600.0, 3, 32.0).desired == 4


def test_what_grows_is_asked_for_as_ever() -> None:
    """0.04 requests/s more each second are 4.2 in a lead of 106 s, which is more than the room that calm gave."""
    served = Served()
    assert served.for_s(1.5 * LONG_S, 3, 22.0).calm
    asked = served.for_s(240.0, 3, lambda at_s: 22.0 + 0.04 * at_s)
    assert asked.desired == 4
    assert "in 106 s" in served.run.recommender._up_words


def test_a_calm_pool_gives_a_server_back_where_it_fits_on_the_others_at_nine_tenths() -> None:
    served = Served()
    assert served.for_s(LONG_S, 4, 26.0).desired == 4, "more than 0.7 of three"
    last = served.for_s(400.0, 4, 26.0)
    assert last.desired == 3
    assert last.down_ratio == CALM_DOWN_RATIO
    assert any("under 0.9 of every threshold" in said.reason for said in served.run.seen)


def test_requests_over_the_target_take_the_room_back() -> None:
    served = Served()
    assert served.for_s(1.5 * LONG_S, 3, 29.0).calm
    last = served.for_s(120.0, 3, 29.0, first_token=4)
    assert (last.calm, last.room, last.down_ratio) == (False, 1.0, DOWN_RATIO)


def test_a_jump_takes_it_back_and_a_burst_does_not() -> None:
    for seconds, calm in ((60.0, False), (10.0, True)):
        served = Served()
        assert served.for_s(1.5 * LONG_S, 3, 20.0).calm
        served.for_s(seconds, 3, 40.0)
        assert served.for_s(STEP_S, 3, 20.0).calm is calm


@pytest.mark.parametrize("lacks", [{"calibration": None}, {"ttft_target_s": None}])
def test_without_a_load_test_or_a_target_nothing_is_eased(lacks: dict[str, Any]) -> None:
    served = Served()
    served.run = Run(replace(policy(), **lacks))
    last = served.for_s(2 * LONG_S, 3, 5.0)
    assert (last.calm, last.room, last.down_ratio) == (False, 1.0, DOWN_RATIO)
