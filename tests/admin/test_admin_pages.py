"""The admin pages: what a probe, Prometheus and a person get to see."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.admin import explain, http
from extproc.admin.metrics import RouterCollector, registry
from extproc.admin.status import RECENT_SHOWN, status
from extproc.endpoint import Address
from extproc.pool.drain import By
from extproc.request import RawRequest, Route
from extproc.router import Router
from tests.support.fleet import address, ended, endpoint, pool, route, router, sample, sampled_router

NOW = 2.0
COUNTS = {
    "streams": 7,
    "open_streams": 2,
    "undecodable_messages": 1,
    "request_path_errors": 0,
    "undecodable_log_messages": 3,
    "access_log_entries": 5,
    "access_log_connections": 1,
    "eds_streams": 2,
    "eds_pushes": 6,
    "eds_refused": 0,
}


def collected(of: Router) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples of a scrape, as Prometheus reads them: name and labels -> value."""
    durations = ([("0.001", 3.0), ("+Inf", 4.0)], 0.25)
    failing = {"vllm": ["vllm.test"]}
    made = registry(RouterCollector(of, lambda: COUNTS, lambda: durations, lambda: True, lambda: NOW, lambda: failing))
    families = text_string_to_metric_families(generate_latest(made).decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def labels(**pairs: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pairs.items()))


def test_metrics_tell_requests_endpoints_and_the_state_of_the_shells() -> None:
    fleet = sampled_router(2)
    fleet.observe("vllm", address(1), sample(NOW, waiting=3.0, running=4.0, kv=0.5), NOW)
    first = route(fleet, NOW)
    fleet.complete(ended(first), NOW)
    second = route(fleet, NOW)
    fleet.route(RawRequest(subset=frozenset()), NOW)
    seen = collected(fleet)
    one, two = labels(pool="vllm", endpoint="10.0.0.1:8000"), labels(pool="vllm", endpoint="10.0.0.2:8000")
    assert seen["extproc_picks_total", labels(pool="vllm")] == 2
    assert seen["extproc_panic_picks_total", labels(pool="vllm")] == 0
    assert seen["extproc_rejections_total", labels(reason="no_endpoints")] == 1
    assert seen["extproc_request_outcomes_total", labels(pool="vllm", outcome="ok")] == 1
    assert (seen["extproc_endpoint_waiting_requests", one], seen["extproc_endpoint_running_requests", one]) == (3, 4)
    assert seen["extproc_endpoint_kv_usage_ratio", one] == 0.5
    assert second.address == address(2)
    assert (seen["extproc_endpoint_in_flight_requests", one], seen["extproc_endpoint_in_flight_requests", two]) == (
        0,
        1,
    )
    assert seen["extproc_endpoint_state", (*labels(endpoint="10.0.0.1:8000", pool="vllm"), ("state", "ready"))] == 1
    assert seen["extproc_endpoint_sample_age_seconds", two] == NOW
    assert seen["extproc_ready", ()] == 1
    assert seen["extproc_streams_total", ()] == 7
    assert seen["extproc_open_streams", ()] == 2
    assert seen["extproc_undecodable_messages_total", ()] == 1
    assert seen["extproc_access_log_connections", ()] == 1
    assert seen["extproc_undecodable_log_messages_total", ()] == 3
    assert seen["extproc_discovery_failing", labels(pool="vllm", name="vllm.test")] == 1
    assert seen["extproc_decision_seconds_count", ()] == 4
    assert seen["extproc_decision_seconds_sum", ()] == 0.25


def test_names_that_do_not_exist_are_counted_by_what_named_them_and_shown() -> None:
    fleet = sampled_router(1)
    for _ in range(2):
        fleet.route(RawRequest(route=Route("nope\n", "session")), NOW)
    seen = {by: value for (name, by), value in collected(fleet).items() if name == "extproc_unknown_names_total"}
    assert seen == {labels(by="route_pool"): 2, labels(by="route_profile"): 0, labels(by="header_profile"): 0}
    page = shown(fleet)
    assert page["requests"]["unknown_names"] == {"route_pool": 2}
    assert "2 requests were routed as if their route's pool 'nope\\n' were not set: there is none" in page["warnings"]


