"""What were the pools like in the last hour, and what has happened in the last minutes?

The service keeps this itself, at one point each ten seconds: who opens the page at night wants to see what was before,
two who look see the same, and what the page would have to keep is gone with its tab. An hour is 360 points, some
hundred kilobytes for each pool; it is gone with the process.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from extproc.admin.known import mean, total
from extproc.admin.status_hits import CacheHits, ratio
from extproc.autoscale.latest import Explained
from extproc.pool.member import Member
from extproc.pool.victim import SERVING
from extproc.router import PoolPlan, Router

EVERY_S = 10.0  # between two points
KEPT = 360  # points: an hour
LATELY_S = 300.0  # what "lately" means in warnings


@dataclass(frozen=True, slots=True)
class Point:
    """One pool at one time. None: unknown."""

    ready: int  # servers that get requests
    servers: int  # all that are in the pool
    in_flight: int
    running: float | None  # requests, over all servers whose load is known
    waiting: float | None  # likewise
    kv_usage_ratio: float | None  # mean over them
    requests_per_s: float | None  # routed, since the point before
    hit_ratio: float | None  # of the prompt tokens computed or cached since the point before, by the servers' own word
    desired: int | None  # as recommended; None also without autoscaling, and for what is too old to go by
    ttft_p99_s: float | None
    asked: Mapping[str, int]  # servers that each signal asked for; a signal that asks for none is not in it


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted since the start, or between two times."""

    streams: int = 0  # requests that Envoy asked about
    picks: Counter[str] = field(default_factory=Counter)  # by pool
    panics: Counter[str] = field(default_factory=Counter)  # by pool
    rejections: Counter[str] = field(default_factory=Counter)  # by reason
    moved: int = 0
    unpicked: int = 0

    def since(self, before: Counts) -> Counts:
        return Counts(
            self.streams - before.streams,
            self.picks - before.picks,
            self.panics - before.panics,
            self.rejections - before.rejections,
            self.moved - before.moved,
            self.unpicked - before.unpicked,
        )


def counts(router: Router, streams: int) -> Counts:
    """Of now, since the start."""
    ledger = router.ledger
    return Counts(
        streams,
        Counter(ledger.picks),
        Counter(ledger.panics),
        Counter({str(reason): count for reason, count in ledger.rejections.items()}),
        ledger.moved,
        ledger.unpicked,
    )


@dataclass(frozen=True, slots=True)
class Lately:
    """What has happened in the last `of_s` seconds: `LATELY_S`, or since the start if that is less ago."""

    of_s: float
    counts: Counts


class History:
    """The last hour of a router's pools. `look` at it every `EVERY_S`."""

    def __init__(self, kept: int = KEPT) -> None:
        self._times: deque[float] = deque(maxlen=kept)  # Unix times, rising
        self._points: deque[dict[str, Point]] = deque(maxlen=kept)
        self._counts: deque[tuple[float, Counts]] = deque(maxlen=int(LATELY_S / EVERY_S) + 1)
        self._hits: dict[int, CacheHits] = {}  # by id of the member, which is kept with it

    def look(
        self, router: Router, *, now: float, unix_s: float, streams: int, autoscale: Explained | None = None
    ) -> None:
        """Add a point. A clock of the day that was set back begins the history anew."""
        unix_s = round(unix_s, 3)  # as it is told, and asked for again
        if self._times and unix_s <= self._times[-1]:
            self._times.clear()
            self._points.clear()
        at, new = counts(router, streams), {}
        before = self._counts[-1] if self._counts else None
        known, self._hits = self._hits, {}
        for name, plan in router.plans.items():
            added = []
            for member in plan.pool.members:
                hits = self._hits[id(member)] = known.get(id(member)) or CacheHits(member)
                added.append(hits.look(now))
            per_s = None
            if before is not None and now > before[0]:
                per_s = (at.picks[name] - before[1].picks[name]) / (now - before[0])
            new[name] = _point(plan, now, per_s, ratio(added), autoscale)
        self._counts.append((now, at))
        self._times.append(unix_s)
        self._points.append(new)

    def hit_ratio(self, member: Member) -> float | None:
        """Of the prompt tokens that this server was asked for in the last minute, those that its cache held, by its own
        word; between 0 and 1. None: there were none, or it does not tell."""
        hits = self._hits.get(id(member))
        return None if hits is None else ratio([hits.lately(member.sample)])

    def pool_hit_ratio(self, members: Iterable[Member]) -> float | None:
        """The same of several servers together."""
        found = [self._hits[id(each)].lately(each.sample) for each in members if id(each) in self._hits]
        return ratio(found)

    def lately(self, router: Router, *, now: float, streams: int) -> Lately | None:
        """What was counted in the last minutes; None: there was no look yet."""
        base = next(((at_s, then) for at_s, then in self._counts if now - at_s <= LATELY_S), None)
        return None if base is None else Lately(now - base[0], counts(router, streams).since(base[1]))

    def since(self, unix_s: float | None) -> dict[str, Any]:
        """As JSON, column by column: the points after that time; all of them for None, and for a time that is after the
        last, which is then of a clock that was set back since."""
        first = 0
        if unix_s is not None and self._times and unix_s <= self._times[-1]:
            first = next((i for i, at in enumerate(self._times) if at > unix_s), len(self._times))
        points = list(self._points)[first:]
        names = dict.fromkeys(name for point in points for name in point)
        return {
            "every_s": EVERY_S,
            "kept": self._times.maxlen,
            "from": self._times[0] if self._times else None,  # what is older is to be forgotten
            "times": list(self._times)[first:],
            "pools": {name: _columns([point.get(name) for point in points]) for name in names},
        }


async def keep(look: Callable[[], None], every_s: float = EVERY_S) -> None:
    """Look again and again."""
    while True:
        look()
        await asyncio.sleep(every_s)


_FIELDS = ("ready", "servers", "in_flight", "running", "waiting", "kv_usage_ratio", "requests_per_s", "hit_ratio",
           "desired", "ttft_p99_s")  # fmt: skip


def _columns(points: list[Point | None]) -> dict[str, Any]:
    signals = dict.fromkeys(name for point in points if point is not None for name in point.asked)
    return {name: [None if point is None else _short(getattr(point, name)) for point in points] for name in _FIELDS} | {
        "asked": {name: [None if point is None else point.asked.get(name) for point in points] for name in signals}
    }


def _short(value: float | None) -> float | None:
    return round(value, 4) if isinstance(value, float) else value


def _point(
    plan: PoolPlan, now: float, per_s: float | None, hit_ratio: float | None, autoscale: Explained | None
) -> Point:
    members = plan.pool.members
    samples = [sample for member in members if (sample := member.fresh_sample(now)) is not None]
    found = autoscale.get(plan.pool.name) if autoscale is not None and plan.pool.name in autoscale.names else None
    if found is not None and found.stale:
        found = None
    return Point(
        ready=sum(member.state(now) in SERVING for member in members),
        servers=len(members),
        in_flight=sum(member.in_flight for member in members),
        running=total(each.running for each in samples),
        waiting=total(each.waiting for each in samples),
        kv_usage_ratio=mean(each.kv_usage_ratio for each in samples),
        requests_per_s=per_s,
        hit_ratio=hit_ratio,
        desired=None if found is None else found.desired,
        ttft_p99_s=None if found is None else found.ttft_p99_s,
        asked={}
        if found is None
        else {str(each.name): each.replicas for each in found.signals if each.replicas is not None},
    )
