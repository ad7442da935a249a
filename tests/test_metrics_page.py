"""Does a running service export what docs/metrics.md lists, named as Prometheus wants it, and how much at most?"""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.admin.fleet_metrics import MOST_NAMES, NAME_CHARS
from extproc.admin.metrics import RouterCollector, registry
from extproc.endpoint import Address, Endpoint
from extproc.pool.pool import Pool
from extproc.pool.sample import Histogram, LoadSample
from extproc.request import RawRequest, Route
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.server.durations import Durations
from tests.app.test_application import Running, started
from tests.app.test_autoscaling import autoscaled
from tests.support.envoy_config import free_port
from tests.support.ext_proc_client import BUFFERED, body
from tests.support.metrics_doc import PAGE, documented
from tests.support.metrics_server import MetricsServer
from tests.support.programs import program
from tests.support.waiting import eventually

SERVER, POOL, PROCESS = 15, 160, 100  # series at most, as the page says


@pytest.fixture
async def vllm() -> AsyncIterator[MetricsServer]:
    async with MetricsServer().serve() as server:
        yield server


@pytest.fixture
async def running(vllm: MetricsServer) -> AsyncIterator[Running]:
    """With every section that adds metrics, after a request and a refusal."""
    pytest.importorskip("opentelemetry.sdk")
    tracing = {"endpoint": f"http://127.0.0.1:{free_port()}", "sample_ratio": 0}
    settings = autoscaled([vllm.address], other={"tracing": tracing}, min_replicas=1, max_replicas=2)
    async with started(settings) as app:
        await eventually(app.serving, "it is ready")
        await app.client.stream().ask(body(b'{"messages": [1]}', first_with_mode=BUFFERED))
        yield app


def families(page: str) -> dict[str, Any]:
    """By the name as documented."""
    return {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(page)
        if family.name.startswith("extproc_")
    }


async def test_a_running_service_exports_exactly_what_the_page_lists(running: Running) -> None:
    code, page = await running.get("/metrics")
    assert code == 200
    seen, said = families(page), documented()
    assert set(seen) == set(said)
    assert {name: family.type for name, family in seen.items()} == {name: each.kind for name, each in said.items()}
    for name, family in seen.items():
        assert family.documentation, name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == said[name].labels, name
    with_series = {name for name, family in seen.items() if family.samples}
    assert len(with_series) > 50  # else the labels were not looked at


