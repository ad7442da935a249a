"""Do the alerts of deploy/prometheus fire when they should, and only then? Prometheus' own promtool says so."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.metrics_doc import series_names
from tests.support.programs import program
from tests.test_kubernetes_manifests import KUSTOMIZATION, container_of, pod_of

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "deploy" / "prometheus"
ALERTS = FOLDER / "alerts.yaml"
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
}
MINUTES = 120

A, B = 'instance="a:9003",job="extproc"', 'instance="b:9003",job="extproc"'
POOL = 'pool="vllm"'


def steady(value: float) -> str:
    return f"{value:g}+0x{MINUTES}"


def rising(per_minute: float, start: float = 0.0) -> str:
    return f"{start:g}+{per_minute:g}x{MINUTES}"


def healthy() -> dict[str, str]:
    """The series of two processes with nothing wrong: each ran into something once, long ago."""
    found: dict[str, str] = {}
    for process in (A, B):
        found |= {
            f"up{{{process}}}": steady(1),
            f"extproc_ready{{{process}}}": steady(1),
            f"extproc_autoscale_desired_replicas{{{process},{POOL}}}": steady(4),
            f"extproc_autoscale_max_replicas{{{process},{POOL}}}": steady(8),
            f"extproc_autoscale_warnings{{{process},{POOL}}}": steady(0),
            f"extproc_autoscale_ready_servers{{{process},{POOL}}}": steady(4),
            f'extproc_autoscale_verdict{{{process},{POOL},verdict="ok"}}': steady(1),
            f'extproc_autoscale_verdict{{{process},{POOL},verdict="late"}}': steady(0),
            f'extproc_autoscale_verdict{{{process},{POOL},verdict="at_capacity"}}': steady(0),
            f'extproc_endpoint_state{{{process},{POOL},endpoint="10.0.0.1:8000",state="ready"}}': steady(1),
            f'extproc_endpoint_state{{{process},{POOL},endpoint="10.0.0.1:8000",state="returning"}}': steady(0),
            f'extproc_endpoint_state{{{process},{POOL},endpoint="10.0.0.2:8000",state="ready"}}': steady(0),
            f"extproc_drain_open_requests_total{{{process},{POOL}}}": steady(3),
            f"extproc_panic_picks_total{{{process},{POOL}}}": steady(7),
            f"extproc_picks_total{{{process},{POOL}}}": rising(600),
            f'extproc_request_outcomes_total{{{process},{POOL},outcome="ok"}}': rising(590),
            f'extproc_request_outcomes_total{{{process},{POOL},outcome="failed"}}': rising(6),
            f"extproc_served_elsewhere_total{{{process}}}": steady(2),
        }
    # Envoy's access logs may all come to one process.
    found |= {
        f"extproc_access_log_connections{{{A}}}": steady(2),
        f"extproc_access_log_connections{{{B}}}": steady(0),
    }
    return found


@dataclass
class Case:
    """What differs from health (None: there is no such series), and how often the alert then fires."""

    name: str
    alert: str
    differs: dict[str, str | None]
    times: int = 1
    besides: dict[str, int] = field(default_factory=dict)


def of_verdict(verdict: str) -> dict[str, str | None]:
    return {
        f'extproc_autoscale_verdict{{{A},{POOL},verdict="ok"}}': steady(0),
        f'extproc_autoscale_verdict{{{A},{POOL},verdict="{verdict}"}}': steady(1),
    }


CASES = [
    Case(
        "nothing is known of the load, in one process",
        "ExtprocRecommendationStale",
        {f"extproc_autoscale_desired_replicas{{{A},{POOL}}}": None},
    ),
    Case(
        "nothing is known of the load, in both",
        "ExtprocRecommendationStale",
        {f"extproc_autoscale_desired_replicas{{{each},{POOL}}}": None for each in (A, B)},
        times=2,
    ),
    Case("a peer is silent", "ExtprocRecommendationDoubtful", {f"extproc_autoscale_warnings{{{A},{POOL}}}": steady(1)}),
    Case("late", "ExtprocVerdictLate", of_verdict("late")),
    Case("at capacity", "ExtprocAtCapacity", of_verdict("at_capacity")),
    Case(
        "too few that are always there",
        "ExtprocMinReplicasTooLow",
        {f"extproc_autoscale_needed_min_replicas{{{A},{POOL}}}": steady(3)},
    ),
    Case(
        "servers do not come",
        "ExtprocReplicasNotReached",
        {f"extproc_autoscale_desired_replicas{{{each},{POOL}}}": steady(6) for each in (A, B)},
    ),
    Case(
        "servers do not go",
        "ExtprocReplicasNotReached",
        {f"extproc_autoscale_desired_replicas{{{each},{POOL}}}": steady(3) for each in (A, B)},
    ),
    Case(
        "no server can serve",
        "ExtprocNoServerReady",
        {f'extproc_endpoint_state{{{A},{POOL},endpoint="10.0.0.1:8000",state="ready"}}': steady(0)},
    ),
    Case(
        "streams are cut",
        "ExtprocDrainsCutStreams",
        {f"extproc_drain_open_requests_total{{{A},{POOL}}}": f"3+0x20 5+0x{MINUTES - 21}"},
    ),
    Case(
        "a name does not resolve",
        "ExtprocDiscoveryFailing",
        {f'extproc_discovery_failing{{{each},{POOL},name="vllm.example"}}': steady(1) for each in (A, B)},
    ),
    Case(
        "a process is gone",
        "ExtprocDown",
        {series: None for series in healthy() if A in series} | {f"up{{{A}}}": steady(0)},
        besides={"ExtprocNoAccessLog": 1},
    ),
    Case("a process is not ready", "ExtprocNotReady", {f"extproc_ready{{{A}}}": steady(0)}),
    Case("all servers look bad", "ExtprocPanicPicks", {f"extproc_panic_picks_total{{{A},{POOL}}}": rising(5, start=7)}),
    Case(
        "requests fail",
        "ExtprocRequestsFail",
        {f'extproc_request_outcomes_total{{{each},{POOL},outcome="failed"}}': rising(60) for each in (A, B)},
    ),
    Case("the lists differ", "ExtprocServedElsewhere", {f"extproc_served_elsewhere_total{{{A}}}": rising(1, start=2)}),
    Case("no access log comes", "ExtprocNoAccessLog", {f"extproc_access_log_connections{{{A}}}": steady(0)}),
]


def minutes(text: str) -> int:
    assert text.endswith("m")
    return int(text[:-1])


def promtool(*arguments: str | Path) -> str:
    command = [program("promtool", "prometheus"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def scenario(name: str, series: dict[str, str | None], expected: list[tuple[int, dict[str, int]]]) -> dict[str, Any]:
    """For promtool: which alerts fire at each of these minutes, and how often."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": each, "values": values} for each, values in series.items() if values is not None],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{at}m",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}"}}', "value": times} for alert, times in alerts.items()
                ],
            }
            for at, alerts in expected
        ],
    }


