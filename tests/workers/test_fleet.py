"""What a worker knows of the servers, when the supervisor tells it."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf
from typing import Any

import orjson
import pytest

from extproc.assembly import router_of
from extproc.autoscale.recommendation import Signal, SignalName, Verdict
from extproc.config.settings import Settings
from extproc.endpoint import Address, Endpoint
from extproc.pool.drain import By, Phase
from extproc.pool.member import Member, State
from extproc.pool.pool import Pool
from extproc.pool.sample import Histogram, LoadSample
from extproc.sinks import ModelsSink, PoolSink
from extproc.telemetry.fetch import FailureKind, ScrapeFailure
from extproc.telemetry.prober import Probe
from extproc.workers.fleet import Row, Spread, ToldFleet, drains_row, failing_row, recommended_row, state_rows
from tests.support.recommended import FOUR, Known

SETTINGS = Settings.model_validate(
    {
        "pools": {
            "vllm": {"endpoints": [{"address": "10.0.0.1:8000"}], "autoscale": {"max_replicas": 4}},
            "other": {"endpoints": [{"address": "10.0.0.2:8000"}]},
        },
        "default_pool": "vllm",
    }
)
ONE = Endpoint(Address.parse("10.0.0.1:8000"), hostname="one", weight=2.0, models=("a", "b"), metrics_port=9000)
TWO = Endpoint(Address.parse("10.0.0.2:8000"), uid="pod-2", leaving=True)
BUSY = LoadSample(
    1.0,
    running=3.0,
    waiting=1.0,
    kv_usage_ratio=0.5,
    sleeping=False,
    models=("a",),
    ttft=Histogram((0.1, inf), (1.0, 2.0), 0.4),
    process_start_s=5.0,
)


class Both:
    """A supervisor's router and a worker's."""

    def __init__(self) -> None:
        self.router = router_of(SETTINGS, lambda: 1.0)
        self.spread = Spread()
        self.rows: list[Row] = []
        self.spread.on_row = self.rows.append
        pool = self.pool
        self.sink = PoolSink(self.router, pool, lambda: 1.0, None, self.spread)
        self.models = ModelsSink(pool, self.spread)
        self.worker = router_of(SETTINGS, lambda: 1.0)
        self.told = ToldFleet(self.worker, SETTINGS, lambda: 1.0)

    @property
    def pool(self) -> Pool:
        return self.router.plans["vllm"].pool

    @property
    def theirs(self) -> Pool:
        return self.worker.plans["vllm"].pool

    def there(self, *endpoints: Endpoint) -> None:
        self.pool.set_endpoints(endpoints)
        self.spread.members("vllm", endpoints)

    def pass_on(self, *rows: Row) -> None:
        """Through JSON, as it goes."""
        said, self.rows[:] = [*self.rows, *rows], []
        self.told.take(orjson.loads(orjson.dumps(said)))

    def member(self, pool: Pool, endpoint: Endpoint = ONE) -> Member:
        found = pool.member(endpoint.address)
        assert found is not None
        return found


def same(both: Both) -> None:
    assert [m.endpoint for m in both.theirs.members] == [m.endpoint for m in both.pool.members]
    for ours, theirs in zip(both.pool.members, both.theirs.members, strict=True):
        assert theirs.sample == ours.sample
        assert theirs.models == ours.models
        assert theirs.health.state() == ours.health.state()
        assert theirs.state(1.5) is ours.state(1.5)
        assert theirs.out == ours.out


def test_a_worker_hears_of_servers_what_the_supervisor_hears() -> None:
    both = Both()
    both.there(ONE, TWO)
    both.pass_on()
    same(both)
    both.sink.on_sample(ONE, BUSY)
    both.sink.on_probe(ONE, Probe(1.0))
    both.sink.on_failure(TWO, ScrapeFailure(FailureKind.REFUSED, "nobody", 1.0))
    both.sink.on_failure(TWO, ScrapeFailure(FailureKind.REFUSED, "nobody", 1.1))
    both.sink.on_probe(TWO, Probe(1.0, "/health answers 503"))
    both.models.on_models(ONE, frozenset({"a", "c"}), 1.0)
    both.models.on_no_models(TWO, ScrapeFailure(FailureKind.HTTP_STATUS, "404", 1.0, 404))
    both.pass_on()
    same(both)
    assert both.member(both.theirs).state(1.5) is State.READY
    assert both.member(both.theirs, TWO).problem(1.5)
    both.there(TWO)
    both.pass_on()
    same(both)


def test_a_worker_that_starts_later_is_told_the_state() -> None:
    """Whether a server is ejected, sleeps or only starts is no sample's to tell."""
    both = Both()
    both.there(ONE, TWO)
    both.sink.on_sample(ONE, BUSY)
    both.sink.on_probe(ONE, Probe(1.0))
    member = both.member(both.pool)
    for _ in range(3):
        member.health.request_fault(1.2)
    member.prefill.expect(1234.0)
    both.models.on_models(ONE, frozenset({"a"}), 1.0)
    both.pool.drains.ask(both.member(both.pool, TWO), By.OPERATOR, 1.0, 60.0)
    both.rows.clear()  # nobody was there
    both.pass_on(*state_rows(both.router, {"vllm": {}, "other": {"name": "no answer"}}, Known(vllm=None)))
    same(both)
    assert both.member(both.theirs).state(1.5) is State.UNHEALTHY
    assert both.member(both.theirs).prefill.rate == 1234.0
    drain = both.member(both.theirs, TWO).drain
    assert drain is not None
    assert drain.asked == {By.OPERATOR, By.PLATFORM}
    assert drain.deadline_s == 60.0
    assert both.told.failing == {"vllm": {}, "other": {"name": "no answer"}}
    assert both.told.known  # of the other pool its source says that it fails
    assert not both.worker.plans["other"].pool.known