def test_a_dns_name_that_does_not_resolve_is_shown_with_its_pool() -> None:
    fleet = sampled_router(1)
    page = shown(fleet, failing={"vllm": {"vllm.test": "no such name"}})
    assert page["pools"]["vllm"]["failing"] == {"vllm.test": "no such name"}
    assert "pool vllm: vllm.test: no such name" in page["warnings"]
    assert shown(fleet)["pools"]["vllm"]["failing"] == {}


def test_an_unknown_load_is_absent_from_the_metrics_not_zero() -> None:
    """case d07"""
    fleet = router(pool(2))
    fleet.observe("vllm", address(2), sample(NOW, waiting=None, running=None, kv=None), NOW)
    names = {name for name, _ in collected(fleet)}
    assert not names & {
        "extproc_endpoint_waiting_requests",
        "extproc_endpoint_running_requests",
        "extproc_endpoint_kv_usage_ratio",
    }


def shown(
    of: Router, *, connected: int = 1, now: float = NOW, failing: dict[str, dict[str, str]] | None = None
) -> dict[str, Any]:
    return status(
        of,
        now=now,
        ready=True,
        started_s=0.0,
        version="1.2.3",
        streams={"open": 0},
        access_log={"connected": connected, "entries": 0},
        failing=failing,
        wall_clock=lambda: 1.7e9,
    )


def test_the_status_warns_of_what_an_envoy_refuses_and_of_what_is_no_pool() -> None:
    stream = {"node": "envoy-1", "names": ["vllm", "vlm"], "refusal": None, "unknown": []}
    streams = [stream, {**stream, "refusal": "bad weight"}, {**stream, "unknown": ["vlm"]}]
    found = status(
        sampled_router(2),
        now=0.0,
        ready=True,
        started_s=0.0,
        version="",
        streams={},
        access_log={"connected": 1},
        eds={"streams": streams},
    )
    assert found["warnings"] == [
        "Envoy 'envoy-1' refuses the endpoints of vllm, vlm, keeps those it had: bad weight",
        "Envoy 'envoy-1' asks for the endpoints of vlm: no pool here",
    ]


def test_the_status_names_each_endpoint_with_its_state_and_why() -> None:
    fleet = sampled_router(3)
    fleet.pools[0].set_endpoints([endpoint(1), endpoint(2, drained=True), endpoint(3), endpoint(4)])
    for _ in range(2):
        fleet.pools[0].scrape_failed(address(3), "refused: no", NOW, answered=False, refused=True)
    endpoints = {each["address"]: each for each in shown(fleet)["pools"]["vllm"]["endpoints"]}
    states = {name: each["state"] for name, each in endpoints.items()}
    assert states == {
        "10.0.0.1:8000": "ready",
        "10.0.0.2:8000": "draining",
        "10.0.0.3:8000": "unhealthy",
        "10.0.0.4:8000": "starting",
    }
    assert endpoints["10.0.0.3:8000"]["problem"] == "connection refused"
    assert endpoints["10.0.0.3:8000"]["last_scrape_error"] == "refused: no"
    assert endpoints["10.0.0.4:8000"]["sample"] is None
    assert endpoints["10.0.0.1:8000"]["sample"]["age_s"] == NOW


def test_the_status_tells_of_each_drain_how_far_it_is() -> None:
    fleet = sampled_router(2)
    route(fleet, 1.0, subset=["10.0.0.1"])
    fleet.pools[0].drains.ask(fleet.pools[0].members[0], By.OPERATOR, 1.5, NOW + 30.0)
    first, second = shown(fleet)["pools"]["vllm"]["endpoints"]
    assert second["drain"] is None
    told = {"phase": "draining", "by": "operator", "in_flight": 1, "blocked_by": "in_flight", "deadline_s": 30.0}
    assert first["drain"] | told == first["drain"]
    assert first["drain"]["started"] == pytest.approx(1.7e9 - NOW + 1.5)


