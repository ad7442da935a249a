"""What does the supervisor tell the workers of the servers, and what do they make of it?

The supervisor alone asks servers and sources. Each thing heard is a row, a list for JSON, which a worker hands to the
same sinks that the supervisor's own loops have. So all come to the same state; one that starts later is told that
state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from math import inf
from typing import Any

from extproc.autoscale.latest import Latest
from extproc.autoscale.recommendation import Recommendation, Signal, SignalName, Verdict
from extproc.config.settings import Settings
from extproc.endpoint import Address, Endpoint
from extproc.pool.drain import By, Drain, Phase
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.sample import Histogram, LoadSample
from extproc.router import Router
from extproc.sinks import ModelsSink, PoolSink
from extproc.telemetry.fetch import FailureKind, ScrapeFailure
from extproc.telemetry.prober import Probe
from extproc.workers.messages import address, plain

Row = list[Any]

_NEVER = "never"  # JSON has no -inf


class Spread:
    """Makes a row of each thing heard; a `Heard`."""

    def __init__(self) -> None:
        self.on_row: Callable[[Row], None] | None = None  # told of each; None: nobody is there yet

    def members(self, pool: str, endpoints: Sequence[Endpoint]) -> None:
        self._tell(members_row(pool, endpoints))

    def sample(self, pool: str, endpoint: Endpoint, sample: LoadSample) -> None:
        self._tell(["sample", pool, endpoint.address.text, sample])

    def failure(self, pool: str, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        self._tell(["failure", pool, endpoint.address.text, *_failure_row(failure)])

    def probe(self, pool: str, endpoint: Endpoint, probe: Probe) -> None:
        error = None if probe.error is None else plain(probe.error)
        self._tell(["probe", pool, endpoint.address.text, probe.sent_at_s, error, probe.certain])

    def models(self, pool: str, endpoint: Endpoint, models: frozenset[str], at_s: float) -> None:
        self._tell(["models", pool, endpoint.address.text, [plain(name) for name in models], at_s])

    def no_models(self, pool: str, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        self._tell(["no_models", pool, endpoint.address.text, *_failure_row(failure)])

    def _tell(self, row: Row) -> None:
        if self.on_row is not None:
            self.on_row(row)


def members_row(pool: str, endpoints: Iterable[Endpoint]) -> Row:
    rows = [
        [
            each.address.text,
            each.hostname,
            each.weight,
            each.models,
            each.metrics_port,
            each.drained,
            each.uid,
            each.leaving,
        ]
        for each in endpoints
    ]
    return ["members", pool, rows]


def drains_row(pool: Pool) -> Row:
    """Of all members that somebody wants out."""
    rows = []
    for member in pool.drains.members:
        drain = member.drain
        if drain is not None:
            asked = sorted(drain.asked)
            times = [drain.started_s, drain.deadline_s, drain.ended_s, drain.open_at_end]
            rows.append([member.address.text, asked, drain.phase, *times])
    return ["drains", pool.name, rows]


def failing_row(pool: str, failing: Mapping[str, str]) -> Row:
    return ["failing", pool, {plain(name): plain(why) for name, why in failing.items()}]


def recommended_row(pool: str, latest: Latest) -> Row:
    found = latest.get(pool)
    return ["recommended", pool, None if found is None else asdict(found)]


def state_rows(router: Router, failing: Mapping[str, Mapping[str, str]], latest: Latest) -> list[Row]:
    """All that a worker that starts now has to know."""
    rows: list[Row] = []
    for name, plan in router.plans.items():
        pool = plan.pool
        rows.append(failing_row(name, failing.get(name, {})))
        if not pool.known:
            continue
        rows.append(members_row(name, [member.endpoint for member in pool.members]))
        for member in pool.members:
            text = member.address.text
            if member.sample is not None:
                rows.append(["sample", name, text, member.sample])
            if member.told_models is not None and member.models_at_s > -inf:
                rows.append(["models", name, text, [plain(each) for each in member.told_models], member.models_at_s])
            health = {slot: _NEVER if value == -inf else value for slot, value in member.health.state().items()}
            rows.append(["state", name, text, health, member.prefill.rate])
        rows.append(drains_row(pool))
    rows += [recommended_row(pool, latest) for pool in latest.names]
    return rows


class ToldFleet:
    """A worker's side; a `Latest`, too."""

    def __init__(self, router: Router, settings: Settings, clock: Callable[[], float]) -> None:
        self.failing: dict[str, dict[str, str]] = {}  # by pool, what its discovery cannot find out, and why
        self._router = router
        self._clock = clock
        self._sinks = {name: PoolSink(router, plan.pool, clock) for name, plan in router.plans.items()}
        self._models = {name: ModelsSink(plan.pool) for name, plan in router.plans.items()}
        self._recommended: dict[str, Recommendation | None] = {
            name: None for name, pool in settings.pools.items() if pool.autoscale is not None
        }

    @property
    def known(self) -> bool:
        """Whether the members of all pools are known, or their source says that it fails."""
        return all(plan.pool.known or self.failing.get(name) for name, plan in self._router.plans.items())

    @property
    def names(self) -> Collection[str]:
        return tuple(self._recommended)

    def get(self, pool: str) -> Recommendation | None:
        return self._recommended[pool]

    def take(self, rows: Iterable[Row]) -> None:
        """Raises ValueError, LookupError or TypeError for a row that `Spread` does not write."""
        for kind, pool, *row in rows:
            match kind:
                case "members":
                    self._router.plans[pool].pool.set_endpoints(_endpoint(each) for each in row[0])
                case "drains":
                    _drain(self._router.plans[pool].pool, row[0])
                case "failing":
                    self.failing[pool] = row[0]
                case "recommended":
                    self._recommended[pool] = None if row[0] is None else _recommendation(row[0])
                case _:
                    member = self._router.plans[pool].pool.member(address(row[0]))
                    if member is not None:  # else it has left
                        self._of_one(kind, pool, member, row[1:])

    def _of_one(self, kind: str, pool: str, member: Member, row: Row) -> None:
        endpoint, sink, models = member.endpoint, self._sinks[pool], self._models[pool]
        match kind:
            case "sample":
                sink.on_sample(endpoint, _sample(row[0]))
            case "failure":
                sink.on_failure(endpoint, _failure(row))
            case "probe":
                sent_at_s, error, certain = row
                sink.on_probe(endpoint, Probe(sent_at_s, error, certain))
            case "models":
                names, at_s = row
                models.on_models(endpoint, frozenset(names), at_s)
            case "no_models":
                models.on_no_models(endpoint, _failure(row))
            case "state":
                health, rate = row
                member.health.take_over({slot: -inf if value == _NEVER else value for slot, value in health.items()})
                member.prefill.expect(rate)
                member.restand()
            case _:
                raise ValueError(f"no row is of kind {kind!r}")


