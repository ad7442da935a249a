"""A request goes only to servers that serve its model; and when is it refused?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import orjson
import pytest

from extproc.decision import Pick, Rejection, RejectionReason
from extproc.pool.sample import LoadSample
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from tests.support.fleet import address, endpoint, observe_all, pool

CHAT = "/v1/chat/completions"
WITHIN_S = 20.0  # a list older than this is no ground to refuse


def fleet(*models: Iterable[str] | None, profile: str = "least-loaded", within_s: float | None = WITHIN_S) -> Router:
    """Idle servers that said at 0 s that they serve these; None: one that does not tell."""
    made = pool(len(models))
    router = Router([PoolPlan(made, PROFILES[profile], 3, refuse_models_within_s=within_s)], rng=Random(1))
    observe_all(router, 0.0)
    for number, names in enumerate(models, start=1):
        if names is not None:
            made.told_models(address(number), frozenset(names), 0.0)
    return router


def chat(model: object, path: str = CHAT) -> RawRequest:
    body = {"model": model, "messages": [{"role": "user", "content": "word " * 500}], "user": "u"}
    return RawRequest("POST", path, {}, orjson.dumps(body))


def hosts(router: Router, request: RawRequest, now: float = 0.0) -> set[int]:
    """The numbers of all servers that a pick names."""
    pick = router.route(request, now)
    assert isinstance(pick, Pick), pick
    return {int(each.ip.rpartition(".")[2]) for each in (pick.address, *pick.fallbacks)}


@pytest.mark.parametrize("profile", PROFILES)
def test_first_choice_and_fallbacks_all_serve_the_model(profile: str) -> None:
    """case c19"""
    router = fleet({"a"}, {"a", "alias"}, {"b"}, {"b", "adapter"}, profile=profile)
    for _ in range(20):
        assert hosts(router, chat("a")) == {1, 2}
        assert hosts(router, chat("b")) == {3, 4}
        assert hosts(router, chat("alias")) == {2}
        assert hosts(router, chat("adapter")) == {4}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_server_whose_models_are_not_known_may_be_asked_for_any(profile: str) -> None:
    router = fleet({"a"}, None, profile=profile)
    assert hosts(router, chat("a")) == {1, 2}
    assert hosts(router, chat("b")) == {2}


@pytest.mark.parametrize(
    "request_",
    [
        RawRequest("GET", "/v1/models"),
        RawRequest("POST", CHAT, {}, b'{"messages": []}'),
        RawRequest("POST", CHAT, {}, b'{"model": "", "messages": []}'),
        RawRequest("POST", CHAT, {}, b'{"model": 7, "messages": []}'),
        RawRequest("POST", CHAT, {}, b"\xff\xfe"),
        RawRequest("POST", CHAT, {"content-encoding": "br"}, b"...."),
        RawRequest("POST", "/v1/load_lora_adapter", {}, b'{"lora_name": "x", "lora_path": "/x"}'),
        RawRequest("POST", "/invocations", {}, b'{"model": "x", "messages": []}'),
    ],
)
def test_a_request_whose_model_is_not_understood_goes_to_any(request_: RawRequest) -> None:
    router = fleet({"a"}, {"b"}, {"c"})
    assert hosts(router, request_) == {1, 2, 3}
    assert not router.ledger.rejections


def test_a_model_that_no_server_of_the_pool_serves_is_refused_in_vllms_words() -> None:
    """case c19"""
    router = fleet({"a"}, {"b"})
    refusal = router.route(chat("c"), 0.5)
    assert refusal == Rejection(RejectionReason.MODEL_NOT_FOUND, 404, "The model `c` does not exist.", doubtful="vllm")
    assert router.ledger.rejections == {RejectionReason.MODEL_NOT_FOUND: 1}
    assert router.ledger.requests("vllm") == 0, "no server more would serve it"
    assert not router.ledger.picks


@pytest.mark.parametrize("profile", ["session", "prefix-hash", "cache-aware"])
def test_where_all_serve_the_same_a_profile_that_reads_bodies_refuses_too(profile: str) -> None:
    router = fleet({"a"}, {"a"}, profile=profile)
    assert isinstance(router.route(chat("c"), 0.0), Rejection)
    assert hosts(router, chat("a")) == {1, 2}


def test_where_all_serve_the_same_the_load_alone_decides_without_a_look_at_the_body() -> None:
    """The server refuses an unknown model itself."""
    router = fleet({"a"}, {"a"})
    assert hosts(router, chat("c")) == {1, 2}


@pytest.mark.parametrize(
    ("models", "now", "within_s"),
    [
        (({"a"}, None), 0.0, WITHIN_S),  # one does not tell
        (({"a"}, {"b"}), WITHIN_S + 0.1, WITHIN_S),  # what they said is too old
        (({"a"}, {"b"}), 0.0, None),  # the operator wants it passed on
    ],
)
def test_it_is_not_refused_unless_all_are_known_for_sure(
    models: tuple[set[str] | None, ...], now: float, within_s: float | None
) -> None:
    router = fleet(*models, within_s=within_s)
    assert isinstance(router.route(chat("c"), now), Pick)


def test_what_only_the_operator_said_is_no_ground_to_refuse() -> None:
    """Adapters are loaded at run time."""
    router = fleet({"a"}, None)
    router.pools[0].set_endpoints([endpoint(1), replace(endpoint(2), models=("b",))])
    assert hosts(router, chat("b")) == {2}
    assert hosts(router, chat("c")) == {2}, "the one that has not told"


def test_a_restarted_server_may_serve_something_else() -> None:
    router = fleet({"a"}, {"b"})
    sample = LoadSample(1.0, running=0, waiting=0, kv_usage_ratio=0, process_start_s=100.0)
    router.observe("vllm", address(2), sample, 1.0)
    assert isinstance(router.route(chat("c"), 1.0), Rejection)
    router.observe("vllm", address(2), replace(sample, taken_at_s=2.0, process_start_s=200.0), 2.0)
    assert hosts(router, chat("c"), 2.0) == {2}
    assert hosts(router, chat("a"), 2.0) == {1}, "but it probably serves what it did"
    router.pools[0].told_models(address(2), frozenset({"b"}), 2.1)
    assert isinstance(router.route(chat("c"), 2.2), Rejection)


def test_servers_are_to_be_asked_again_before_a_refusal_and_one_that_is_not_sent_does_not_count() -> None:
    router = fleet({"a"}, {"b"})
    sent, withdrawn = router.route(chat("c"), 0.1), router.route(chat("c"), 0.1)
    assert isinstance(sent, Rejection)
    assert isinstance(withdrawn, Rejection)
    assert sent.doubtful == withdrawn.doubtful == "vllm"
    router.withdraw(withdrawn)
    assert router.ledger.rejections == {RejectionReason.MODEL_NOT_FOUND: 1}


@pytest.mark.parametrize("state", ["drained", "unhealthy"])
def test_if_none_of_its_servers_can_be_used_no_other_is(state: str) -> None:
    router = fleet({"a"}, {"a"}, {"b"})
    if state == "drained":
        router.pools[0].set_endpoints([endpoint(1, drained=True), endpoint(2, drained=True), endpoint(3)])
        decision = router.route(chat("a"), 0.0)
        assert isinstance(decision, Rejection)
        assert decision.reason is RejectionReason.NO_ENDPOINTS
    else:
        for number in (1, 2):
            for _ in range(2):
                router.pools[0].scrape_failed(address(number), "refused", 0.0, answered=False, refused=True)
        assert hosts(router, chat("a")) == {1, 2}
        assert router.ledger.panics == {"vllm": 1}
    assert hosts(router, chat("b")) == {3}


@pytest.mark.parametrize("model", ["x" * 10_000, "line\nbreak\x1b[31m\x00", "\u202eright to left", "Zürich/模型", "`"])
def test_of_the_clients_text_at_most_a_hundred_printable_characters_come_back(model: str) -> None:
    decision = fleet({"a"}, {"b"}).route(chat(model), 0.0)
    assert isinstance(decision, Rejection)
    shown = decision.message.removeprefix("The model `").removesuffix("` does not exist.")
    assert shown.isprintable()
    assert len(shown) == min(len(model), 100)
    assert "".join(char for char in model[:100] if char.isprintable()) == shown.replace("?", "")


def test_the_explanation_tells_who_does_not_serve_the_model() -> None:
    router = fleet({"a"}, {"b"}, None)
    rows = {each.address: each.dropped for each in router.explain(chat("a"), 0.0).endpoints}
    assert rows == {"10.0.0.1:8000": None, "10.0.0.2:8000": "does not serve the model", "10.0.0.3:8000": None}


def test_the_explanation_tells_in_words_that_a_model_is_refused() -> None:
    router = fleet({"a"}, {"b"})
    explained = router.explain(chat("c\n" + "x" * 200), 0.0)
    assert explained.chosen is None
    assert explained.why == f'refused (404): every endpoint says that it does not serve "c?{"x" * 98}"'
    assert {each.dropped for each in explained.endpoints} == {"does not serve the model"}
    assert not router.ledger.rejections
    router.pools[0].set_endpoints([endpoint(1, drained=True), endpoint(2)])
    assert router.explain(chat("a"), 0.0).why == (
        "no endpoint can be used: 1 drained by the operator, 1 does not serve the model"
    )


def test_the_explanation_of_a_request_that_goes_to_all_drops_nobody_for_its_model() -> None:
    router = fleet({"a"}, {"b"}, within_s=None)
    assert [each.dropped for each in router.explain(chat("c"), 0.0).endpoints] == [None, None]