def test_the_status_shows_the_last_picks_newest_first_without_their_queries() -> None:
    fleet = sampled_router(2)
    for number in range(RECENT_SHOWN + 5):
        fleet.route(RawRequest(path=f"/v1/completions?key=secret{number}"), 1.0)
    pick = route(fleet, 1.5)
    fleet.complete(ended(pick, served=pick.fallbacks[0], attempts=2, flags=["upstream_retry_limit_exceeded"]), NOW)
    recent = shown(fleet)["recent"]
    assert len(recent) == RECENT_SHOWN
    assert recent[0] == {
        "age_s": 0.5,
        "pool": "vllm",
        "path": "",
        "picked": str(pick.address),
        "fallbacks": [str(pick.fallbacks[0])],
        "on": str(pick.fallbacks[0]),
        "outcome": "ok",
        "duration_s": 0.5,
        "served": str(pick.fallbacks[0]),
        "status": 200,
        "attempts": 2,
        "flags": ["upstream_retry_limit_exceeded"],
        "first_byte_s": None,
        "envoy_duration_s": None,
        "details": "",
    }
    assert (recent[1]["outcome"], recent[1]["duration_s"], recent[1]["status"]) == ("in_flight", None, None)
    assert "secret" not in str(recent)


def test_servers_that_left_are_shown_while_their_requests_run() -> None:
    fleet = sampled_router(1)
    route(fleet, NOW)
    fleet.pools[0].set_endpoints([])
    assert shown(fleet)["pools"]["vllm"]["leaving"] == [{"address": "10.0.0.1:8000", "in_flight": 1}]
    assert shown(fleet)["requests"]["in_flight"] == 1


def test_there_are_no_warnings_when_all_is_well() -> None:
    fleet = sampled_router(2)
    fleet.complete(ended(route(fleet, NOW)), NOW)
    assert shown(fleet)["warnings"] == []


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda fleet: route(fleet, NOW), "no access log is received"),
        (lambda fleet: fleet.pools[0].set_endpoints([]), "has no endpoints"),
        (lambda fleet: fleet.pools[0].set_endpoints([endpoint(9)]), "no endpoint's load is known"),
        (
            lambda fleet: fleet.complete(ended(route(fleet, NOW), served=Address.of("10.9.9.9", 1)), NOW),
            "a host that was not named",
        ),
    ],
)
def test_the_status_says_in_words_what_is_wrong(make: Any, words: str) -> None:
    """case b10, d10"""
    fleet = sampled_router(2)
    make(fleet)
    assert any(words in warning for warning in shown(fleet, connected=0)["warnings"])


@pytest.fixture
async def pages() -> AsyncIterator[tuple[dict[str, bool], TestClient[Any, Any]]]:
    state = {"ready": True}
    fleet = sampled_router(1)
    collector = RouterCollector(fleet, lambda: COUNTS, lambda: ([("+Inf", 0.0)], 0.0), lambda: True, lambda: NOW)
    answers = http.Answers(
        ready=lambda: state["ready"],
        status=lambda: shown(fleet),
        explain=lambda request: explain.explanation(fleet, request, NOW),
        decisions=lambda limit: explain.decisions(fleet, limit, NOW),
    )
    app = http.application(registry(collector), answers, max_body_bytes=10_000)
    async with TestClient(TestServer(app)) as client:
        yield state, client


async def test_healthz_holds_and_readyz_follows_readiness(pages: tuple[dict[str, bool], TestClient[Any, Any]]) -> None:
    state, client = pages
    for ready, code in ((True, 200), (False, 503)):
        state["ready"] = ready
        assert (await client.get("/readyz")).status == code
        assert (await client.get("/healthz")).status == 200


