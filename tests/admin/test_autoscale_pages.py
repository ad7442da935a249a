"""Recommendations over HTTP and as gauges: what is unknown or too old is no number."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.admin import http
from extproc.admin.autoscale_metrics import AutoscaleCollector
from extproc.admin.metrics import registry
from extproc.admin.status import status
from extproc.autoscale.latest import Remarks
from extproc.autoscale.policy import Policy
from extproc.autoscale.recommendation import Recommendation, Signal, SignalName, Verdict
from tests.support.fleet import pool, router
from tests.support.recommended import FOUR

GOOD = replace(
    FOUR,
    at_s=10.0,
    desired=3,
    reason="up from 2 to 3: 4 wait per server, threshold 1: one more than 2",
    signals=(
        Signal(SignalName.WAITING, 4.00001, 1.0, 3, 0.25, "4 wait per server"),
        Signal(SignalName.KV_USAGE, 0.2, 0.7, None, 0.25, "KV usage is 20%"),
        Signal(SignalName.MIN_REPLICAS, None, None, 1, None, "min_replicas is 1"),
    ),
    provisioned=2,
    ready=2,
    draining=1,
    verdict=Verdict.SCALING,
    ttft_p99_s=1.5,
    ttft_target_s=1.0,
    age_s=0.0,
    calibrated=False,
    cold_start_s=98.0,
    lead_s=145.5,
)
STALE = replace(GOOD, stale=True, age_s=301.0)
NONE = replace(GOOD, desired=None, stale=True, age_s=None, verdict=None, ttft_p99_s=None, reason="nothing is known")


class Said:
    """An `Explained` that says what it is told to, of one pool."""

    def __init__(self) -> None:
        self.found: Recommendation | None = GOOD
        self.said = Remarks()

    names = ("vllm",)

    def get(self, pool: str) -> Recommendation | None:
        return {"vllm": self.found}[pool]

    def policy(self, pool: str) -> Policy:
        return {"vllm": Policy(max_replicas=8, ttft_target_s=1.0)}[pool]

    def remarks(self, pool: str) -> Remarks:
        return {"vllm": self.said}[pool]


Pages = tuple[Said, TestClient[Any, Any]]


@pytest.fixture
async def pages() -> AsyncIterator[Pages]:
    said = Said()
    answers = http.Answers(
        ready=lambda: True,
        status=dict,
        explain=lambda request: {},
        decisions=lambda limit: [],
        autoscale=said,
        offered=lambda: {"id": "us", "pools": {"vllm": 7}},
    )
    app = http.application(registry(AutoscaleCollector(said)), answers, max_body_bytes=1000)
    async with TestClient(TestServer(app)) as client:
        yield said, client


async def get(client: TestClient[Any, Any], path: str) -> tuple[int, Any]:
    answer = await client.get(path)
    return answer.status, await answer.json()


async def test_a_pools_recommendation_has_all_its_numbers(pages: Pages) -> None:
    said, client = pages
    code, body = await get(client, "/autoscale/v1/pools/vllm")
    assert code == 200
    assert body == {
        "pool": "vllm",
        "desired": 3,
        "reason": GOOD.reason,
        "min_replicas": 1,
        "max_replicas": 8,
        "provisioned": 2,
        "ready": 2,
        "starting": 0,
        "draining": 1,
        "stale_servers": 0,
        "verdict": "scaling",
        "ttft_p99_s": 1.5,
        "ttft_target_s": 1.0,
        "signals": [
            {
                "name": "waiting",
                "value": 4.0,
                "threshold": 1.0,
                "replicas": 3,
                "age_s": 0.25,
                "reason": "4 wait per server",
            },
            {
                "name": "kv_usage",
                "value": 0.2,
                "threshold": 0.7,
                "replicas": None,
                "age_s": 0.25,
                "reason": "KV usage is 20%",
            },
            {
                "name": "min_replicas",
                "value": None,
                "threshold": None,
                "replicas": 1,
                "age_s": None,
                "reason": "min_replicas is 1",
            },
        ],
        "age_s": 0.0,
        "stale": False,
        "held": None,
        "calibrated": False,
        "cold_start_s": 98.0,
        "lead_s": 145.5,
        "min_too_low": None,
        "calm": False,
        "room": 1.0,
        "down_ratio": 0.7,
        "tightened_to": None,
        "warnings": [],
    }
    said.said = Remarks(("the profile was made with another model",), 0.95)
    shown = (await get(client, "/autoscale/v1/pools/vllm"))[1]
    assert (shown["warnings"], shown["tightened_to"]) == (["the profile was made with another model"], 0.95)
    assert await get(client, "/autoscale/v1/pools") == (200, {"pools": {"vllm": shown}})


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (STALE, "the load of its servers was last known 301 s ago"),
        (replace(STALE, age_s=None), "the load of its servers is not known"),
        (NONE, "nothing is known"),
        (None, "the pool was not looked at yet"),
    ],
)
async def test_what_is_no_number_to_go_by_is_a_503_with_the_same_body_and_the_reason(
    pages: Pages, found: Recommendation | None, error: str
) -> None:
    """case f06"""
    said, client = pages
    keys = (await get(client, "/autoscale/v1/pools/vllm"))[1].keys()
    said.found = found
    code, body = await get(client, "/autoscale/v1/pools/vllm")
    assert (code, body["error"]) == (503, error)
    assert body.keys() == keys | {"error"}
    code, every = await get(client, "/autoscale/v1/pools")
    assert (code, every["pools"]["vllm"]) == (200, body)


async def test_a_pool_that_gets_none_is_a_404_that_names_those_that_do(pages: Pages) -> None:
    _, client = pages
    code, body = await get(client, "/autoscale/v1/pools/vlm")
    assert (code, body) == (404, {"error": 'no pool "vlm" gets recommendations; those that do: vllm'})


async def test_peers_are_told_what_came_to_this_process(pages: Pages) -> None:
    assert await get(pages[1], "/autoscale/v1/offered") == (200, {"id": "us", "pools": {"vllm": 7}})


async def test_the_pages_are_listed_and_change_nothing(pages: Pages) -> None:
    _, client = pages
    assert "/autoscale/v1/pools" in await (await client.get("/")).text()
    for page in ("pools", "pools/vllm", "offered"):
        assert (await client.post(f"/autoscale/v1/{page}")).status == 405


def gauges(said: Said) -> dict[str, float]:
    """By name and labels other than the pool, as Prometheus reads them."""
    page = generate_latest(registry(AutoscaleCollector(said))).decode()
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.startswith("extproc_autoscale_"):
                assert sample.labels.pop("pool") == "vllm"
                name = sample.name.removeprefix("extproc_autoscale_")
                found["/".join((name, *sample.labels.values()))] = sample.value
    return found


def test_gauges_tell_the_numbers_and_what_is_unknown_is_absent() -> None:
    assert gauges(Said()) == {
        "desired_replicas": 3,
        "min_replicas": 1,
        "max_replicas": 8,
        "ready_servers": 2,
        "starting_servers": 0,
        "draining_servers": 1,
        "stale_servers": 0,
        "age_seconds": 0,
        "lead_seconds": 145.5,
        "ttft_p99_seconds": 1.5,
        "ttft_target_seconds": 1.0,
        "warnings": 0,
        "signal_value/waiting": 4.00001,
        "signal_value/kv_usage": 0.2,
        "signal_threshold/waiting": 1.0,
        "signal_threshold/kv_usage": 0.7,
        "signal_replicas/waiting": 3,
        "signal_replicas/min_replicas": 1,
        "verdict/ok": 0,
        "verdict/late": 0,
        "verdict/early": 0,
        "verdict/at_capacity": 0,
        "verdict/scaling": 1,
    }
    said = Said()
    said.found, said.said = replace(GOOD, min_too_low=4), Remarks(("a", "b"))
    assert gauges(said)["needed_min_replicas"] == 4
    assert gauges(said)["warnings"] == 2


@pytest.mark.parametrize("found", [STALE, NONE, None])
def test_of_what_is_too_old_the_numbers_are_absent(found: Recommendation | None) -> None:
    """case f06"""
    said = Said()
    said.found = found
    seen = gauges(said)
    assert not [name for name in seen if name.startswith(("desired", "signal", "verdict", "ttft_p99"))]
    assert seen["max_replicas"] == 8
    assert seen.get("age_seconds") == (301.0 if found is STALE else None)


def shown(said: Said) -> dict[str, Any]:
    return status(
        router(pool(1), pool(1, "other")),
        now=0.0,
        ready=True,
        started_s=0.0,
        version="",
        streams={},
        access_log={"connected": 1},
        autoscale=said,
    )


def test_the_status_tells_it_in_short_and_warns() -> None:
    said = Said()
    said.said = Remarks(("the profile was made with another model",))
    page = shown(said)
    assert page["pools"]["vllm"]["autoscale"] == {
        "desired": 3,
        "stale": False,
        "verdict": "scaling",
        "reason": GOOD.reason,
    }
    assert page["pools"]["other"]["autoscale"] is None
    assert "pool vllm: autoscaling: the profile was made with another model" in page["warnings"]
    said.found = None
    assert shown(said)["pools"]["vllm"]["autoscale"]["desired"] is None
