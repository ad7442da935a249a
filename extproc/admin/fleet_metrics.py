"""What does Prometheus get to see of the servers: their load, their states, drains and starts, and what they hold?

Labels are the pool's name, the server's address, and words of ours: as many series as there are servers, times a
dozen. What a server that has left was counted for leaves with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from extproc.pool.drain import Phase
from extproc.pool.drains import ENDINGS
from extproc.pool.member import State
from extproc.router import Router

# Of a pool's names that cannot be found out, which stand in DNS records or files that others write.
MOST_NAMES = 20
NAME_CHARS = 200


class FleetMetrics:
    """Reads the members of all pools."""

    def __init__(
        self, router: Router, clock: Callable[[], float], failing: Callable[[], Mapping[str, Iterable[str]]]
    ) -> None:
        """`failing`: by pool, what its discovery cannot find out."""
        self._router = router
        self._clock = clock
        self._failing = failing

    def collect(self) -> Iterator[Metric]:
        yield from self._endpoints()
        yield from self._sampled()
        yield self._first_tokens()
        yield from self._prefixes()
        yield from self._drains()
        yield from self._starts()
        yield self._discovery()

    def _endpoints(self) -> Iterator[Metric]:
        labels = ["pool", "endpoint"]
        picks = CounterMetricFamily("extproc_endpoint_picks", "Requests routed to it as first choice.", labels=labels)
        in_flight = GaugeMetricFamily(
            "extproc_endpoint_in_flight_requests", "Requests picked for it and not ended.", labels=labels
        )
        state = GaugeMetricFamily("extproc_endpoint_state", "1 for its present state.", labels=[*labels, "state"])
        age = GaugeMetricFamily("extproc_endpoint_sample_age_seconds", "Age of its last sample.", labels=labels)
        now = self._clock()
        for name, plan in self._router.plans.items():
            for member in plan.pool.members:
                key = [name, str(member.address)]
                picks.add_metric(key, member.picked)
                in_flight.add_metric(key, member.in_flight)
                present = member.state(now)
                for each in State:
                    if each is not State.GONE:
                        state.add_metric([*key, str(each)], float(each is present))
                if member.sample is not None:
                    age.add_metric(key, now - member.sample.taken_at_s)
        yield from (picks, in_flight, state, age)

    def _sampled(self) -> Iterator[Metric]:
        """What is unknown is absent, not zero."""
        labels = ["pool", "endpoint"]
        running = GaugeMetricFamily("extproc_endpoint_running_requests", "Running there, as sampled.", labels=labels)
        waiting = GaugeMetricFamily("extproc_endpoint_waiting_requests", "Waiting there, as sampled.", labels=labels)
        kv = GaugeMetricFamily("extproc_endpoint_kv_usage_ratio", "KV cache usage, 0 to 1, as sampled.", labels=labels)
        queried = CounterMetricFamily(
            "extproc_endpoint_prefix_cache_queried_tokens",
            "Prompt tokens that it looked up in its prefix cache, as sampled.",
            labels=labels,
        )
        hit = CounterMetricFamily(
            "extproc_endpoint_prefix_cache_hit_tokens", "Of those, the ones it found, as sampled.", labels=labels
        )
        now = self._clock()
        for name, plan in self._router.plans.items():
            for member in plan.pool.members:
                sample = member.fresh_sample(now)
                if sample is None:
                    continue
                for family, value in (
                    (running, sample.running),
                    (waiting, sample.waiting),
                    (kv, sample.kv_usage_ratio),
                    (queried, sample.prefix_queries_tokens),
                    (hit, sample.prefix_hits_tokens),
                ):
                    if value is not None:
                        family.add_metric([name, str(member.address)], value)
        yield from (running, waiting, kv, queried, hit)

    def _first_tokens(self) -> Metric:
        waited = HistogramMetricFamily(
            "extproc_time_to_first_token_seconds",
            "From a request's arrival at its server to its first token, by the servers' own histograms.",
            labels=["pool"],
        )
        for name, plan in self._router.plans.items():
            buckets, sum_s = plan.pool.first_tokens.cumulative()
            waited.add_metric([name], buckets, sum_s)
        return waited

    def _prefixes(self) -> Iterator[Metric]:
        blocks = GaugeMetricFamily(
            "extproc_prefix_index_blocks", "Prompt blocks remembered, each once per server.", labels=["pool"]
        )
        most = GaugeMetricFamily("extproc_prefix_index_max_blocks", "Their bound, by the settings.", labels=["pool"])
        evicted = CounterMetricFamily(
            "extproc_prefix_index_evicted_blocks", "Blocks forgotten for want of room.", labels=["pool"]
        )
        weight = GaugeMetricFamily(
            "extproc_prefix_index_bytes", "Memory that they may take, estimated from their number.", labels=["pool"]
        )
        for name, plan in self._router.plans.items():
            stats = self._router.placements[name].index.stats()
            blocks.add_metric([name], stats.blocks)
            most.add_metric([name], plan.max_blocks)
            evicted.add_metric([name], stats.evicted_blocks)
            weight.add_metric([name], stats.bytes)
        yield from (blocks, most, evicted, weight)

    def _drains(self) -> Iterator[Metric]:
        started = CounterMetricFamily("extproc_drains_started", "Drains that began.", labels=["pool"])
        ended = CounterMetricFamily("extproc_drains_ended", "Drains that ended, by how.", labels=["pool", "result"])
        cut = CounterMetricFamily(
            "extproc_drain_open_requests", "Requests still running at deadlines of drains that passed.", labels=["pool"]
        )
        draining = GaugeMetricFamily("extproc_draining_endpoints", "Endpoints draining now.", labels=["pool"])
        for name, plan in self._router.plans.items():
            drains = plan.pool.drains
            started.add_metric([name], drains.started)
            for ending in ENDINGS:
                ended.add_metric([name, str(ending)], drains.ended[ending])
            cut.add_metric([name], drains.cut)
            going_on = [m for m in drains.members if m.drain is not None and m.drain.phase is Phase.DRAINING]
            draining.add_metric([name], len(going_on))
        yield from (started, ended, cut, draining)

    def _starts(self) -> Iterator[Metric]:
        starts = CounterMetricFamily("extproc_endpoint_starts", "Endpoints that were seen to start.", labels=["pool"])
        took = GaugeMetricFamily(
            "extproc_endpoint_start_seconds", "From first seen to ready, median of the last starts.", labels=["pool"]
        )
        for name, plan in self._router.plans.items():
            times = plan.pool.starts
            starts.add_metric([name], times.count)
            if times.median_s is not None:
                took.add_metric([name], times.median_s)
        yield from (starts, took)

    def _discovery(self) -> Metric:
        """No series is a name that resolves: the names are few, and an alert needs only those that do not."""
        failing = GaugeMetricFamily(
            "extproc_discovery_failing",
            "1 for what discovery cannot find out at present: a DNS name, a file.",
            labels=["pool", "name"],
        )
        for pool, names in self._failing().items():
            for name in sorted({_label(name) for name in names})[:MOST_NAMES]:
                failing.add_metric([pool, name], 1.0)
        return failing


def _label(name: str) -> str:
    """Text that somebody else wrote, as the value of a label: cut, and such that it can be encoded."""
    return name[:NAME_CHARS].encode("utf-8", "backslashreplace").decode()
