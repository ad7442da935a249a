"""Many servers of one queue bear more each than one alone."""

from __future__ import annotations

from math import sqrt

import pytest

from extproc.autoscale.pooling import MOST_RHO, pooled


def test_one_server_bears_what_it_bears() -> None:
    assert pooled(0.8, 1) == 1.0


@pytest.mark.parametrize("rho", [0.5, 0.8, 0.85, 0.95])
def test_more_servers_bear_more_each_and_none_is_ever_full(rho: float) -> None:
    ratios = [pooled(rho, count) for count in range(1, 65)]
    assert ratios == sorted(ratios)
    assert ratios[1] > 1.0
    assert all(rho * ratio <= MOST_RHO + 1e-9 for ratio in ratios)


def test_they_wait_as_long_as_the_one_by_the_formula() -> None:
    rho = 0.7 * pooled(0.7, 2)
    assert rho ** (sqrt(6.0) - 1.0) / (2.0 * (1.0 - rho)) == pytest.approx(0.7 / 0.3, rel=1e-4)


def test_two_of_an_exact_queue_wait_no_longer_than_that() -> None:
    """M/M/2, where the wait is known: rho^2 / (1 - rho^2) services, and rho / (1 - rho) for one server."""
    for one in (0.5, 0.7, 0.85):
        two = one * pooled(one, 2)
        assert two**2 / (1.0 - two**2) == pytest.approx(one / (1.0 - one), rel=0.05)


@pytest.mark.parametrize("rho", [0.0, -1.0, MOST_RHO, 1.0, 2.0, float("nan")])
def test_a_load_test_that_tells_no_room_gives_none(rho: float) -> None:
    assert pooled(rho, 8) == 1.0
