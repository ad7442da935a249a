"""What the looks at a pool come to over time, in the log and in the thresholds; without waiting for it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from extproc.autoscale.recommendation import Verdict
from extproc.autoscaling import Autoscaling
from extproc.config.settings import Settings
from extproc.pool.sample import Histogram, LoadSample
from tests.autoscale.test_profile import GIVEN
from tests.support.fleet import pool, route, router

INF = float("inf")
SPAN_S = 300.0  # over which the time to first token is read: five windows


class World:
    """Two servers, looked at each second of a clock of its own."""

    def __init__(self, **autoscale: Any) -> None:
        self.now = 1000.0
        self.router = router(pool(2))
        section = {"max_replicas": 4, "ttft_p99_s": 1.0, "cold_start": {"engine_s": 10}} | autoscale
        settings = Settings.model_validate(
            {"pools": {"vllm": {"endpoints": [{"address": "10.0.0.1:8000"}], "autoscale": section}}}
        )
        self.autoscaling = Autoscaling(
            self.router, settings, process="us", clock=lambda: self.now, wall_clock=lambda: 1e9 + self.now
        )
        self.quick = self.slow = 0.0  # answers that began, within a second and not

    def second(self, *, quick: float = 0.0, slow: float = 0.0, told: bool = True) -> None:
        """So many answers begin at each server; `told`: their pages can be read."""
        self.now += 1.0
        self.quick += quick
        self.slow += slow
        ttft = Histogram((1.0, 4.0, INF), (self.quick, self.quick + self.slow, self.quick + self.slow), 0.0)
        for member in self.router.pools[0].members if told else ():
            sample = LoadSample(self.now, running=1.0, waiting=0.0, kv_usage_ratio=0.01, ttft=ttft)
            self.router.observe("vllm", member.address, sample, self.now)
        self.autoscaling.look("vllm")

    def seconds(self, count: float, **each: Any) -> None:
        for _ in range(int(count)):
            self.second(**each)

    @property
    def tightened_to(self) -> float | None:
        return self.autoscaling.remarks("vllm").tightened_to


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    steps = [row | {"token_interval_p50_s": 0.02} for row in GIVEN["steps"]]
    path.write_text(json.dumps(GIVEN | {"steps": steps}))
    return str(path)


def told(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if word in record.getMessage()]


def test_a_change_of_the_number_and_of_the_verdict_is_logged_once_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "extproc.autoscaling")
    world = World()
    world.seconds(60, quick=2.0)
    latest = world.autoscaling.get("vllm")
    assert latest is not None
    assert latest.verdict is Verdict.OK
    assert not told(caplog, "verdict"), "it has not lasted for a window yet"
    world.seconds(40, quick=2.0)
    assert told(caplog, "recommended") == [
        "pool vllm: 2 servers are recommended: 2 stay: the first window of signals is complete in 60 s;"
        " the pool is uncalibrated, its thresholds are safe defaults"
    ]
    (first,) = told(caplog, "verdict")
    assert first.startswith("pool vllm: verdict ok: time to first token 0.99 s (p99), target 1 s; it is within")
    world.seconds(100, slow=2.0)
    verdicts = told(caplog, "verdict")
    assert len(verdicts) == 2
    assert verdicts[1].startswith("pool vllm: verdict late: time to first token ")
    assert verdicts[1].endswith("no signal asked for more servers: the thresholds are too high")
    world.seconds(370, told=False)
    assert told(caplog, "any more") == ["pool vllm: nothing is recommended any more: the load of no server is known"]


def test_a_verdict_late_that_lasts_tightens_the_thresholds_where_that_is_wished(
    profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    wished, other = World(profile=profile, tighten=True), World(profile=profile)
    for world in (wished, other):
        world.seconds(SPAN_S, slow=1.0)
    assert (wished.tightened_to, other.tightened_to) == (1.0, None)
    before = other.autoscaling.policy("vllm").knee.rate_per_s
    assert before == GIVEN["knee_per_s"]
    for world in (wished, other):
        world.seconds(SPAN_S, slow=1.0)
    assert (wished.tightened_to, other.tightened_to) == (0.95, None)
    assert wished.autoscaling.policy("vllm").knee.rate_per_s == pytest.approx(0.95 * before)
    assert other.autoscaling.policy("vllm").knee.rate_per_s == before
    assert told(caplog, "tightened") == ["pool vllm: the thresholds are tightened to 95%"]
    wished.seconds(2 * SPAN_S, quick=2000.0)
    assert wished.tightened_to == 0.95, "they are not loosened again"


def test_the_rise_that_min_replicas_cannot_bear_is_logged_when_it_grows(
    profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(profile=profile)
    world.seconds(120, quick=1.0)
    assert not told(caplog, "too low")
    for _ in range(90):
        for _ in range(5):
            route(world.router, world.now)
        world.second(quick=2.5)
    found = told(caplog, "min_replicas too low")
    assert found, "five requests a second more are more than the two that one server bears"
    assert len(found) == len(set(found)) <= 3
    latest = world.autoscaling.get("vllm")
    assert latest is not None
    assert latest.min_too_low is not None
    assert f"needs {latest.min_too_low}" in found[-1]


def test_pools_without_the_section_are_not_looked_at() -> None:
    settings = Settings.model_validate({"pools": {"vllm": {"endpoints": [{"address": "10.0.0.1:8000"}]}}})
    made = Autoscaling(router(pool(2)), settings, process="us", clock=lambda: 0.0)
    assert made.names == ()
    assert made.background() == {}
    with pytest.raises(KeyError):
        made.get("vllm")
