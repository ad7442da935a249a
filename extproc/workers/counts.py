"""What has a worker counted, and what have all of them, those that are gone included?

A worker reports its counters as they are, now and then: a list of names and a number. What has come to them since its
last report is added here, so a worker that dies takes nothing back, and one that starts anew begins at zero. What is
counted of picks is not among them: every process learns of those as they happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from extproc.decision import RejectionReason
from extproc.explanation import Explanation, Logged, Understood, Weighed
from extproc.request import ApiKind
from extproc.router import Router
from extproc.scheduling.profiles import By
from extproc.server.durations import Durations
from extproc.unknown import NamedBy

Name = tuple[str, ...]

# Of the gRPC services: what is so many now. All else only grows.
GAUGES = frozenset({"open_streams", "access_log_connections", "eds_streams"})


def counted(router: Router, service: Mapping[str, int], durations: Durations) -> dict[Name, float]:
    """All counters of a worker."""
    ledger = router.ledger
    out: dict[Name, float] = {("rejections", str(reason)): n for reason, n in ledger.rejections.items()}
    out |= {("turned_away", pool): n for pool, n in ledger.turned_away.items()}
    out |= {("panics", pool): n for pool, n in ledger.panics.items()}
    out |= {("unknown", str(by)): n for by, n in router.unknown.counts.items()}
    out |= {("unknown_name", str(by), name): n for (by, name), n in router.unknown.names.items()}
    for pool, placement in router.placements.items():
        tally = placement.tally
        out |= {("way", pool, way.name): n for way, n in tally.ways.items()}
        out |= {("keyless", pool, str(reason)): n for reason, n in tally.keyless.items()}
        for api, counts in tally.apis.items():
            if counts.picks:
                out["api", pool, str(api), "picks"] = counts.picks
                out["api", pool, str(api), "prompt_tokens"] = counts.prompt_tokens
                out["api", pool, str(api), "held_tokens"] = counts.held_tokens
    out |= {("service", name): n for name, n in service.items() if name not in GAUGES}
    out |= {("duration", str(i)): n for i, n in enumerate(durations.counts) if n}
    out["durations_s",] = durations.sum_s
    return out


class Totals:
    """Of all workers, from the start on. What a router counts is added to the one given."""

    def __init__(self, router: Router, names: Iterable[str]) -> None:
        """`names`: of the counters and gauges of the gRPC services."""
        self.durations = Durations()
        self._router = router
        self._service = dict.fromkeys(names, 0)
        self._gauges: dict[int, Mapping[str, int]] = {}  # by worker

    def service(self) -> dict[str, int]:
        """The counters of the gRPC services, and what is open now."""
        out = dict(self._service)
        for gauges in self._gauges.values():
            for name, value in gauges.items():
                out[name] = out.get(name, 0) + value
        return out

    def add(self, now: Mapping[Name, float], before: Mapping[Name, float]) -> None:
        """What a worker has counted between two reports of its own."""
        for name, value in now.items():
            more = value - before.get(name, 0)
            if more:
                self._add(name, more)

    def gauges(self, worker: int, values: Mapping[str, int]) -> None:
        """What is open at a worker now; nothing when it is gone."""
        self._gauges[worker] = values

    def _add(self, name: Name, more: float) -> None:
        router, number = self._router, int(more)
        match name:
            case ("rejections", reason):
                router.ledger.rejections[RejectionReason(reason)] += number
            case ("turned_away", pool):
                router.ledger.turned_away[pool] += number
            case ("panics", pool):
                router.ledger.panics[pool] += number
            case ("unknown", by):
                router.unknown.counts[NamedBy(by)] += number
            case ("unknown_name", by, what):
                router.unknown.names[NamedBy(by), what] += number
            case ("way", pool, way):
                router.placements[pool].tally.ways[By[way]] += number
            case ("keyless", pool, reason):
                router.placements[pool].tally.keyless[reason] += number
            case ("api", pool, api, field):
                counts = router.placements[pool].tally.apis[ApiKind(api)]
                setattr(counts, field, getattr(counts, field) + (number if field == "picks" else more))
            case ("service", what):
                self._service[what] = self._service.get(what, 0) + number
            case ("duration", bucket):
                self.durations.counts[int(bucket)] += number
            case ("durations_s",):
                self.durations.sum_s += more


def pack(values: Mapping[Name, float]) -> list[list[Any]]:
    """As JSON can hold it."""
    return [[*name, value] for name, value in values.items()]


def unpack(rows: Iterable[list[Any]]) -> dict[Name, float]:
    return {tuple(name): value for *name, value in rows}


# The decision log.


def explained(logged: Logged) -> list[Any]:
    """A decision with its reasons, for JSON."""
    return [logged.reservation.pick.pick_id, orjson.Fragment(orjson.dumps(logged.explanation))]


def explanation_of(found: Mapping[str, Any]) -> Explanation:
    """The reasons again. Raises TypeError for what is none."""
    request = found["request"]
    rows = tuple(Weighed(**row) for row in found["endpoints"])
    return Explanation(
        **{**found, "request": None if request is None else Understood(**request), "endpoints": rows},
    )
