"""What a decision went by, server by server, and that it is the decision's own."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from random import Random

import orjson
import pytest

from extproc.decision import Pick
from extproc.explanation import Explanation
from extproc.pool.ledger import RECENT
from extproc.prefix.blocks import units_of
from extproc.request import RawRequest
from extproc.router import LOGGED_AT_ONCE, LOGGED_ENDPOINTS, LOGGED_PER_S, PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from tests.support.fleet import address, ended, endpoint, observe_all, pool, route, sample, sampled_router

PATH = "/v1/chat/completions"
SECRET = "zanzibar"


def chat(text: str, **fields: object) -> RawRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": text}]} | fields
    return RawRequest("POST", PATH, {}, orjson.dumps(body))


def fleet(profile: str = "cache-aware", size: int = 4, *, hosts: int = 3) -> Router:
    """A router over idle servers."""
    made = Router([PoolPlan(pool(size), PROFILES[profile], hosts)], rng=Random(1))
    observe_all(made, 0.0)
    return made


def by_address(explained: Explanation) -> dict[str, object]:
    return {each.address: each for each in explained.endpoints}


def test_it_shows_what_each_server_holds_and_the_terms_of_its_cost() -> None:
    router = fleet()
    request = chat("word " * 4000)
    first = router.route(request, 0.0)
    assert isinstance(first, Pick)
    router.complete(ended(first), 0.1)
    router.observe("vllm", address(4), sample(9.0, kv=0.95, waiting=2.0, running=8.0), 9.0)
    observe_all(router, 10.0)

    explained = router.explain(request, 10.0)

    assert (explained.pool, explained.profile, explained.by) == ("vllm", "cache-aware", "first_token")
    assert explained.request is not None
    assert (explained.request.kind, explained.request.model) == ("chat", "m")
    assert explained.request.prompt_tokens == pytest.approx(5000, rel=0.01)
    assert 0 <= explained.request.prompt_tokens // 64 - units_of(explained.request.blocks) < 4  # a block's length there
    holder = explained.endpoints[0]
    assert holder.address == explained.chosen == str(first.address)
    assert (holder.rank, holder.state, holder.dropped) == (1, "ready", None)
    assert holder.held_blocks == explained.request.blocks
    assert holder.held_tokens is not None
    assert holder.uncached_tokens == pytest.approx(explained.request.prompt_tokens - holder.held_tokens, abs=1)
    for each in explained.endpoints[1:]:
        assert (each.held_tokens, each.held_blocks) == (0.0, 0)
        assert each.prefill_s == pytest.approx(explained.request.prompt_tokens / each.prefill_tokens_per_s, rel=0.001)
    assert [each.rank for each in explained.endpoints] == [1, 2, 3, 4]


@pytest.mark.parametrize("profile", ["cache-aware", "least-loaded", "session", "prefix-hash"])
def test_it_explains_the_pick_that_follows(profile: str) -> None:
    """The same numbers, the same lots: 50 requests, loads and prompts in any order."""
    rng = Random(3)
    router = fleet(profile)
    for number in range(50):
        now = 0.01 * number
        request = chat(f"{rng.randrange(4)} word " * rng.randrange(1, 400), user=str(rng.randrange(5)))
        explained = router.explain(request, now)
        pick = router.route(request, now)
        assert isinstance(pick, Pick)
        assert explained.chosen == str(pick.address)
        named = [str(pick.address), *map(str, pick.fallbacks)]
        assert [each.address for each in explained.endpoints][: len(named)] == named


def test_the_terms_sum_to_the_cost_that_decided() -> None:
    router = fleet()
    for number in range(20):
        router.route(chat(f"{number} word " * 300), 0.0)
    request = chat("3 word " * 300)
    placed = router.consider(request, 0.0).placed
    assert placed is not None
    costs = {str(each.address): cost for each, cost in zip(router.pools[0].members, placed.costs_s, strict=True)}
    for each in router.explain(request, 0.0).endpoints:
        assert each.prefill_s is not None
        assert each.kv_wait_s is not None
        assert each.others_s is not None
        assert each.load_s is not None
        assert each.expected_s == costs[each.address]
        assert each.prefill_s + each.others_s + each.kv_wait_s + each.load_s == pytest.approx(costs[each.address])


def test_to_explain_changes_nothing() -> None:
    asked, unasked = fleet(), fleet()
    for number in range(30):
        request = chat(f"{number % 3} word " * 200)
        for _ in range(3):
            asked.explain(request, 0.0)
        assert asked.route(request, 0.0) == unasked.route(request, 0.0)
    assert len(asked.decisions) == len(unasked.decisions)


def test_dropped_servers_come_last_with_the_reason() -> None:
    router = fleet("least-loaded", 3)
    router.pools[0].set_endpoints([endpoint(1, drained=True), endpoint(2), endpoint(3)])
    for _ in range(2):
        router.pools[0].scrape_failed(address(2), "refused", 0.0, answered=False, refused=True)
    rows = [(each.address, each.rank, each.dropped) for each in router.explain(RawRequest(), 0.0).endpoints]
    assert rows == [
        ("10.0.0.3:8000", 1, None),
        ("10.0.0.1:8000", None, "drained by the operator"),
        ("10.0.0.2:8000", None, "connection refused"),
    ]


def test_when_nobody_can_be_picked_it_says_why() -> None:
    router = fleet(size=2)
    explained = router.explain(RawRequest(subset=frozenset({"10.9.9.9:1"})), 0.0)
    assert explained.chosen is None
    assert explained.by is None
    assert explained.why == "no endpoint can be used: 2 outside the gateway's subset"


def test_a_panic_is_told() -> None:
    router = fleet(size=1)
    for _ in range(2):
        router.pools[0].scrape_failed(address(1), "refused", 0.0, answered=False, refused=True)
    explained = router.explain(RawRequest(), 0.0)
    assert explained.panic
    assert "every endpoint looks bad" in explained.why
    assert explained.endpoints[0].state == "unhealthy"


def test_unknown_figures_are_none_not_zero() -> None:
    """case d07"""
    router = fleet("least-loaded", 1)
    [row] = router.explain(RawRequest(), 60.0).endpoints
    assert (row.waiting, row.kv_usage_ratio) == (None, None)
    assert (row.held_tokens, row.uncached_tokens, row.expected_s) == (None, None, None)


@pytest.mark.parametrize("profile", list(PROFILES))
def test_nothing_of_the_prompt_the_salt_or_the_session_is_in_it(profile: str) -> None:
    router = fleet(profile)
    request = chat(f"{SECRET} " * 500, user=SECRET + "-user", cache_salt=SECRET + "-salt")
    router.route(request, 0.0)
    text = str(asdict(router.explain(request, 0.0))) + repr([each.explanation for each in router.decisions])
    assert SECRET not in text


def test_a_models_name_is_cut_off() -> None:
    router = fleet()
    explained = router.explain(chat("word " * 100, model="m" * 100_000), 0.0)
    assert explained.request is not None
    assert explained.request.model == "m" * 100


# The decision log


def test_few_picks_are_all_logged_with_the_explanation_of_just_that_pick() -> None:
    router = fleet(size=3)
    picks = []
    for second in range(10):
        observe_all(router, float(second))
        pick = router.route(chat(f"{second % 2} word " * 200), float(second))
        assert isinstance(pick, Pick)
        picks.append(pick)
    logged = list(router.decisions)
    assert [each.reservation.pick for each in logged] == picks
    assert [each.explanation.chosen for each in logged] == [str(pick.address) for pick in picks]
    assert logged[0].explanation.endpoints[0].in_flight == 0, "as the decision saw it, not after it"


def test_many_picks_are_sampled_evenly() -> None:
    """1,000 a second for 20 seconds: the bucket's burst, then LOGGED_PER_S each second"""
    router = sampled_router(2)
    for number in range(20_000):
        now = number / 1000
        if number % 500 == 0:
            observe_all(router, now)
        pick = route(router, now)
        router.complete(ended(pick), now)
    times = [each.reservation.picked_at_s for each in router.decisions]
    assert abs(len([at for at in times if at < 1.0]) - LOGGED_AT_ONCE) <= 2
    later = [at for at in times if at >= 2.0]
    assert abs(len(later) - 18 * LOGGED_PER_S) <= 1
    assert max(b - a for a, b in pairwise(later)) < 1.01 / LOGGED_PER_S


def test_the_log_is_bounded_in_picks_and_in_servers() -> None:
    router = fleet("least-loaded", 40)
    for second in range(RECENT + 10):
        observe_all(router, float(second))
        router.complete(ended(route(router, float(second))), float(second))
    assert len(router.decisions) == RECENT
    explanation = router.decisions[-1].explanation
    assert len(explanation.endpoints) == LOGGED_ENDPOINTS
    assert explanation.left_out == 40 - LOGGED_ENDPOINTS


def test_a_logged_pick_tells_its_outcome_once_it_is_known() -> None:
    router = fleet()
    pick = route(router, 0.0)
    [logged] = router.decisions
    assert logged.reservation.outcome is None
    router.complete(ended(pick, status=503), 1.5)
    assert str(logged.reservation.outcome) == "backpressure"
    assert logged.reservation.completion is not None
    assert logged.reservation.completion.status == 503
