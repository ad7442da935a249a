"""What does Prometheus see of the workers, beside what they do together?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class WorkersCollector:
    """What Prometheus sees of the workers, beside what they do together."""

    def __init__(self, processes: Callable[[], list[dict[str, Any]]]) -> None:
        """`processes`: the workers, as `/status` shows them."""
        self._processes = processes

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        label = ["worker"]
        up = GaugeMetricFamily("extproc_worker_ready", "1 while Envoy may send this worker requests.", labels=label)
        restarts = CounterMetricFamily(
            "extproc_worker_restarts", "Times that this worker has ended by itself.", labels=label
        )
        picks = CounterMetricFamily(
            "extproc_worker_picks", "Requests that this worker has routed since it started.", labels=label
        )
        cpu = CounterMetricFamily(
            "extproc_worker_cpu_seconds", "CPU that this worker has used since it started.", labels=label
        )
        memory = GaugeMetricFamily("extproc_worker_resident_memory_bytes", "Memory of this worker.", labels=label)
        lag = GaugeMetricFamily(
            "extproc_worker_lag_seconds",
            "Longest time until this worker knew of a pick of another, lately.",
            labels=label,
        )
        for shown in self._processes():
            key = [str(shown["number"])]
            up.add_metric(key, float(shown["state"] == "ready"))
            restarts.add_metric(key, shown["restarts"])
            for gauge, name in ((picks, "picks"), (cpu, "cpu_s"), (memory, "memory_bytes"), (lag, "lag_s")):
                if shown[name] is not None:
                    gauge.add_metric(key, shown[name])
        yield from (up, restarts, picks, cpu, memory, lag)