async def test_labels_of_metrics_that_have_no_series_yet_are_as_listed_too(running: Running) -> None:
    said = documented()
    for family in running.app._registry.collect():
        if family.name.startswith("extproc_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            assert set(getattr(family, "_labelnames", ())) == said[name].labels, name


async def test_prometheus_own_linter_finds_nothing_to_say(running: Running) -> None:
    _, page = await running.get("/metrics")
    own = "\n".join(line for line in page.splitlines() if "extproc_" in line) + "\n"
    assert linted(own) == (0, "")


def test_the_linter_does_look() -> None:
    code, said = linted("x_milliseconds 1\n")
    assert code != 0
    assert "x_milliseconds" in said


def linted(page: str) -> tuple[int, str]:
    command = [program("promtool", "prometheus"), "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


# Of the shells.
COUNTS = (
    *("streams", "open_streams", "undecodable_messages", "request_path_errors", "undecodable_log_messages"),
    *("access_log_entries", "access_log_connections", "eds_streams", "eds_pushes", "eds_refused"),
    *("trace_spans_exported", "trace_spans_failed", "trace_spans_queue_full", "trace_spans_over_rate"),
)

STRANGE = "zqx"  # stands in everything that clients and servers write


def fleet(pools: int, servers: int) -> Router:
    plans = []
    for number in range(pools):
        pool = Pool(f"pool-{number}", stale_after_s=3)
        pool.set_endpoints(Endpoint(Address.of(f"10.0.{number}.{each + 1}", 8000)) for each in range(servers))
        plans.append(
            PoolPlan(pool, PROFILES["cache-aware"], 3, session_headers=("x-session-id",), profile_header="x-profile")
        )
    return Router(plans, rng=Random(0))


def observe(router: Router, at_s: float, rng: Random) -> None:
    """Servers that serve other models each time, and have other buckets than ours."""
    bounds = (*sorted({rng.uniform(0, 9) for _ in range(200)}), float("inf"))
    names = tuple(f"{STRANGE}-model-{rng.random()}" for _ in range(50))
    for plan in router.plans.values():
        for member in plan.pool.members:
            ttft = Histogram(bounds, tuple(float(at_s * i) for i in range(len(bounds))), at_s)
            sample = LoadSample(
                at_s,
                1.0,
                0.0,
                0.5,
                models=names,
                adapters=names,
                prefix_queries_tokens=9.0,
                prefix_hits_tokens=1.0,
                ttft=ttft,
            )
            router.observe(plan.pool.name, member.address, sample, at_s)
            plan.pool.told_models(member.address, frozenset(names), at_s)


def ask(router: Router, number: int, rng: Random) -> None:
    """A request whose every name is new."""
    mark = f"{STRANGE}-{number}"
    paths = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", f"/v1/{mark}")
    told = {
        "model": f"{mark}\ud800",
        "messages": [{"role": "user", "content": mark * 99}],
        "prompt": mark,
        "user": mark,
    }
    route = Route(rng.choice([None, f"pool-{number % 4}", mark]), rng.choice([None, "session", "least-loaded", mark]))
    headers = {"x-session-id": mark, "x-profile": mark, "traceparent": mark, mark: mark}
    path = f"{rng.choice(paths)}?{mark}={mark}"
    router.route(
        RawRequest(rng.choice(["POST", mark]), path, headers, rng.choice([json.dumps(told), mark, ""]).encode(), route),
        1.0,
    )


def scraped(router: Router, failing: dict[str, list[str]]) -> str:
    counts = dict.fromkeys(COUNTS, 1.0)
    made = registry(
        RouterCollector(router, lambda: counts, Durations().cumulative, lambda: True, lambda: 1.0, lambda: failing)
    )
    return generate_latest(made).decode()


def series(page: str) -> int:
    return sum(not line.startswith("#") for line in page.splitlines())


def test_the_number_of_series_has_the_bound_that_the_page_names_whatever_clients_and_servers_write() -> None:
    """Case c07: no model, path, header, session or bucket of theirs becomes a label, and none makes the page fail."""
    rng = Random(1)
    router = fleet(pools=3, servers=8)
    failing = {
        name: [f"{'n' * 10_000}-{each}\ud800" if each % 2 else f"name-{each}\ud800" for each in range(1000)]
        for name in router.plans
    }
    sizes = []
    for turn in range(1, 4):
        for number in range(150):
            ask(router, 1000 * turn + number, rng)
        observe(router, float(turn), rng)
        page = scraped(router, failing)
        assert STRANGE not in page
        sizes.append(series(page))
    assert max(sizes) <= 24 * SERVER + 3 * POOL + PROCESS
    assert sizes[2] - sizes[1] <= 3  # words that had not come yet
    assert router.ledger.picks.total() > 200
    assert len(max(page.splitlines(), key=len)) < 2 * NAME_CHARS + 100
    assert page.count('name="') == 3 * MOST_NAMES
    assert f"at most {SERVER} series a server, {POOL} a pool and {PROCESS} of its own" in " ".join(
        PAGE.read_text().split()
    )


def test_what_a_server_was_counted_for_leaves_with_it() -> None:
    router = fleet(pools=1, servers=8)
    observe(router, 1.0, Random(1))
    before = series(scraped(router, {}))
    (plan,) = router.plans.values()
    plan.pool.set_endpoints([member.endpoint for member in plan.pool.members[:2]])
    assert before - series(scraped(router, {})) == 6 * SERVER
