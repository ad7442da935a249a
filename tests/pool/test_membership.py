"""Who is in a pool, when the set changes under running requests."""

from __future__ import annotations

from dataclasses import replace

from extproc.pool.member import State
from extproc.pool.pool import Pool
from tests.support.fleet import STALE_AFTER_S, address, endpoint, member, observe_all, pool, route, router, sample


def test_a_change_names_who_came_who_went_and_who_is_different() -> None:
    fleet = pool(2)
    change = fleet.set_endpoints([replace(endpoint(2), drained=True), endpoint(3)])
    assert change.added == (endpoint(3),)
    assert change.removed == (endpoint(1),)
    assert change.updated == (endpoint(2, drained=True),)
    again = fleet.set_endpoints([endpoint(2, drained=True), endpoint(3)])
    assert (again.added, again.removed, again.updated) == ((), (), ())


def test_of_several_endpoints_with_one_address_the_first_counts() -> None:
    fleet = Pool("p", stale_after_s=STALE_AFTER_S)
    fleet.set_endpoints([endpoint(1), endpoint(1, drained=True)])
    assert [each.endpoint.drained for each in fleet.members] == [False]


def test_other_options_keep_what_is_known_of_a_server() -> None:
    fleet = pool(1)
    router_ = router(fleet)
    observe_all(router_, 0.0, waiting=3.0)
    route(router_, 0.0)
    fleet.set_endpoints([endpoint(1, drained=True)])
    kept = member(router_, 1)
    assert (kept.in_flight, kept.state(0.0)) == (1, State.DRAINING)
    assert kept.sample is not None


def test_a_server_that_left_is_shown_while_its_requests_run() -> None:
    fleet = pool(2)
    router_ = router(fleet)
    pick = route(router_, 0.0, subset=["10.0.0.1"])
    fleet.set_endpoints([endpoint(2)])
    [gone] = fleet.leaving
    assert (str(gone.address), gone.in_flight, gone.state(0.0)) == ("10.0.0.1:8000", 1, State.GONE)
    router_.stream_ended(pick.pick_id, 1.0)
    assert fleet.leaving == ()


def test_a_server_that_returns_starts_at_zero_and_the_old_charges_end_on_the_old_object() -> None:
    """case e04, a thousand times"""
    fleet = pool(1)
    router_ = router(fleet)
    for now in range(1_000):
        before = route(router_, float(now))
        old = member(router_, 1)
        fleet.set_endpoints([])
        fleet.set_endpoints([endpoint(1)])
        new = member(router_, 1)
        after = route(router_, float(now))
        assert (old.in_flight, new.in_flight) == (1, 1)
        for pick in (before, before, after, after):
            router_.stream_ended(pick.pick_id, float(now))
        assert (old.in_flight, new.in_flight) == (0, 0)
    assert fleet.leaving == ()


def test_another_server_at_the_same_address_inherits_nothing() -> None:
    fleet = Pool("p", stale_after_s=STALE_AFTER_S)
    fleet.set_endpoints([replace(endpoint(1), uid="a")])
    router_ = router(fleet)
    observe_all(router_, 0.0, waiting=3.0)
    route(router_, 0.0)
    old = fleet.members[0]
    change = fleet.set_endpoints([replace(endpoint(1), uid="b")])
    new = fleet.members[0]
    assert (change.added, change.removed) == ((replace(endpoint(1), uid="b"),), (replace(endpoint(1), uid="a"),))
    assert (new.in_flight, new.sample, fleet.leaving, old.gone) == (0, None, (old,), True)


def test_a_scrape_that_outlived_its_server_is_ignored() -> None:
    fleet = pool(1)
    assert fleet.observe(address(9), sample(0.0)) == []
    fleet.scrape_failed(address(9), "timeout", 0.0, answered=False, refused=False)
    assert fleet.member(address(9)) is None
    assert fleet.member(None) is None
