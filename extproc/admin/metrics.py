"""What does Prometheus get to see?

The core keeps plain counts; they are read here when Prometheus scrapes, so that a pick costs nothing for them. No label
holds what a client wrote: each is the name of a pool, the address of a server, or a word of a fixed list. All metrics
are listed in docs/metrics.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from extproc import __version__
from extproc.admin.fleet_metrics import FleetMetrics
from extproc.decision import Outcome, RejectionReason
from extproc.router import Router
from extproc.unknown import NamedBy


class RouterCollector:
    """Reads the router's counts, the members' states, and what the shells count."""

    def __init__(
        self,
        router: Router,
        service: Callable[[], Mapping[str, float]],
        decisions: Callable[[], tuple[list[tuple[str, float]], float]],
        ready: Callable[[], bool],
        clock: Callable[[], float],
        failing: Callable[[], Mapping[str, Iterable[str]]] = dict,
    ) -> None:
        """`service`: counters of the gRPC shells, by metric name without prefix; see `_SERVICE`, and `_SPANS` where
        requests are traced. `decisions`: the cumulative buckets and the sum, in seconds, of the time decisions took.
        `failing`: by pool, what its discovery cannot find out."""
        self._router = router
        self._service = service
        self._decisions = decisions
        self._ready = ready
        self._fleet = FleetMetrics(router, clock, failing)

    def describe(self) -> list[Metric]:
        return []  # nothing to check for clashes; saves a collection at registration

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._prompts()
        yield from self._fleet.collect()
        yield from self._itself()

    def _requests(self) -> Iterator[Metric]:
        """Counters of fixed words stand at 0 from the start: the first failure is then a rise that Prometheus sees."""
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
        rejections = CounterMetricFamily("extproc_rejections", "Requests that we answered.", labels=["reason"])
        outcomes = CounterMetricFamily(
            "extproc_request_outcomes",
            "Routed requests that ended, by how (from the access log).",
            labels=["pool", "outcome"],
        )
        for pool in self._router.plans:
            picks.add_metric([pool], ledger.picks[pool])
            requests.add_metric([pool], ledger.requests(pool))
            panics.add_metric([pool], ledger.panics[pool])
            for outcome in Outcome:
                outcomes.add_metric([pool, str(outcome)], ledger.outcomes[pool, outcome])
        for reason in RejectionReason:
            rejections.add_metric([str(reason)], ledger.rejections[reason])
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

    def _itself(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("extproc_ready", "1 while Envoy may send requests here.", value=float(self._ready()))
        build = GaugeMetricFamily("extproc_build_info", "1, with the version that runs.", labels=["version"])
        build.add_metric([__version__], 1.0)
        yield build
        buckets, sum_s = self._decisions()
        decision = HistogramMetricFamily("extproc_decision_seconds", "From a decoded request to its decision.")
        decision.add_metric([], buckets, sum_s)
        yield decision
        values = self._service()
        for name, (kind, text) in _SERVICE.items():
            yield kind(f"extproc_{name}", text, value=values[name])
        spans = CounterMetricFamily(
            "extproc_trace_spans", "Spans of traced requests, by what became of them.", labels=["result"]
        )
        for result in _SPANS:
            count = values.get(f"trace_spans_{result}")
            if count is not None:
                spans.add_metric([result], count)
        yield spans


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

# What becomes of the spans of traces; counted as `trace_spans_...`.
_SPANS = ("exported", "failed", "queue_full", "over_rate")


def registry(*collectors: Collector) -> CollectorRegistry:
    """A registry of its own: several services can live in one process."""
    result = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        result.register(collector)
    ProcessCollector(registry=result)
    PlatformCollector(registry=result)
    GCCollector(registry=result)
    return result


async def page(of: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """All of it in a format that the header `Accept` asks for, and its content type.

    Metric by metric, with turns for others between: of 250 servers the whole takes some 20 ms, and requests wait for
    their picks meanwhile.
    """
    encode, content_type = choose_encoder(accept)
    parts = []
    for metric in of.collect():
        parts.append(encode(_Alone(metric)).removesuffix(_END))
        await asyncio.sleep(0)
    if encode(_Alone()).endswith(_END):
        parts.append(_END)
    return b"".join(parts), content_type


_END = b"# EOF\n"  # of OpenMetrics


class _Alone(CollectorRegistry):
    """Some metrics, as the encoders want them."""

    def __init__(self, *metrics: Metric) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)