async def test_metrics_come_in_both_formats_of_prometheus(pages: tuple[dict[str, bool], TestClient[Any, Any]]) -> None:
    _, client = pages
    plain = await client.get("/metrics")
    assert plain.content_type == "text/plain"
    assert "extproc_picks_total" in await plain.text()
    openmetrics = await client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert openmetrics.content_type == "application/openmetrics-text"
    assert (await openmetrics.text()).endswith("# EOF\n")


async def test_the_status_is_json_and_the_index_lists_the_pages(
    pages: tuple[dict[str, bool], TestClient[Any, Any]],
) -> None:
    _, client = pages
    answer = await client.get("/status")
    assert (await answer.json())["version"] == "1.2.3"
    index = await (await client.get("/")).text()
    for page in ("/status", "/metrics", "/healthz", "/readyz", "/decisions"):
        assert page in index
        assert (await client.get(page)).status == 200


async def test_a_posted_body_is_explained_and_nothing_is_done(
    pages: tuple[dict[str, bool], TestClient[Any, Any]],
) -> None:
    _, client = pages
    before = await (await client.get("/status")).json()
    answer = await client.post("/explain", params={"path": "/v1/completions"}, json={"model": "m", "prompt": "hi"})
    assert answer.status == 200
    explained = await answer.json()
    assert (explained["profile"], explained["chosen"]) == ("least-loaded", "10.0.0.1:8000")
    assert explained["why"] == "10.0.0.1:8000: the only one that can be used"
    assert [each["rank"] for each in explained["endpoints"]] == [1]
    assert await (await client.get("/status")).json() == before
    assert await (await client.get("/decisions")).json() == []


@pytest.mark.parametrize(
    ("params", "size", "status", "words"),
    [({"pool": "x"}, 1, 404, 'no pool "x"'), ({}, 10_001, 413, "larger than max_body_bytes")],
)
async def test_a_question_that_is_a_mistake_is_told_why(
    pages: tuple[dict[str, bool], TestClient[Any, Any]], params: dict[str, str], size: int, status: int, words: str
) -> None:
    _, client = pages
    answer = await client.post("/explain", params=params, data=b"x" * size)
    assert answer.status == status
    assert words in (await answer.json())["error"]


async def test_a_compressed_body_is_bounded_by_what_it_unpacks_to(
    pages: tuple[dict[str, bool], TestClient[Any, Any]],
) -> None:
    _, client = pages
    answer = await client.post("/explain", data=gzip.compress(bytes(10_001)), headers={"Content-Encoding": "gzip"})
    assert answer.status == 413


@pytest.mark.parametrize("limit", ["-1", "x", "", "1e3"])
async def test_a_limit_that_is_no_number_is_refused(
    pages: tuple[dict[str, bool], TestClient[Any, Any]], limit: str
) -> None:
    _, client = pages
    answer = await client.get("/decisions", params={"limit": limit})
    assert answer.status == 400
    assert "limit=20" in (await answer.json())["error"]


def test_the_decision_log_tells_the_outcome_and_the_reason_the_newest_first() -> None:
    fleet = sampled_router(2)
    first = route(fleet, 0.5)
    fleet.complete(ended(first, status=500), 1.5)
    second = route(fleet, 1.0)
    log = explain.decisions(fleet, 10, NOW)
    assert [each["picked"] for each in log] == [str(second.address), str(first.address)]
    assert [(each["outcome"], each["status"], each["duration_s"]) for each in log] == [
        ("in_flight", None, None),
        ("failed", 500, 1.0),
    ]
    for each in log:
        assert each["explanation"]["why"].startswith(each["picked"])
        assert len(each["explanation"]["endpoints"]) == 2
    assert explain.decisions(fleet, 1, NOW) == log[:1]
    assert explain.decisions(fleet, 0, NOW) == []


async def test_the_admin_pages_change_nothing(pages: tuple[dict[str, bool], TestClient[Any, Any]]) -> None:
    _, client = pages
    for page in ("/status", "/metrics", "/healthz", "/readyz"):
        assert (await client.post(page)).status == 405