def check(tmp_path: Path, *scenarios: dict[str, Any]) -> None:
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": scenarios}))
    promtool("test", "rules", file)


def test_prometheus_accepts_the_rules() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", ALERTS)


def test_prometheus_accepts_the_example() -> None:
    promtool("check", "config", FOLDER / "prometheus.yaml")


def test_prometheus_accepts_the_example_for_kubernetes_and_it_finds_the_pods(tmp_path: Path) -> None:
    """Debian's Prometheus is built without what asks the Kubernetes API: in its place stands a list."""
    example = yaml.safe_load((FOLDER / "prometheus-kubernetes.yaml").read_text())
    (scrape,) = example["scrape_configs"]
    assert scrape.pop("kubernetes_sd_configs") == [
        {"role": "pod", "namespaces": {"names": [KUSTOMIZATION["namespace"]]}}
    ]
    scrape["static_configs"] = [{"targets": ["127.0.0.1:9003"]}]
    (tmp_path / "alerts.yaml").write_bytes(ALERTS.read_bytes())
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(example))
    promtool("check", "config", file)
    keep = scrape["relabel_configs"][0]
    assert keep["regex"] == f"{pod_of('extproc')['metadata']['labels']['app']};admin"
    assert "admin" in [port["name"] for port in container_of("extproc")["ports"]]


def test_nothing_fires_while_nothing_is_wrong(tmp_path: Path) -> None:
    check(tmp_path, scenario("healthy", dict(healthy()), [(1, {}), (MINUTES // 2, {}), (MINUTES, {})]))


def test_each_alert_fires_when_it_should_and_alone(tmp_path: Path) -> None:
    scenarios = []
    for case in CASES:
        waits = minutes(RULES[case.alert].get("for", "0m"))
        expected = [(max(waits, 30) + 5, {case.alert: case.times} | case.besides)]
        if waits:
            expected.insert(0, (waits - 1, {}))
        scenarios.append(scenario(case.name, healthy() | case.differs, expected))
    check(tmp_path, *scenarios)


def test_an_alert_that_does_not_fire_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ExtprocDown"):
        check(tmp_path, scenario("healthy", dict(healthy()), [(5, {"ExtprocDown": 1})]))


def test_every_alert_is_tried() -> None:
    assert {case.alert for case in CASES} == set(RULES)


def test_a_fleet_that_changes_is_not_taken_for_one_that_does_not_follow(tmp_path: Path) -> None:
    """Each change is through within half an hour."""
    series = healthy()
    for each in (A, B):
        series[f"extproc_autoscale_desired_replicas{{{each},{POOL}}}"] = "4+0x20 6+0x40 5+0x60"
        series[f"extproc_autoscale_ready_servers{{{each},{POOL}}}"] = "4+0x40 6+0x25 5+0x55"
    check(tmp_path, scenario("growing", dict(series), [(at, {}) for at in range(5, MINUTES, 5)]))


def test_a_pool_without_any_server_that_wants_none_is_in_order(tmp_path: Path) -> None:
    series: dict[str, str | None] = {
        name: None if "extproc_endpoint_state" in name else values for name, values in healthy().items()
    }
    for each in (A, B):
        series[f"extproc_autoscale_desired_replicas{{{each},{POOL}}}"] = steady(0)
        series[f"extproc_autoscale_ready_servers{{{each},{POOL}}}"] = steady(0)
    check(tmp_path, scenario("at zero", series, [(MINUTES, {})]))


def test_the_rules_use_only_metrics_that_there_are() -> None:
    used = {name for rule in RULES.values() for name in re.findall(r"\bextproc_\w+", rule["expr"])}
    assert len(used) > 10
    assert used <= set(series_names())


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    for name, rule in RULES.items():
        assert name.startswith("Extproc")
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}, name


def test_the_manual_has_each_alert_with_its_wait() -> None:
    manual = (ROOT / "docs" / "autoscale-kubernetes.md").read_text()
    for name, rule in RULES.items():
        (row,) = (line for line in manual.splitlines() if line.startswith("| `Extproc") and f"`{name}`" in line)
        wait = f"{minutes(rule['for'])} min" if "for" in rule else "at once"
        assert row.split("|")[2].strip() == wait, name
