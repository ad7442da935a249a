"""A full pool turns requests away by their priority, and says so."""

from __future__ import annotations

from random import Random

import pytest

from extproc.decision import Pick, Rejection, RejectionReason
from extproc.pool.sample import Histogram, LoadSample
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.scheduling.shedding import ShedRule
from tests.support.fleet import STALE_AFTER_S, address, member, observe_all, pool, sample

RULES = (ShedRule(16, priority=1), ShedRule(64, priority=0))
PATH = "/v1/chat/completions"


def fleet(profile: str = "least-loaded", *, waiting: float = 20.0, rules: tuple[ShedRule, ...] = RULES) -> Router:
    """Two servers with as many requests waiting."""
    plan = PoolPlan(pool(2), PROFILES[profile], 2, shed=rules, priority_header="x-request-priority")
    made = Router([plan], rng=Random(1))
    observe_all(made, 0.0, waiting=waiting)
    return made


def chat(priority: int | None = None, **headers: str) -> RawRequest:
    field = b"" if priority is None else b'"priority": %d, ' % priority
    body = b"{%s" % field + b'"model": "m", "messages": [{"role": "user", "content": "the moon"}]}'
    return RawRequest("POST", PATH, headers, body)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_full_pool_turns_the_less_important_away_and_routes_the_others(profile: str) -> None:
    router = fleet(profile)
    decision = router.route(chat(1), 0.0)
    assert isinstance(decision, Rejection)
    assert (decision.status, decision.reason, decision.retry_after_s) == (429, RejectionReason.OVERLOADED, 1)
    assert "moon" not in decision.message
    assert router.ledger.rejections == {RejectionReason.OVERLOADED: 1}
    assert not router.ledger.picks
    assert isinstance(router.route(chat(), 0.0), Pick)
    assert isinstance(router.route(chat(-1), 0.0), Pick)


def test_the_header_names_the_priority_before_the_body_does() -> None:
    router = fleet()
    assert isinstance(router.route(chat(**{"x-request-priority": "1"}), 0.0), Rejection)
    assert isinstance(router.route(chat(1, **{"x-request-priority": "0"}), 0.0), Pick)
    assert isinstance(router.route(chat(1, **{"x-request-priority": "urgent"}), 0.0), Pick)


def test_without_rules_nobody_is_turned_away() -> None:
    router = fleet(waiting=1e6, rules=())
    assert isinstance(router.route(chat(9), 0.0), Pick)


def test_stale_figures_turn_nobody_away() -> None:
    assert isinstance(fleet(waiting=1e6).route(chat(9), STALE_AFTER_S + 0.1), Pick)


def test_one_server_with_room_is_room_enough() -> None:
    router = fleet()
    router.observe("vllm", address(2), sample(0.0, waiting=15.0), 0.0)
    decision = router.route(chat(1), 0.0)
    assert isinstance(decision, Pick)
    assert decision.address == address(2)


def test_a_server_that_cannot_be_picked_is_no_room() -> None:
    router = fleet()
    router.observe("vllm", address(2), sample(0.0), 0.0)
    for _ in range(3):
        member(router, 2).health.request_fault(0.0)
    assert isinstance(router.route(chat(1), 0.0), Rejection)


def test_in_panic_nobody_is_turned_away() -> None:
    """Every server looks bad, so what was seen of them is not to be relied on."""
    router = fleet(waiting=1000.0)
    for number in (1, 2):
        for _ in range(3):
            member(router, number).health.request_fault(0.0)
    assert isinstance(router.route(chat(9), 0.0), Pick)
    assert router.ledger.panics.total() == 1


def test_the_queue_that_requests_of_ours_make_between_two_samples_counts() -> None:
    """From 10 on each server's account grows by what it is sent: 6 each, and then the bound of 16 is met."""
    router = fleet(waiting=10.0)
    decisions = [router.route(chat(1), 0.0) for _ in range(20)]
    assert [isinstance(each, Pick) for each in decisions] == [True] * 12 + [False] * 8


def test_retry_after_follows_the_rate_at_which_the_servers_begin_requests() -> None:
    router = fleet()
    for at_s, begun in ((1.0, 100.0), (2.0, 101.0)):
        for each in (1, 2):
            ttft = Histogram((float("inf"),), (begun,), 1.0)
            router.observe("vllm", address(each), LoadSample(at_s, running=8, waiting=20, ttft=ttft), at_s)
    decision = router.route(chat(1), 2.0)
    assert isinstance(decision, Rejection)
    assert decision.retry_after_s == 5  # (4 + 4 + 1) / (1 + 1) seconds


@pytest.mark.parametrize("profile", PROFILES)
def test_an_explanation_says_what_would_happen_and_why(profile: str) -> None:
    router = fleet(profile)
    explained = router.explain(chat(1), 0.0)
    assert explained.chosen is None
    assert explained.why == (
        "turned away (429, retry-after 1 s): every endpoint that can be used has 16 or more requests waiting,"
        " the bound for priority 1"
    )
    assert [each.waiting for each in explained.endpoints] == [20.0, 20.0]
    assert router.explain(chat(), 0.0).chosen is not None
    assert not router.ledger.rejections
