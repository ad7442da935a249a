"""How many requests came for a pool: each once, whatever became of it."""

from __future__ import annotations

from random import Random

from extproc.decision import Rejection, RejectionReason
from extproc.pool.pool import Pool
from extproc.request import RawRequest, Route
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.scheduling.shedding import ShedRule
from tests.support.fleet import STALE_AFTER_S, observe_all, pool, route, router, sampled_router


def test_picks_and_those_that_nobody_could_serve_count() -> None:
    """case f09"""
    fleet = router(pool(0, "empty"), pool(0, "other"))
    for _ in range(3):
        assert isinstance(fleet.route(RawRequest(), 0.0), Rejection)
    fleet.route(RawRequest(route=Route("other", None)), 0.0)
    assert (fleet.ledger.requests("empty"), fleet.ledger.requests("other")) == (3, 1)
    served = sampled_router(2)
    route(served, 0.0)
    served.route(RawRequest(subset=frozenset()), 0.0)
    assert served.ledger.requests("vllm") == 2


def test_one_that_is_turned_away_by_its_priority_counts() -> None:
    of = pool(1)
    fleet = Router([PoolPlan(of, PROFILES["least-loaded"], 1, shed=(ShedRule(1, 0),))], rng=Random(1))
    observe_all(fleet, 0.0, waiting=1.0)
    decision = fleet.route(RawRequest(), 0.0)
    assert isinstance(decision, Rejection)
    assert decision.reason is RejectionReason.OVERLOADED
    assert fleet.ledger.requests("vllm") == 1


def test_a_decision_that_is_made_again_counts_once_and_one_that_is_left_to_envoy_too() -> None:
    unknown = Pool("vllm", stale_after_s=STALE_AFTER_S)
    fleet = router(unknown)
    first = fleet.route(RawRequest(), 0.0)
    assert isinstance(first, Rejection)
    assert first.doubtful == "vllm"
    fleet.withdraw(first)
    second = fleet.route(RawRequest(), 0.0)
    assert isinstance(second, Rejection)
    assert fleet.ledger.requests("vllm") == 1
    fleet.withdraw(second, again=False)
    assert fleet.ledger.requests("vllm") == 1, "it came, and Envoy sends it somewhere"
    assert fleet.ledger.rejections[RejectionReason.NO_ENDPOINTS] == 0
