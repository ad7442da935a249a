"""Whom does a full pool turn away, and when should they come back?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.scheduling.shedding import (
    MAX_RETRY_AFTER_S,
    MIN_RETRY_AFTER_S,
    Shed,
    ShedRule,
    bound_of,
    full,
    retry_after_s,
    shed,
)

NOW = 10.0
RULES = (ShedRule(16, priority=1), ShedRule(64, priority=0))


@dataclass(frozen=True)
class Weighted:
    weight: float = 1.0


@dataclass(frozen=True)
class Server:
    """A server as the rule sees it."""

    waiting: float | None = 0.0
    unseen: int = 0
    usable_until_s: float = NOW
    begun_per_s: float | None = None
    endpoint: Weighted = field(default_factory=Weighted)


def asked(priority: int, *servers: Server, rules: tuple[ShedRule, ...] = RULES) -> bool:
    return shed(rules, servers, lambda: priority, NOW) is not None


@pytest.mark.parametrize(
    ("waiting", "turned_away"),
    [
        ((15, 100), {}),
        ((16, 16), {1, 2}),
        ((63, 64), {1, 2}),
        ((64, 64), {0, 1, 2}),
        ((10_000, 10_000), {0, 1, 2}),
    ],
)
def test_the_less_important_go_first_and_only_when_every_server_is_full(
    waiting: tuple[float, float], turned_away: set[int]
) -> None:
    servers = [Server(each) for each in waiting]
    assert {priority for priority in (-1, 0, 1, 2) if asked(priority, *servers)} == set(turned_away)


@pytest.mark.parametrize(
    "unknown", [Server(None), Server(1000, usable_until_s=NOW - 0.001)], ids=["no figure", "a stale figure"]
)
def test_a_server_whose_queue_is_unknown_is_not_full(unknown: Server) -> None:
    assert asked(1, Server(1000), Server(1000))
    assert not asked(1, Server(1000), unknown)


def test_what_was_sent_since_the_sample_counts_where_the_sample_shows_a_queue() -> None:
    """A request sent to a server with room begins at once, so a burst into an idle server makes it not full."""
    assert asked(1, Server(8, unseen=8))
    assert not asked(1, Server(7, unseen=1000))
    assert not asked(1, Server(0, unseen=1000))


def test_a_heavier_server_may_have_more_waiting() -> None:
    assert not asked(1, Server(31, endpoint=Weighted(2)))
    assert asked(1, Server(32, endpoint=Weighted(2)))
    assert asked(1, Server(8, endpoint=Weighted(0.5)))


def test_the_priority_is_asked_only_when_the_pool_is_full_and_never_without_rules() -> None:
    """Asking may mean reading a large body."""

    def never() -> int:
        raise AssertionError("asked for nothing")

    assert shed((), [Server(1000)], never, NOW) is None
    assert shed(RULES, [Server(1000), Server(15)], never, NOW) is None


def test_it_says_which_bound_it_was() -> None:
    assert shed(RULES, [Server(20)], lambda: 5, NOW) == Shed(priority=5, waiting=16, retry_after_s=1)
    assert shed(RULES, [Server(64)], lambda: 0, NOW) == Shed(priority=0, waiting=64, retry_after_s=1)


@pytest.mark.parametrize(
    ("servers", "expected_s"),
    [
        ([Server(20)], MIN_RETRY_AFTER_S),  # the rate is unknown
        ([Server(20, begun_per_s=1.0)], 5),  # to 15
        ([Server(20, begun_per_s=2.0)], 3),
        ([Server(20, begun_per_s=1.0), Server(20, begun_per_s=2.0)], 3),  # (4 + 4 + 1) / 3
        ([Server(20, begun_per_s=1.0), Server(400)], 5),  # of those that tell
        ([Server(10, unseen=20, begun_per_s=1.0)], 5),  # 10 of those count
        ([Server(16, begun_per_s=1000.0)], MIN_RETRY_AFTER_S),
        ([Server(1000, begun_per_s=1.0)], MAX_RETRY_AFTER_S),
        ([Server(16, begun_per_s=0.0)], MAX_RETRY_AFTER_S),  # nothing moves
        ([Server(16, begun_per_s=1e-320)], MAX_RETRY_AFTER_S),
    ],
)
def test_retry_after_is_the_time_to_work_the_queues_off_to_below_the_bound(
    servers: list[Server], expected_s: int
) -> None:
    assert retry_after_s(servers, 16) == expected_s


rules_ = st.lists(st.builds(ShedRule, st.integers(1, 100), st.integers(-3, 3)), max_size=4).map(tuple)
servers_ = st.lists(
    st.builds(
        Server,
        waiting=st.none() | st.integers(0, 150).map(float),
        unseen=st.integers(0, 150),
        usable_until_s=st.sampled_from([NOW - 1, NOW]),
        begun_per_s=st.none() | st.floats(0, 100),
        endpoint=st.sampled_from([0.25, 1.0, 4.0]).map(Weighted),
    ),
    min_size=1,
    max_size=4,
)
priorities_ = st.integers(-4, 4)


@given(rules_, servers_, priorities_, st.data())
def test_more_load_never_lets_a_request_in(
    rules: tuple[ShedRule, ...], servers: list[Server], priority: int, data: st.DataObject
) -> None:
    more = [
        replace(
            server,
            waiting=None if server.waiting is None else server.waiting + data.draw(st.integers(0, 50)),
            unseen=server.unseen + data.draw(st.integers(0, 50)),
        )
        for server in servers
    ]
    if asked(priority, *servers, rules=rules):
        assert asked(priority, *more, rules=rules)


@given(rules_, servers_, priorities_, priorities_)
def test_a_more_important_request_is_never_turned_away_where_a_less_important_one_is_not(
    rules: tuple[ShedRule, ...], servers: list[Server], one: int, other: int
) -> None:
    important, less = sorted((one, other))
    if asked(important, *servers, rules=rules):
        assert asked(less, *servers, rules=rules)


@given(rules_, servers_, priorities_)
def test_whoever_is_turned_away_met_a_bound_of_its_own_everywhere(
    rules: tuple[ShedRule, ...], servers: list[Server], priority: int
) -> None:
    """The same said the long way round: every rule about this priority, and every server."""
    by_hand = any(full(servers, rule.waiting, NOW) for rule in rules if rule.priority <= priority)
    away = shed(rules, servers, lambda: priority, NOW)
    assert (away is not None) == by_hand
    if away is not None:
        assert away.waiting == bound_of(priority, rules)
        assert MIN_RETRY_AFTER_S <= away.retry_after_s <= MAX_RETRY_AFTER_S
