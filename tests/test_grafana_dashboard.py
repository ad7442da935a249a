"""Is deploy/grafana/extproc.json a dashboard that Grafana takes, and do its panels show what a running service does?"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from extproc.config.settings import Settings
from tests.app.test_application import Running, settings, started
from tests.support.envoy_config import free_port
from tests.support.ext_proc_client import BUFFERED, body, destination, headers, log_batch, pick_id
from tests.support.metrics_doc import OF_WORKERS, PAGE, documented, series_names
from tests.support.metrics_server import MetricsServer
from tests.support.promql import used
from tests.support.waiting import eventually
from tests.test_prometheus_rules import RULES
from tests.test_prometheus_scrapes import Prometheus, prometheus

ROOT = Path(__file__).parents[1]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "extproc.json").read_text())
PROMETHEUS_OWN = {"instance", "job", "namespace", "pod"}  # labels that a scrape adds
OTHERS = {  # series that are not ours
    "up": frozenset[str](),
    "process_cpu_seconds_total": frozenset[str](),
    "process_resident_memory_bytes": frozenset[str](),
    "ALERTS": frozenset({"alertname", "alertstate"}),
}
# What a service that is well for some seconds has no series of.
QUIET = {
    "extproc_autoscale_needed_min_replicas": "the smallest fleet is large enough",
    "extproc_autoscale_ttft_p99_seconds": "a hundred requests are needed",
    "extproc_autoscale_verdict": "and for this",
    "extproc_endpoint_start_seconds": "no server starts",
    "ALERTS": "no alert fires",
} | dict.fromkeys(documented(OF_WORKERS), "there is one process")
LONG_S = 60.0


@dataclass(frozen=True)
class Target:
    panel: str
    expr: str
    legend: str

    @property
    def query(self) -> str:
        """As Grafana asks it, with everything chosen."""
        text = self.expr.replace("$__rate_interval", "20s").replace("$pool", ".*").replace("$instance", ".*")
        assert "$" not in text, f"{self.panel}: an unknown variable in {self.expr}"
        return text


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def targets() -> Iterator[Target]:
    for panel in panels():
        for target in panel["targets"]:
            yield Target(panel["title"], target["expr"], target["legendFormat"])
    for annotation in DASHBOARD["annotations"]["list"]:
        if "expr" in annotation:
            yield Target(annotation["name"], annotation["expr"], annotation["titleFormat"])


# What it names.


def there_is() -> dict[str, frozenset[str]]:
    return series_names() | OTHERS


def wrong(expression: str) -> list[str]:
    """What it names that there is not."""
    found, known = used(expression), there_is()
    out = [name for name in found.series if name not in known]
    for name, labels in found.series.items():
        out += [f"{name}{{{label}}}" for label in labels - known.get(name, frozenset()) - PROMETHEUS_OWN]
    labels = frozenset().union(*(known.get(name, frozenset()) for name in found.series))
    return out + sorted(found.grouping - labels - PROMETHEUS_OWN)


def test_panels_use_only_metrics_and_labels_that_there_are() -> None:
    assert {f"{each.panel}: {each.expr}": bad for each in targets() if (bad := wrong(each.expr))} == {}


def test_so_do_the_alerts() -> None:
    assert {name: bad for name, rule in RULES.items() if (bad := wrong(rule["expr"]))} == {}


def test_so_do_the_queries_of_the_manual() -> None:
    section = PAGE.read_text().partition("## Questions and queries")[2].partition("\n## ")[0]
    queries = [query.replace("\\|", "|") for query in re.findall(r"`((?:sum|max|histogram)[^`]+)`", section)]
    assert len(queries) > 4
    assert {query: bad for query in queries if (bad := wrong(query))} == {}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sum(rate(extproc_pick_total[5m]))", ["extproc_pick_total"]),
        ('extproc_picks_total{poll="a"}', ["extproc_picks_total{poll}"]),
        ("sum by (way) (rate(extproc_picks_total[5m]))", ["way"]),
        ("extproc_ready == 0 and on (pool) extproc_ready", ["pool"]),
        (
            "histogram_quantile(0.9, sum by (le) (rate(extproc_decision_seconds[5m])))",
            ["extproc_decision_seconds", "le"],
        ),
        ('extproc_endpoint_state{state=~"a|}b{"} offset 5m', []),
    ],
)
def test_a_name_that_there_is_not_is_found(expression: str, expected: list[str]) -> None:
    assert wrong(expression) == expected


def test_every_metric_but_those_named_is_on_a_panel_or_in_an_alert() -> None:
    shown = {name for each in targets() for name in used(each.expr).series}
    shown |= {name for rule in RULES.values() for name in used(rule["expr"]).series}
    missing = {name for name in series_names() if name not in shown and not name.endswith(("_sum", "_count"))}
    assert missing == set()


# Its form.


def test_grafanas_own_types_know_all_that_stands_in_it() -> None:
    """What they do not know is lost on the way through them."""
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()

    def lost(document: Any) -> set[str]:
        through = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))
        return {re.sub(r"\[\d+\]", "", path) for path in _lost(document, through)}

    of_prometheus = {".annotations.list.titleFormat", ".annotations.list.textFormat"}  # not of Grafana's schema
    assert lost(DASHBOARD) == of_prometheus
    mistaken = json.loads(json.dumps(DASHBOARD).replace('"gridPos"', '"gridpos"').replace('"fillOpacity"', '"opacity"'))
    assert {".panels.gridpos", ".panels.fieldConfig.defaults.custom.opacity"} <= lost(mistaken)


def _lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    if isinstance(before, dict):
        for key, value in before.items():
            if not isinstance(after, dict) or key not in after:
                yield f"{path}.{key}"
            else:
                yield from _lost(value, after[key], f"{path}.{key}")
    elif isinstance(before, list):
        if not isinstance(after, list) or len(before) != len(after):
            yield path
        else:
            for index, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from _lost(one, other, f"{path}[{index}]")
    elif before != after:
        yield path


def test_ids_are_unique_and_nothing_overlaps() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken.get((x, y))}"
                taken[x, y] = panel["title"]


def test_every_panel_says_what_it_shows_and_asks_the_data_source_that_is_chosen() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert len(rows) == 7
    for panel in panels():
        assert panel["title"]
        assert panel["description"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["targets"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs))
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles))


def test_the_data_source_is_the_one_that_is_provisioned_unless_another_is_chosen() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "pool", "instance"]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["datasource"]["current"]["value"] == "prometheus"
    for name in ("pool", "instance"):
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables[name]["query"]["query"])
        assert found is not None
        assert found[2] == name
        assert name in there_is()[found[1]] | PROMETHEUS_OWN


# What it shows.


class Busy(MetricsServer):
    """A server whose counters rise with each look."""

    def text(self) -> str:
        label = 'engine="0",model_name="m"'
        count = self.scrapes * 10
        buckets = "".join(
            f'vllm:time_to_first_token_seconds_bucket{{{label},le="{bound}"}} {share * count}\n'
            for bound, share in (("0.1", 0.5), ("0.5", 0.9), ("2.5", 1), ("+Inf", 1))
        )
        return (
            super().text()
            + buckets
            + f"vllm:time_to_first_token_seconds_sum{{{label}}} {count / 4}\n"
            + f"vllm:prefix_cache_queries_total{{{label}}} {count}\n"
            + f"vllm:prefix_cache_hits_total{{{label}}} {count / 2}\n"
        )


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[Running]:
    """Two pools: one that is served and autoscaled, and one whose file is away."""
    async with Busy().serve() as first, Busy().serve() as second:
        pools = {
            "vllm": {
                "endpoints": [{"address": first.address}, {"address": second.address}],
                "autoscale": {"max_replicas": 4, "window_s": 1, "ttft_p99_s": 2},
            },
            "away": {"discovery": {"file": {"path": str(folder / "missing.yaml")}}},
        }
        tracing = {"endpoint": f"http://127.0.0.1:{free_port()}"}
        document = settings({}).model_dump() | {"pools": pools, "tracing": tracing, "default_pool": "vllm"}
        async with started(Settings.model_validate(document)) as running:
            await eventually(running.serving, "ready")
            yield running


async def traffic(running: Running, stop: asyncio.Event) -> None:
    """Requests with and without a prompt, and what Envoy says of their ends."""
    logs = running.client.logs()
    number = 0
    while not stop.is_set():
        number += 1
        content = {"model": "m", "messages": [{"role": "user", "content": f"{number % 3} " * 2000}]}
        stream = running.client.stream()
        await stream.ask(headers(BUFFERED))
        reply = await stream.ask(body(json.dumps(content).encode()))
        await logs.write(log_batch((pick_id(reply), destination(reply), 500 if number % 9 == 0 else 200)))
        await stream.end()
        await running.client.stream().ask(body(b"{}", first_with_mode=BUFFERED))
        await asyncio.sleep(0.05)
    await logs.done_writing()
    await logs


async def test_every_panel_shows_something_of_a_service_under_traffic(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk")
    async with scene(tmp_path) as running, prometheus(tmp_path, running.app.admin_address) as seen:
        stop = asyncio.Event()
        asking = asyncio.create_task(traffic(running, stop))
        try:
            waiting = {each for each in targets() if not set(used(each.expr).series) & set(QUIET)}
            for _ in range(int(LONG_S)):
                for each in sorted(waiting, key=lambda each: each.panel):
                    rows = await result(seen, each.query)
                    if rows:
                        check_legend(each, rows)
                        waiting.discard(each)
                if not waiting or asking.done():
                    break
                await asyncio.sleep(0.5)
            assert {f"{each.panel}: {each.query}" for each in waiting} == set()
            for each in targets():
                await result(seen, each.query)  # those of QUIET too are queries that Prometheus takes
        finally:
            stop.set()
            await asking


async def result(seen: Prometheus, query: str) -> list[dict[str, Any]]:
    async with seen._http.get(f"{seen._url}/api/v1/query", params={"query": query}) as answer:
        found = await answer.json()
    assert found["status"] == "success", f"{query}: {found}"
    return [row for row in found["data"]["result"] if row["value"][1] != "NaN"]


def check_legend(target: Target, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        missing = set(re.findall(r"\{\{(\w+)\}\}", target.legend)) - set(row["metric"])
        assert not missing, f"{target.panel}: the legend names {missing}, which {row['metric']} lacks"
