"""What Prometheus sees of servers, their caches, and what is believed of these."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from extproc.admin.metrics import RouterCollector, page
from extproc.openai.body import MAX_JSON_BYTES
from extproc.pool.sample import Histogram
from extproc.request import RawRequest
from tests.admin.test_admin_pages import COUNTS, NOW, collected, labels
from tests.placement.fleet import chat, serve, text
from tests.placement.fleet import fleet as placed_fleet
from tests.support.fleet import address, pool, route, router, sample, sampled_router

ONE, TWO = labels(pool="vllm", endpoint="10.0.0.1:8000"), labels(pool="vllm", endpoint="10.0.0.2:8000")


def test_picks_are_told_by_server() -> None:
    fleet = sampled_router(2)
    chosen = [route(fleet, NOW).address for _ in range(4)]
    seen = collected(fleet)
    for number, key in ((1, ONE), (2, TWO)):
        assert seen["extproc_endpoint_picks_total", key] == chosen.count(address(number)) == 2


def test_what_a_server_says_of_its_prefix_cache_is_told_while_it_is_fresh() -> None:
    fleet = router(pool(2))
    told = replace(sample(NOW), prefix_queries_tokens=100.0, prefix_hits_tokens=25.0)
    fleet.observe("vllm", address(1), told, NOW)
    fleet.observe("vllm", address(2), replace(told, taken_at_s=NOW - 10), NOW)
    seen = collected(fleet)
    assert seen["extproc_endpoint_prefix_cache_queried_tokens_total", ONE] == 100
    assert seen["extproc_endpoint_prefix_cache_hit_tokens_total", ONE] == 25
    assert ("extproc_endpoint_prefix_cache_hit_tokens_total", TWO) not in seen
    assert seen["extproc_endpoint_sample_age_seconds", TWO] == 10


def test_times_to_first_token_are_a_histogram_of_the_pool() -> None:
    fleet = router(pool(1))
    for at, count in ((0.0, 1.0), (1.0, 4.0)):
        told = Histogram((0.25, float("inf")), (count, count), count / 10)
        fleet.observe("vllm", address(1), replace(sample(at), ttft=told), at)
    seen = collected(fleet)
    assert seen["extproc_time_to_first_token_seconds_bucket", labels(pool="vllm", le="0.1")] == 0
    assert seen["extproc_time_to_first_token_seconds_bucket", labels(pool="vllm", le="0.25")] == 3
    assert seen["extproc_time_to_first_token_seconds_count", labels(pool="vllm")] == 3


def test_the_prefix_index_tells_how_full_it_is_and_what_it_forgot() -> None:
    fleet = placed_fleet("cache-aware", 2, max_blocks=1000)
    key = labels(pool="vllm")
    assert collected(fleet)["extproc_prefix_index_blocks", key] == 0
    for number in range(40):
        serve(fleet, chat(text(4096, f"another {number}")))
    seen = collected(fleet)
    assert 0 < seen["extproc_prefix_index_blocks", key] <= 1000 == seen["extproc_prefix_index_max_blocks", key]
    assert seen["extproc_prefix_index_evicted_blocks_total", key] > 0
    assert seen["extproc_prefix_index_bytes", key] >= 300 * seen["extproc_prefix_index_blocks", key]


def test_counters_of_fixed_words_stand_at_zero_from_the_start() -> None:
    """Else the first failure is a series that appears, in which Prometheus sees no rise."""
    seen = collected(router(pool(1)))
    assert seen["extproc_request_outcomes_total", labels(pool="vllm", outcome="failed")] == 0
    assert seen["extproc_rejections_total", labels(reason="overloaded")] == 0
    assert seen["extproc_drains_ended_total", labels(pool="vllm", result="expired")] == 0


def test_the_version_is_told() -> None:
    (told,) = [key for name, key in collected(router(pool(1))) if name == "extproc_build_info"]
    assert dict(told)["version"]


def test_a_request_too_long_to_read_still_counts_for_its_server() -> None:
    fleet = sampled_router(1)
    fleet.route(RawRequest("POST", "/v1/completions", {}, b" " * (MAX_JSON_BYTES + 1)), NOW)
    assert collected(fleet)["extproc_endpoint_picks_total", ONE] == 1


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text; version=1.0.0"])
async def test_the_page_is_written_in_turns_and_is_what_it_would_be_at_once(accept: str) -> None:
    fleet = sampled_router(3)
    route(fleet, NOW)
    own = RouterCollector(fleet, lambda: COUNTS, lambda: ([("+Inf", 1.0)], 0.1), lambda: True, lambda: NOW)
    made = CollectorRegistry(auto_describe=False)
    made.register(own)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    body, content_type = await page(made, accept)
    task.cancel()
    encode, expected_type = choose_encoder(accept)
    assert (body, content_type) == (encode(made), expected_type)
    assert body.count(b"# EOF") == ("openmetrics" in accept)
    assert turns >= len(list(own.collect()))
