"""A server that has hardly begun a request yet gets few at once, and more with each that it begins."""

from __future__ import annotations

from math import inf

import pytest

from extproc.decision import Outcome, Pick
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.reservation import Reservation
from extproc.pool.sample import Histogram, LoadSample
from extproc.pool.warm_up import ENOUGH, FIRST
from extproc.scheduling.filters import drop_reason, eligible
from tests.support.fleet import address, endpoint


def page(at_s: float, begun: float | None) -> LoadSample:
    ttft = None if begun is None else Histogram((1.0, inf), (begun, begun), begun)
    return LoadSample(at_s, running=0.0, waiting=0.0, kv_usage_ratio=0.0, ttft=ttft)


def server(number: int, begun: float | None) -> Member:
    made = Member(endpoint(number), stale_after_s=3.0)
    made.observe(page(0.0, begun))
    return made


def send(to: Member, count: int, at_s: float = 0.0) -> list[Reservation]:
    pick = Pick(pick_id="p", address=address(1), fallbacks=(), destination="")
    return [Reservation(pick, to, "vllm", "/", at_s) for _ in range(count)]


def picked(*servers: Member, now: float = 0.0) -> list[Member]:
    return list(eligible(servers, now).candidates)


def test_a_cold_server_is_left_out_once_it_has_its_first_few() -> None:
    cold, warm = server(1, 0.0), server(2, 1000.0)
    send(cold, FIRST - 1)
    assert picked(cold, warm) == [cold, warm]
    send(cold, 1)
    assert picked(cold, warm) == [warm]
    assert drop_reason(cold, 0.0) == "warming up: it has as many requests as it may until it has begun more"


def test_each_that_it_begins_allows_two_more() -> None:
    cold, warm = server(1, 0.0), server(2, 1000.0)
    send(cold, FIRST)
    cold.observe(page(1.0, 5.0))
    assert picked(cold, warm) == [cold, warm]
    send(cold, 9, 1.0)
    assert picked(cold, warm) == [cold, warm]
    send(cold, 1, 1.0)
    assert picked(cold, warm) == [warm]


def test_after_enough_it_is_as_any_other() -> None:
    cold, warm = server(1, 0.0), server(2, 1000.0)
    cold.observe(page(1.0, ENOUGH))
    send(cold, 500, 1.0)
    assert picked(cold, warm) == [cold, warm]
    assert cold.health.sound


def test_where_all_are_cold_all_are_used() -> None:
    """A fleet that was just deployed, and its first burst."""
    servers = [server(1, 0.0), server(2, 0.0)]
    for each in servers:
        send(each, FIRST)
    found = eligible(servers, 0.0)
    assert (list(found.candidates), found.panic) == (servers, False)


def fleet(*begun: float) -> Pool:
    made = Pool("vllm", stale_after_s=3.0)
    made.set_endpoints([endpoint(number + 1) for number in range(len(begun))])
    for number, count in enumerate(begun):
        made.observe(address(number + 1), page(0.0, count))
    return made


@pytest.mark.parametrize(
    ("begun", "bound"), [((0.0, 0.0, 0.0), False), ((0.0, 0.0, 500.0), False), ((0.0, 0.0, 500.0, 500.0), True)]
)
def test_a_bound_needs_others_that_can_take_over(begun: tuple[float, ...], bound: bool) -> None:
    """In a fleet that has just come up, prompts would be driven to servers that hold nothing of them."""
    members = fleet(*begun).members
    send(members[0], FIRST)
    assert (members[0] not in picked(*members)) == bound


def test_one_that_left_is_no_company() -> None:
    pool = fleet(0.0, 0.0, 500.0, 500.0)
    pool.set_endpoints([endpoint(1), endpoint(2), endpoint(3)])
    send(pool.members[0], FIRST)
    assert picked(*pool.members) == list(pool.members)
    pool.observe(address(2), page(1.0, 500.0))
    pool.observe(address(1), page(1.0, 0.0))
    assert pool.members[0] not in picked(*pool.members)


def test_what_ended_counts_where_nothing_has_a_first_token() -> None:
    """Embeddings are not in that histogram."""
    cold, warm = server(1, 0.0), server(2, 1000.0)
    for _ in range(ENOUGH):
        for each in send(cold, 1):
            each.close(Outcome.OK, 0.0)
    cold.observe(page(1.0, 0.0))
    send(cold, 500, 1.0)
    assert picked(cold, warm) == [cold, warm]


def test_a_place_that_falls_free_is_used_again() -> None:
    cold, warm = server(1, 0.0), server(2, 1000.0)
    sent = send(cold, FIRST)
    sent[0].close(Outcome.OK, 0.0)
    assert picked(cold, warm) == [cold, warm]


def test_a_restarted_engine_warms_up_again() -> None:
    once, warm = server(1, 1000.0), server(2, 1000.0)
    once.observe(page(1.0, 0.0))
    send(once, FIRST, 1.0)
    assert picked(once, warm) == [warm]


def test_a_page_that_does_not_tell_sets_no_bound() -> None:
    untold, warm = server(1, None), server(2, 1000.0)
    send(untold, 500)
    assert picked(untold, warm) == [untold, warm]