def test_drains_come_and_go_with_the_supervisors() -> None:
    both = Both()
    both.there(ONE)
    both.pool.drains.ask(both.member(both.pool), By.OPERATOR, 1.0, 30.0)
    both.pass_on(drains_row(both.pool))
    theirs = both.member(both.theirs)
    assert theirs.drain is not None
    assert theirs.drain.phase is Phase.DRAINING
    assert theirs.out is not None
    both.pool.drains.cancel(both.member(both.pool), 2.0, By.OPERATOR)
    both.pass_on(drains_row(both.pool))
    assert theirs.drain is None
    assert theirs.out is None


def test_recommendations_are_told_whole() -> None:
    waits = Signal(SignalName.WAITING, 1.0, 2.0, 3, 0.5, "words")
    found = replace(FOUR, signals=(waits,), verdict=Verdict.LATE, ttft_p99_s=0.5, ttft_target_s=0.4)
    both = Both()
    assert both.told.names == ("vllm",)
    assert both.told.get("vllm") is None
    both.pass_on(recommended_row("vllm", Known(vllm=found)))
    assert both.told.get("vllm") == found
    both.pass_on(recommended_row("vllm", Known(vllm=None)))
    assert both.told.get("vllm") is None
    with pytest.raises(KeyError):
        both.told.get("other")


def test_what_is_told_of_a_server_that_has_left_does_nothing() -> None:
    both = Both()
    both.there(ONE)
    both.sink.on_sample(ONE, BUSY)
    both.there(TWO)
    late = both.rows[1:2]
    both.pass_on()
    both.pass_on(*late)
    assert [m.endpoint for m in both.theirs.members] == [TWO]


@pytest.mark.parametrize(
    "row", [["nonsense", "vllm", "10.0.0.1:8000"], ["sample", "no such pool", "10.0.0.1:8000", {}], ["drains"]]
)
def test_a_row_that_nobody_writes_is_refused(row: Any) -> None:
    both = Both()
    both.there(ONE)
    both.pass_on()
    with pytest.raises((ValueError, LookupError, TypeError)):
        both.pass_on(row)


def test_failing_names_are_told() -> None:
    both = Both()
    both.pass_on(failing_row("vllm", {"name.example": "no answer"}))
    assert both.told.failing["vllm"] == {"name.example": "no answer"}


def test_all_settings_reach_a_worker_as_they_are() -> None:
    """They go as JSON."""
    document = {
        "workers": 3,
        "grpc": {"listen": "[::1]:9002", "tls": {"cert_file": "a", "key_file": "b", "client_ca_file": "c"}},
        "scheduling": {"shed": [{"waiting": 2, "priority": 5}, {"waiting": 4}], "session_headers": ["x-a", "x-b"]},
        "drain": {"state_file": "/tmp/drains.json", "floor": 2},
        "pools": {
            "vllm": {"endpoints": [{"address": "10.0.0.1:8000", "model": "a, b", "weight": 0.5, "drained": True}]},
            "other": {
                "discovery": {"file": {"path": "/tmp/servers.yaml"}},
                "scrape": {"interval_s": 2, "stale_after_s": 9},
            },
        },
        "default_pool": "vllm",
    }
    settings = Settings.model_validate(document)
    assert Settings.model_validate_json(settings.model_dump_json()) == settings
    assert settings.worker_ports == (9002, 9012, 9022)


def test_times_of_one_process_mean_the_same_in_another() -> None:
    """What the messages rely on: the clock is the machine's."""
    assert time.get_clock_info("monotonic").implementation == "clock_gettime(CLOCK_MONOTONIC)"
