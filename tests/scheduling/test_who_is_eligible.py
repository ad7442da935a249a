"""Who may be picked at all: wishes are never overruled, observations can be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.decision import Pick
from extproc.endpoint import Address, Endpoint
from extproc.pool.drain import By
from extproc.pool.health import EJECT_S, FAULTS_IN_A_ROW, FULL_S
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.reservation import Reservation
from extproc.scheduling.filters import Eligible, Subset, drop_reason, eligible
from tests.support.fleet import address, endpoint, pool, sample


def reached(fleet: Pool, *numbers: int) -> Pool:
    for number in numbers:
        fleet.observe(address(number), sample(0.0))
    return fleet


def break_(server: Member | None, now: float = 0.0) -> None:
    assert server is not None
    for _ in range(FAULTS_IN_A_ROW):
        server.health.request_fault(now)


def numbers(found: Eligible[Member]) -> list[int]:
    return [int(server.address.ip.rpartition(".")[2]) for server in found.candidates]


def test_a_server_that_never_answered_waits_while_others_have() -> None:
    """case b06: its port may not even be open"""
    fleet = reached(pool(3), 2)
    assert numbers(eligible(fleet.members, 0.0)) == [2]


def test_servers_of_which_nothing_is_known_are_used_when_there_is_nobody_else() -> None:
    """case b06; that is a start, not a panic"""
    found = eligible(pool(2).members, 0.0)
    assert (numbers(found), found.panic) == ([1, 2], False)


def test_a_starting_server_is_preferred_to_one_known_to_be_broken() -> None:
    fleet = reached(pool(2), 1)
    break_(fleet.member(address(1)))
    found = eligible(fleet.members, 0.0)
    assert (numbers(found), found.panic) == ([2], False)


def test_when_all_look_bad_all_are_used_and_it_is_called_panic() -> None:
    """case e15: no total ejection"""
    fleet = reached(pool(2), 1, 2)
    for server in fleet.members:
        break_(server)
    found = eligible(fleet.members, 0.0)
    assert (numbers(found), found.panic) == ([1, 2], True)


def test_in_panic_a_server_that_answers_with_errors_is_used_last() -> None:
    """case e15: all metrics pages are out of reach, and the one that fails fast must not attract everything."""
    fleet = reached(pool(3), 1, 2, 3)
    for server in fleet.members:
        for _ in range(2):
            server.health.scrape_failed("refused", 1.0, answered=False, refused=True)
    break_(fleet.member(address(2)), 1.0)
    found = eligible(fleet.members, 1.0)
    assert (numbers(found), found.panic) == ([1, 3], True)


def test_a_full_server_is_used_when_no_other_can_be_and_that_is_no_panic() -> None:
    """case e15: 429 and 503"""
    fleet = reached(pool(4), 1, 2, 3)
    for number in (1, 2):
        server = fleet.member(address(number))
        assert server is not None
        server.health.request_full(1.0)
    break_(fleet.member(address(3)), 1.0)
    found = eligible(fleet.members, 1.0)
    assert (numbers(found), found.panic) == ([1, 2], False), "rather than the unknown and the broken"
    assert [drop_reason(server, 1.0) for server in fleet.members[:2]] == ["full: it answered 429 or 503"] * 2
    fleet.observe(address(4), sample(1.0))
    assert numbers(eligible(fleet.members, 1.0)) == [4]
    assert numbers(eligible(fleet.members, 1.0 + FULL_S)) == [1, 2, 4]


def test_a_returning_server_with_its_share_is_left_out_but_before_a_broken_one_in_panic() -> None:
    """case e15"""
    fleet = reached(pool(2), 1, 2)
    first, second = fleet.members
    break_(first)
    now = EJECT_S
    assert numbers(eligible(fleet.members, now)) == [1, 2]
    Reservation(Pick("x", first.address, (), ""), first, "vllm", "/", now)
    assert numbers(eligible(fleet.members, now)) == [2]
    assert drop_reason(first, now) == "returning: 1 of 1 in flight"
    break_(second, now)
    found = eligible(fleet.members, now)
    assert (numbers(found), found.panic) == ([1], True)


def test_panic_never_uses_a_drained_server() -> None:
    fleet = reached(pool(2), 1, 2)
    fleet.set_endpoints([endpoint(1, drained=True), endpoint(2)])
    break_(fleet.member(address(2)))
    assert numbers(eligible(fleet.members, 0.0)) == [2]
    fleet.set_endpoints([endpoint(1, drained=True), endpoint(2, drained=True)])
    assert eligible(fleet.members, 0.0) == Eligible([])


def test_a_subset_is_honoured_also_in_panic() -> None:
    """case b08"""
    fleet = reached(pool(3), 1, 2, 3)
    break_(fleet.member(address(2)))
    found = eligible(fleet.members, 0.0, frozenset({"10.0.0.2:8000"}))
    assert (numbers(found), found.panic) == ([2], True)


@pytest.mark.parametrize(
    "hint",
    [
        frozenset[str](),
        frozenset({"10.9.9.9:8000"}),
        frozenset({"10.0.0.1:9999"}),
        frozenset({"vllm-0", "", ":", "10.0.0", "fd00"}),
    ],
    ids=["empty", "unknown", "other port", "nonsense"],
)
def test_a_subset_that_names_nobody_allows_nobody(hint: frozenset[str]) -> None:
    """case b08"""
    assert eligible(reached(pool(2), 1, 2).members, 0.0, hint) == Eligible([])


@pytest.mark.parametrize(
    ("hint", "inside"),
    [
        ("fd00::10", True),
        ("[fd00::10]:8000", True),
        ("FD00:0::10", True),
        ("[fd00::10]", True),
        (" fd00::10 ", True),
        ("[fd00::10]:8001", False),
        ("fd00", False),
        ("fd00::1", False),
        ("10.0.0.1", False),
    ],
)
def test_a_subset_is_compared_by_parsed_addresses(hint: str, inside: bool) -> None:
    """case b03: splitting at the first colon turns fd00::10 into fd00"""
    assert (Address.of("fd00::10", 8000) in Subset(frozenset({hint}))) == inside


def test_an_ipv6_pool_and_its_subset_meet() -> None:
    """case b03"""
    fleet = Pool("p", stale_after_s=3.0)
    fleet.set_endpoints(
        Endpoint(Address.of(ip, 8000)) for ip in ("fd00::10", "fd00::11", "::ffff:10.0.0.1", "10.0.0.1")
    )
    found = eligible(fleet.members, 0.0, frozenset({"fd00::10", "[fd00::11]:8000"}))
    assert [str(server.address) for server in found.candidates] == ["[fd00::10]:8000", "[fd00::11]:8000"]


def test_the_reason_for_dropping_a_server_agrees_with_the_filter() -> None:
    fleet = reached(pool(4), 1, 2, 3)
    fleet.set_endpoints([endpoint(1), endpoint(2, drained=True), endpoint(3), endpoint(4)])
    break_(fleet.member(address(3)))
    reasons = {str(s.address.ip)[-1]: drop_reason(s, 0.0) for s in fleet.members}
    assert reasons == {
        "1": None,
        "2": "drained by the operator",
        "3": "errors in a row",
        "4": "not seen to serve yet",
    }
    assert numbers(eligible(fleet.members, 0.0)) == [1]
    one = fleet.member(address(1))
    assert one is not None
    assert drop_reason(one, 0.0, Subset(frozenset())) == "outside the gateway's subset"


def leaving(*numbers: int) -> list[Endpoint]:
    return [replace(endpoint(number), leaving=True) for number in numbers]


def test_a_server_that_its_platform_takes_down_serves_only_while_no_other_can() -> None:
    """case f02"""
    fleet = reached(pool(2), 1, 2)
    fleet.set_endpoints([*leaving(1), endpoint(2)])
    assert numbers(eligible(fleet.members, 0.0)) == [2]
    assert drop_reason(fleet.members[0], 0.0) == "leaving: it is being taken down"
    fleet.set_endpoints(leaving(1, 2))
    assert numbers(eligible(fleet.members, 0.0)) == [1, 2]
    fleet.set_endpoints([*leaving(1), endpoint(2, drained=True)])
    assert numbers(eligible(fleet.members, 0.0)) == [1]


def test_a_leaving_server_that_serves_is_better_than_a_broken_or_an_unknown_one() -> None:
    """case f02"""
    fleet = reached(pool(3), 1, 2)
    fleet.set_endpoints([*leaving(1), endpoint(2), endpoint(3)])
    break_(fleet.member(address(2)))
    found = eligible(fleet.members, 0.0)
    assert (numbers(found), found.panic) == ([1], False)
    break_(fleet.member(address(1)))
    assert numbers(eligible(fleet.members, 0.0)) == [3]


def test_a_drain_by_the_operator_holds_for_a_leaving_server_too() -> None:
    fleet = reached(pool(1), 1)
    fleet.set_endpoints(leaving(1))
    fleet.drains.ask(fleet.members[0], By.OPERATOR, 0.0)
    assert numbers(eligible(fleet.members, 0.0)) == []
    fleet.drains.cancel(fleet.members[0], 0.0, By.OPERATOR)
    assert numbers(eligible(fleet.members, 0.0)) == [1]
