"""A real Prometheus scrapes the service, with the shipped files, and sees what KEDA and people see."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.app.test_application import Running, started
from tests.app.test_autoscaling import autoscaled, desired
from tests.support.envoy_config import free_port
from tests.support.keda_client import Trigger, connect
from tests.support.metrics_server import MetricsServer
from tests.support.programs import program
from tests.support.waiting import eventually

ROOT = Path(__file__).parent.parent
GAUGE = "extproc_autoscale_desired_replicas"
SCRAPE = "500ms"  # and no longer may one take


class Prometheus:
    def __init__(self, port: int, http: aiohttp.ClientSession) -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._http = http

    async def ready(self) -> bool:
        try:
            async with self._http.get(f"{self._url}/-/ready") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    async def values(self, query: str) -> list[float]:
        async with self._http.get(f"{self._url}/api/v1/query", params={"query": query}) as answer:
            found = await answer.json()
        assert found["status"] == "success", found
        return [float(each["value"][1]) for each in found["data"]["result"]]

    async def rules(self) -> list[dict[str, Any]]:
        async with self._http.get(f"{self._url}/api/v1/rules") as answer:
            found = await answer.json()
        return [rule for group in found["data"]["groups"] for rule in group["rules"]]


@asynccontextmanager
async def prometheus(folder: Path, scraped: str) -> AsyncIterator[Prometheus]:
    """With the shipped example, but for the address and how often it looks."""
    path = program("prometheus", "prometheus")
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE}
    config["rule_files"] = [str(ROOT / "deploy" / "prometheus" / name) for name in config["rule_files"]]
    (scrape,) = config["scrape_configs"]
    scrape["scrape_interval"] = SCRAPE
    # As the relabelling of the example for Kubernetes makes it.
    scrape["static_configs"] = [{"targets": [scraped], "labels": {"namespace": "llm"}}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        path,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    )
    try:
        async with aiohttp.ClientSession() as http:
            client = Prometheus(port, http)
            await eventually(client.ready, "Prometheus is ready", timeout_s=60)
            yield client
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.fixture
async def vllm() -> AsyncIterator[MetricsServer]:
    async with MetricsServer().serve() as server:
        yield server


async def known(running: Running) -> bool:
    return await desired(running) is not None


async def test_prometheus_keda_and_the_page_tell_the_same_number_and_none_when_none_is_known(
    vllm: MetricsServer, tmp_path: Path
) -> None:
    with_settings = autoscaled([vllm.address], min_replicas=3, stale_after_s=30)
    async with (
        started(with_settings) as running,
        connect(running.app.grpc_address) as channel,
        prometheus(tmp_path, running.app.admin_address) as seen,
    ):
        await eventually(lambda: known(running), "something is recommended")
        await eventually(lambda: seen.values(GAUGE), "Prometheus has the gauge", timeout_s=30)
        assert await seen.values(GAUGE) == [3.0]
        assert await Trigger(channel, {"pool": "vllm"}).replicas(1) == await desired(running) == 3
        assert await seen.values('up{job="extproc"}') == [1.0]

        rules = ROOT / "envoy/kubernetes/components/hpa/adapter-rules.yaml"
        (rule,) = yaml.safe_load(rules.read_text())["externalRules"]
        assert await seen.values(rule["seriesQuery"]) == [3.0]
        # What prometheus-adapter makes of the rule for the HPA.
        matchers = 'namespace="llm",pool="vllm"'
        query = rule["metricsQuery"].replace("<<.Series>>", GAUGE).replace("<<.LabelMatchers>>", matchers)
        assert await seen.values(query) == [3.0]

        async def judged() -> list[dict[str, Any]]:
            return [each for each in await seen.rules() if each["lastEvaluation"] > "0002"]

        await eventually(judged, "the rules were evaluated", timeout_s=30)
        rules = await seen.rules()
        assert {each["name"] for each in rules if each["health"] == "err"} == set()
        assert len(rules) > 10

        vllm.page = None
        running.clock.ahead_s += 100

        async def gone() -> bool:
            bounds = await seen.values(f"extproc_autoscale_max_replicas unless on (instance, pool) {GAUGE}")
            return bounds == [8.0]

        await eventually(gone, "the gauge is gone, and others are there", timeout_s=30)
        assert await seen.values(query) == []

        async def told() -> bool:
            return any(each["name"] == "ExtprocRecommendationStale" and each["alerts"] for each in await seen.rules())

        await eventually(told, "the alert is pending", timeout_s=30)