def _endpoint(row: Row) -> Endpoint:
    text, hostname, weight, models, metrics_port, drained, uid, leaving = row
    return Endpoint(address(text), hostname, weight, tuple(models), metrics_port, drained, uid, leaving)


def _drain(pool: Pool, rows: Iterable[Row]) -> None:
    """Have exactly these drains in the pool."""
    wanted: dict[Address, Row] = {address(row[0]): row for row in rows}
    for member in pool.members:
        row = wanted.get(member.address)
        if row is None:
            member.withdraw_drain(*By)
            continue
        _, asked, phase, started_s, deadline_s, ended_s, open_at_end = row
        member.take_up(
            Drain.restored(
                frozenset(By(each) for each in asked),
                Phase(phase),
                started_s=started_s,
                deadline_s=deadline_s,
                ended_s=ended_s,
                open_at_end=open_at_end,
            )
        )


def _failure_row(failure: ScrapeFailure) -> Row:
    return [failure.kind, plain(failure.detail), failure.at_s, failure.status]


def _failure(row: Row) -> ScrapeFailure:
    kind, detail, at_s, status = row
    return ScrapeFailure(FailureKind(kind), detail, at_s, status)


def _sample(found: Mapping[str, Any]) -> LoadSample:
    return LoadSample(**{name: _value(value) for name, value in found.items()})


def _value(value: Any) -> Any:
    """Of a field of a sample: JSON knows no tuples, and no infinite bounds."""
    if isinstance(value, dict):
        bounds_s = tuple(inf if bound is None else bound for bound in value["bounds_s"])
        return Histogram(bounds_s, tuple(value["counts"]), value["sum_s"])
    return tuple(value) if isinstance(value, list) else value


def _recommendation(found: Mapping[str, Any]) -> Recommendation:
    verdict = found["verdict"]
    signals = tuple(Signal(**{**each, "name": SignalName(each["name"])}) for each in found["signals"])
    return Recommendation(
        **{**found, "signals": signals, "verdict": None if verdict is None else Verdict(verdict)},
    )
