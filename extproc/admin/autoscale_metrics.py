"""What does Prometheus get to see of the recommendations?

What is unknown is absent, not zero; and of a recommendation that is too old to go by, the numbers are.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from extproc.autoscale.latest import Explained
from extproc.autoscale.recommendation import Verdict


class AutoscaleCollector:
    """Reads the last recommendation of each pool."""

    def __init__(self, latest: Explained) -> None:
        self._latest = latest

    def describe(self) -> list[Metric]:
        return []  # as the router's collector

    def collect(self) -> Iterator[Metric]:
        gauges = {name: _gauge(name, text, "pool") for name, text in _POOL.items()}
        signals = {name: _gauge(f"signal_{name}", text, "pool", "signal") for name, text in _SIGNAL.items()}
        verdicts = _gauge("verdict", "1 for what the time to first token says of the thresholds.", "pool", "verdict")
        for pool in self._latest.names:
            found, policy = self._latest.get(pool), self._latest.policy(pool)
            values: dict[str, float | None] = {
                "min_replicas": policy.min_replicas,
                "max_replicas": policy.max_replicas,
                "ttft_target_seconds": policy.ttft_target_s,
                "warnings": len(self._latest.remarks(pool).warnings),
            }
            if found is not None:
                values |= {
                    "age_seconds": found.age_s,
                    "ready_servers": found.ready,
                    "starting_servers": found.starting,
                    "draining_servers": found.draining,
                    "stale_servers": found.stale_servers,
                    "lead_seconds": found.lead_s,
                    "needed_min_replicas": found.min_too_low,
                }
            if found is not None and not found.stale:
                values |= {"desired_replicas": found.desired, "ttft_p99_seconds": found.ttft_p99_s}
                for signal in found.signals:
                    for name, gauge in signals.items():
                        value = getattr(signal, name)
                        if value is not None:
                            gauge.add_metric([pool, str(signal.name)], value)
                for verdict in Verdict if found.verdict is not None else ():
                    verdicts.add_metric([pool, str(verdict)], float(verdict is found.verdict))
            for name, known in values.items():
                if known is not None:
                    gauges[name].add_metric([pool], known)
        yield from (*gauges.values(), *signals.values(), verdicts)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"extproc_autoscale_{name}", text, labels=list(labels))


_POOL = {
    "desired_replicas": "Servers that the pool should have.",
    "min_replicas": "By the settings.",
    "max_replicas": "By the settings.",
    "ready_servers": "Servers that serve and whose load is known.",
    "starting_servers": "Servers that were not seen to serve yet.",
    "draining_servers": "Servers that get no new requests and still have some; no capacity.",
    "stale_servers": "Servers whose load is not known.",
    "age_seconds": "Since the load of a server was last known.",
    "lead_seconds": "From load that needs a server until it serves.",
    "needed_min_replicas": "Servers that the fastest ramp needs before others can come, while min_replicas are fewer.",
    "ttft_p99_seconds": "Within it 99 of 100 requests had their first token lately.",
    "ttft_target_seconds": "Within it they should.",
    "warnings": "Reasons why the numbers may be wrong; /status tells them.",
}
_SIGNAL = {
    "value": "What was measured: requests, prefill and kv_tokens of the pool, others per server.",
    "threshold": "What a server may have of it.",
    "replicas": "Servers that it asks for; absent: none.",
}
