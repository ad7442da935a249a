"""How many requests a second does a server begin?"""

from __future__ import annotations

import pytest

from extproc.pool.begun import HALF_LIFE_S, BeginRate
from extproc.pool.sample import Histogram, LoadSample


def told(at_s: float, count: float | None) -> LoadSample:
    ttft = None if count is None else Histogram((float("inf"),), (count,), count)
    return LoadSample(at_s, ttft=ttft)


def rate(*samples: LoadSample) -> float | None:
    made = BeginRate()
    for sample in samples:
        made.observe(sample)
    return made.per_s


def test_it_is_unknown_until_two_samples_tell() -> None:
    assert rate() is None
    assert rate(told(0, 100)) is None
    assert rate(told(0, None), told(1, None)) is None
    assert rate(told(0, 100), told(1, None), told(2, 106)) == pytest.approx(3.0)


def test_a_steady_server_is_measured_exactly_and_a_stuck_one_falls_towards_zero() -> None:
    steady = [told(0.5 * n, 2.0 * n) for n in range(100)]
    assert rate(*steady) == pytest.approx(4.0)
    stuck = [told(49.5 + n, 198.0) for n in range(1, 41)]
    assert 0.0 < (rate(*steady, *stuck) or 0.0) < 4.0 * 2 ** (-40 / HALF_LIFE_S) * 1.1


def test_a_restart_and_a_sample_of_the_same_moment_change_nothing() -> None:
    assert rate(told(0, 100), told(1, 104), told(2, 3)) == pytest.approx(4.0)
    assert rate(told(0, 100), told(1, 104), told(1, 900), told(2, 108)) == pytest.approx(4.0)
