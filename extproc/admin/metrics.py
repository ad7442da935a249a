"""What does Prometheus get to see?

The core keeps plain counts; they are read here when Prometheus scrapes, so that a pick costs nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.pool.drain import Phase
from extproc.pool.drains import ENDINGS
from extproc.pool.member import State
from extproc.router import Router
from extproc.unknown import NamedBy


class RouterCollector:
    """Reads the router's counts and the members' states."""

    def __init__(
        self,
        router: Router,
        service: Callable[[], Mapping[str, float]],
        decisions: Callable[[], tuple[list[tuple[str, float]], float]],
        ready: Callable[[], bool],
        clock: Callable[[], float],
        failing: Callable[[], Mapping[str, Iterable[str]]] = dict,
    ) -> None:
        """`service`: counters of the gRPC shells, by metric name without prefix; see `_SERVICE`. `decisions`: the
        cumulative buckets and the sum, in seconds, of the time decisions took. `failing`: by pool, what its
        discovery cannot find out."""
        self._router = router
        self._service = service
        self._decisions = decisions
        self._ready = ready
        self._clock = clock
        self._failing = failing

    def describe(self) -> list[Metric]:
        return []  # nothing to check for clashes; saves a collection at registration

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._prompts()
        yield from self._endpoints()
        yield from self._drains()
        yield from self._starts()
        yield self._discovery()
        yield GaugeMetricFamily("extproc_ready", "1 while Envoy may send requests here.", value=float(self._ready()))
        buckets, sum_s = self._decisions()
        decision = HistogramMetricFamily("extproc_decision_seconds", "From a decoded request to its decision.")
        decision.add_metric([], buckets, sum_s)
        yield decision
        values = self._service()
        for name, (kind, text) in _SERVICE.items():
            yield kind(f"extproc_{name}", text, value=values[name])

    def _requests(self) -> Iterator[Metric]:
        ledger = self._router.ledger
        picks = CounterMetricFamily("extproc_picks", "Requests routed.", labels=["pool"])
        requests = CounterMetricFamily(
            "extproc_pool_requests",
            "Requests that came for the pool, those that nobody could serve included.",
            labels=["pool"],
        )
        panics = CounterMetricFamily(
            "extproc_panic_picks", "Requests routed although every endpoint looked bad.", labels=["pool"]
        )
        for pool in self._router.plans:
            picks.add_metric([pool], ledger.picks[pool])
            requests.add_metric([pool], ledger.requests(pool))
            panics.add_metric([pool], ledger.panics[pool])
        rejections = CounterMetricFamily("extproc_rejections", "Requests that we answered.", labels=["reason"])
        for reason, count in ledger.rejections.items():
            rejections.add_metric([str(reason)], count)
        outcomes = CounterMetricFamily(
            "extproc_request_outcomes",
            "Routed requests that ended, by how (from the access log).",
            labels=["pool", "outcome"],
        )
        for (pool, outcome), count in ledger.outcomes.items():
            outcomes.add_metric([pool, str(outcome)], count)
        yield from (picks, requests, panics, rejections, outcomes)
        yield CounterMetricFamily(
            "extproc_moved_requests", "Requests that ran on another server than the first choice.", value=ledger.moved
        )
        yield CounterMetricFamily(
            "extproc_served_elsewhere",
            "Requests served by a host that the pick did not name.",
            value=ledger.served_elsewhere,
        )
        yield CounterMetricFamily(
            "extproc_unpicked_requests", "Requests that Envoy routed without a pick.", value=ledger.unpicked
        )
        unknown = CounterMetricFamily(
            "extproc_unknown_names",
            "Requests that named a pool or profile that there is not, by what named it.",
            labels=["by"],
        )
        for by in NamedBy:
            unknown.add_metric([str(by)], self._router.unknown.counts[by])
        yield unknown

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
            for name in names:
                failing.add_metric([pool, name], 1.0)
        return failing

    def _prompts(self) -> Iterator[Metric]:
        by_api = ["pool", "api"]
        ways = CounterMetricFamily("extproc_picks_by_way", "Requests routed, by what decided.", labels=["pool", "way"])
        keyless = CounterMetricFamily(
            "extproc_keyless_picks", "Requests routed without a prefix to look up, by why.", labels=["pool", "reason"]
        )
        picks = CounterMetricFamily("extproc_read_picks", "Requests routed whose body was read.", labels=by_api)
        tokens = CounterMetricFamily(
            "extproc_prompt_tokens", "Tokens of their prompts, estimated from the length.", labels=by_api
        )
        held = CounterMetricFamily(
            "extproc_held_prompt_tokens", "Of those, the ones the first choice was believed to hold.", labels=by_api
        )
        for pool, placement in self._router.placements.items():
            tally = placement.tally
            for way, count in tally.ways.items():
                ways.add_metric([pool, way.name.lower()], count)
            for reason, count in tally.keyless.items():
                keyless.add_metric([pool, reason], count)
            for api, counts in tally.apis.items():
                if counts.picks:
                    picks.add_metric([pool, api], counts.picks)
                    tokens.add_metric([pool, api], counts.prompt_tokens)
                    held.add_metric([pool, api], counts.held_tokens)
        yield from (ways, keyless, picks, tokens, held)

    def _endpoints(self) -> Iterator[Metric]:
        labels = ["pool", "endpoint"]
        in_flight = GaugeMetricFamily("extproc_endpoint_in_flight", "Requests picked and not ended.", labels=labels)
        state = GaugeMetricFamily(
            "extproc_endpoint_state", "1 for the endpoint's present state.", labels=[*labels, "state"]
        )
        age = GaugeMetricFamily("extproc_endpoint_sample_age_seconds", "Age of the last sample.", labels=labels)
        running = GaugeMetricFamily("extproc_endpoint_running", "Running requests, as sampled.", labels=labels)
        waiting = GaugeMetricFamily("extproc_endpoint_waiting", "Waiting requests, as sampled.", labels=labels)
        kv = GaugeMetricFamily("extproc_endpoint_kv_usage_ratio", "KV cache usage, as sampled.", labels=labels)
        now = self._clock()
        for name, plan in self._router.plans.items():
            for member in plan.pool.members:
                key = [name, str(member.address)]
                in_flight.add_metric(key, member.in_flight)
                present = member.state(now)
                for each in State:
                    if each is not State.GONE:
                        state.add_metric([*key, str(each)], float(each is present))
                if member.sample is not None:
                    age.add_metric(key, now - member.sample.taken_at_s)
                sample = member.fresh_sample(now)
                if sample is None:
                    continue  # unknown is absent, not zero
                for gauge, value in ((running, sample.running), (waiting, sample.waiting), (kv, sample.kv_usage_ratio)):
                    if value is not None:
                        gauge.add_metric(key, value)
        yield from (in_flight, state, age, running, waiting, kv)


_SERVICE: Mapping[str, tuple[type[CounterMetricFamily] | type[GaugeMetricFamily], str]] = {
    "streams": (CounterMetricFamily, "ext_proc streams opened by Envoy."),
    "open_streams": (GaugeMetricFamily, "ext_proc streams open now."),
    "undecodable_messages": (CounterMetricFamily, "Messages that did not decode; those requests went on unpicked."),
    "request_path_errors": (CounterMetricFamily, "Bugs met in the request path; those requests went on unpicked."),
    "undecodable_log_messages": (
        CounterMetricFamily,
        "Messages of the access log that did not decode; how their requests ended is unknown.",
    ),
    "access_log_entries": (CounterMetricFamily, "Access log entries received."),
    "access_log_connections": (GaugeMetricFamily, "Access log streams open now."),
    "eds_streams": (GaugeMetricFamily, "Streams on which Envoys are told of endpoints now."),
    "eds_pushes": (CounterMetricFamily, "Endpoint lists sent to Envoys."),
    "eds_refused": (CounterMetricFamily, "Endpoint lists that an Envoy refused."),
}


def registry(*collectors: Collector) -> CollectorRegistry:
    """A registry of its own: several services can live in one process."""
    result = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        result.register(collector)
    ProcessCollector(registry=result)
    PlatformCollector(registry=result)
    GCCollector(registry=result)
    return result
