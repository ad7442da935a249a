"""How long a server takes to start is measured where its start was seen, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.pool.pool import Pool
from extproc.pool.starting import KEPT, StartTimes
from tests.support.fleet import STALE_AFTER_S, address, endpoint, sample

UNIX_S = 1e9  # the time of day at 0 of the clock


def pool_of_one() -> Pool:
    made = Pool("vllm", stale_after_s=STALE_AFTER_S, probed=True, unix_s=UNIX_S)
    made.set_endpoints([endpoint(1)])
    return made


def fail(to: Pool, now: float, *, refused: bool = True, answered: bool = False) -> None:
    to.scrape_failed(address(1), "no page", now, answered=answered, refused=refused)


def page(to: Pool, now: float, *, process_s: float | None = None) -> None:
    """`process_s`: when its process began, by our clock."""
    to.observe(address(1), replace(sample(now), process_start_s=None if process_s is None else UNIX_S + process_s))


def well(to: Pool, now: float) -> None:
    member = to.member(address(1))
    assert member is not None
    member.health.probe_passed(now)


def test_from_the_first_look_to_page_and_health() -> None:
    fleet = pool_of_one()
    for now in (10.0, 11.0, 30.0):
        fail(fleet, now)
    page(fleet, 50.0, process_s=12.0)
    assert fleet.starts.last_s == ()
    well(fleet, 50.5)
    page(fleet, 51.0, process_s=12.0)
    assert fleet.starts.last_s == (40.5,)
    page(fleet, 52.0, process_s=12.0)
    assert (fleet.starts.count, fleet.starts.median_s) == (1, 40.5)


def test_a_server_that_serves_at_the_first_look_tells_nothing() -> None:
    fleet = pool_of_one()
    well(fleet, 10.0)
    page(fleet, 10.1, process_s=9.5)
    assert fleet.starts.median_s is None


def test_nor_does_one_whose_process_is_older_than_our_first_look() -> None:
    fleet = pool_of_one()
    fail(fleet, 10.0)
    well(fleet, 20.0)
    page(fleet, 20.0, process_s=5.0)
    assert fleet.starts.count == 0


@pytest.mark.parametrize(("refused", "counted"), [(True, 1), (False, 0)])
def test_where_the_page_has_no_process_start_somebody_must_have_been_missing(refused: bool, counted: int) -> None:
    fleet = pool_of_one()
    fail(fleet, 10.0, refused=refused)
    well(fleet, 20.0)
    page(fleet, 20.0)
    assert fleet.starts.count == counted


def test_a_page_that_tells_nothing_and_a_bad_health_are_part_of_the_start() -> None:
    fleet = pool_of_one()
    fail(fleet, 10.0, refused=False, answered=True)  # a launcher answers 404
    well(fleet, 10.0)
    page(fleet, 25.0, process_s=11.0)
    assert fleet.starts.last_s == (15.0,)


def test_another_server_at_the_address_starts_anew() -> None:
    fleet = pool_of_one()
    well(fleet, 1.0)
    page(fleet, 1.0)
    fleet.set_endpoints([replace(endpoint(1), uid="another")])
    fail(fleet, 2.0)
    well(fleet, 9.0)
    page(fleet, 9.0)
    assert fleet.starts.last_s == (7.0,)


def test_the_last_ones_count() -> None:
    times = StartTimes()
    for number in range(2 * KEPT):
        times.add(float(number))
    assert len(times.last_s) == KEPT
    assert times.median_s == 1.5 * KEPT - 0.5
    assert times.count == 2 * KEPT
