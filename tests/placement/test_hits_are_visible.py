"""What the metrics tell of prefixes: how much was held, and why some requests had none to look up."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from extproc.admin.metrics import RouterCollector, registry
from extproc.admin.status import status
from extproc.openai.body import MAX_JSON_BYTES
from extproc.request import RawRequest
from extproc.router import Router
from tests.placement.fleet import PATH, chat, fleet, send, serve, text
from tests.support.ext_proc_client import HEADERS

NO_COUNTS: dict[str, float] = {}
EIGHT_KB = chat(text(2048, "the same"))


def scraped(of: Router) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples of the prompt metrics by name, then by the labels behind the pool."""
    page = generate_latest(registry(_Collector(of))).decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.startswith("extproc_"):
                assert sample.labels.pop("pool") == "vllm"
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


class _Collector(RouterCollector):
    """The prompt metrics alone."""

    def __init__(self, of: Router) -> None:
        super().__init__(of, lambda: NO_COUNTS, lambda: ([], 0.0), lambda: True, lambda: 0.0)

    def collect(self) -> Iterator[Metric]:
        return self._prompts()


def shown(of: Router) -> dict[str, object]:
    now = dict.fromkeys(("connected", "entries"), 0)
    found = status(of, now=0.0, ready=True, started_s=0.0, version="", streams={}, access_log=now)
    prompts: dict[str, object] = found["pools"]["vllm"]["prompts"]
    return prompts


def test_a_hundred_identical_chats_over_four_idle_servers_are_seen_to_hit() -> None:
    """case c21: all but the first find everything but the bytes behind the last full block"""
    router = fleet("cache-aware", 4)
    for _ in range(100):
        serve(router, EIGHT_KB)
    seen = scraped(router)
    assert seen["extproc_read_picks_total"] == {("chat",): 100}
    assert seen["extproc_picks_by_way_total"] == {("first_token",): 100}
    assert "extproc_keyless_picks_total" not in seen
    tokens = seen["extproc_prompt_tokens_total"]["chat",]
    held = seen["extproc_held_prompt_tokens_total"]["chat",]
    assert tokens == pytest.approx(100 * 2048, rel=0.01)
    assert held == 99 * 2048
    assert shown(router)["apis"] == {
        "chat": {
            "picks": 100,
            "prompt_tokens": round(tokens),
            "held_tokens": held,
            "held_ratio": round(held / tokens, 3),
        }
    }


def test_chats_without_affinity_are_seen_to_miss_and_why() -> None:
    """case c21: what nobody noticed"""
    router = fleet("least-loaded", 4)
    for _ in range(100):
        serve(router, EIGHT_KB)
    seen = scraped(router)
    assert seen == {"extproc_picks_by_way_total": {("load",): 100}, "extproc_keyless_picks_total": {("not_read",): 100}}
    assert shown(router) == {"ways": {"load": 100}, "keyless": {"not_read": 100}, "apis": {}}


@pytest.mark.parametrize("profile", ["session", "prefix-hash"])
def test_other_profiles_that_read_bodies_tell_what_their_choice_held(profile: str) -> None:
    router = fleet(profile, 4)
    for _ in range(10):
        serve(router, chat(text(2048, "x"), session="s"))
    assert scraped(router)["extproc_held_prompt_tokens_total"] == {("chat",): 9 * 2048}


def test_what_a_pick_found_is_what_there_was_before_it() -> None:
    router = fleet("cache-aware", 1)
    send(router, EIGHT_KB)
    assert scraped(router)["extproc_held_prompt_tokens_total"] == {("chat",): 0}


REASONS = {
    "no_body": RawRequest("GET", "/v1/models"),
    "too_large": RawRequest("POST", PATH, HEADERS, b'{"prompt": "' + b"a" * MAX_JSON_BYTES + b'"}'),
    "encoded": RawRequest("POST", PATH, {"content-encoding": "br"}, b"\x0b\x02\x80"),
    "unparsable": RawRequest("POST", PATH, HEADERS, b'{"model": "m"'),
    "unknown_api": RawRequest("POST", "/v1/rerank", HEADERS, b'{"query": "q", "documents": ["d"]}'),
    "empty": RawRequest("POST", PATH, HEADERS, b'{"model": "m"}'),
    "too_short": chat("hi"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_request_without_a_prefix_to_look_up_is_counted_by_why(reason: str) -> None:
    """case c21"""
    router = fleet("cache-aware", 4)
    serve(router, REASONS[reason])
    seen = scraped(router)
    assert seen["extproc_keyless_picks_total"] == {(reason,): 1}
    assert sum(seen["extproc_read_picks_total"].values()) == 1
    assert sum(seen["extproc_picks_by_way_total"].values()) == 1


def test_what_can_be_undone_is_read() -> None:
    router = fleet("cache-aware", 4)
    packed = RawRequest("POST", PATH, {"content-encoding": "gzip"}, gzip.compress(EIGHT_KB.body))
    serve(router, EIGHT_KB)
    serve(router, packed)
    assert scraped(router)["extproc_held_prompt_tokens_total"] == {("chat",): 2048}


def test_asking_where_a_request_would_go_counts_nothing() -> None:
    router = fleet("cache-aware", 4)
    router.explain(EIGHT_KB, 0.0)
    assert scraped(router) == {}
