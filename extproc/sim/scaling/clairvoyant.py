"""What is the least that a fleet could have cost, by one who knows what will come?

For each minute, the servers that its requests fill: each request counts by the knee for its lengths. A server is asked
for early enough to be there, and given back as soon as no minute within a cold start needs it. One server at its knee
tells a little too much for a fleet, whose queue may use any, or too little, where the load jumps within the minute: so
all is multiplied by one factor, the smallest with which the requests still fare well enough. Which that is, runs tell.

The same without foresight tells what knowing what will come is worth: each minute's load is known exactly, but when the
minute is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from extproc.sim.scaling.hpa import SYNC_S
from extproc.sim.scaling.run import Plan, Ran, run
from extproc.sim.scaling.scalers import Maker, planned
from extproc.sim.scaling.traffic import Coming

MINUTE_S = 60.0
_ROUNDING = 1e-9
_LOW, MOST, _FINE = 0.75, 1.45, 0.05  # factors that are tried
MOST_BLIND = 2.0  # for a rule that does not see what it is tuned for: lengths, bursts
_LATE_S = 5.0  # a server is seen to serve up to so long after it does

Rule = Callable[[float], Maker]  # asks for so many times as many


@dataclass(frozen=True, slots=True)
class Bound:
    """The least that was found."""

    factor: float
    ran: Ran
    tried: int  # runs


def loads(arrivals: Sequence[Coming], seconds: float, knee_per_s: Callable[[float], float]) -> list[float]:
    """For each minute: how many servers what comes in it would keep at their knee."""
    out = [0.0] * max(1, ceil(seconds / MINUTE_S - _ROUNDING))
    for each in arrivals:
        if each.at_s < seconds:
            out[int(each.at_s / MINUTE_S)] += 1.0 / (knee_per_s(each.at_s) * MINUTE_S)
    return out


def steps(plan: Plan, load: Sequence[float], factor: float, *, foresight: bool = True) -> list[tuple[float, int]]:
    """How many to want from when on, so that there are enough at the beginning of each minute.

    Without foresight, what a minute needs is known when it is over.
    """
    needed = [min(plan.max_replicas, max(plan.min_replicas, ceil(factor * each - _ROUNDING))) for each in load]
    lead_s = 1.1 * (plan.cold_start.node_s + plan.cold_start.seen_s) + SYNC_S + _LATE_S
    out: list[tuple[float, int]] = []
    at_s = 0.0
    while at_s <= plan.seconds:
        first, last = int(at_s / MINUTE_S), int((at_s + lead_s) / MINUTE_S)
        if not foresight:
            first = last = max(0, first - 1)
        wanted = max(needed[first : last + 1], default=needed[-1])
        if not out or out[-1][1] != wanted:
            out.append((at_s, wanted))
        at_s += SYNC_S
    return out


def by_load(plan: Plan, knee_per_s: Callable[[float], float], *, foresight: bool = True) -> Rule:
    """Its plans. `knee_per_s`: of one server, with the lengths of a time."""
    load = loads(plan.arrivals, plan.seconds, knee_per_s)
    return lambda factor: planned(steps(plan, load, factor, foresight=foresight))


def least(
    plan: Plan,
    rule: Rule,
    ttft_p99_s: float,
    *,
    most: float = MOST,
    attained: float = 0.99,
    seed: int = 0,
    progress: Callable[[float, float], None] | None = None,
) -> Bound | None:
    """The cheapest with which so many of the requests meet the target, of factors up to `most`; None: there is none.

    By halving: a greater factor has more in target, nearly always.
    """
    best: Bound | None = None
    low, high = round(_LOW / _FINE), round(most / _FINE)
    tried = 0
    while low <= high:
        middle = (low + high) // 2 if tried else round(1.0 / _FINE)
        factor = middle * _FINE
        ran = run(plan, rule(factor), seed=seed, progress=progress)
        tried += 1
        if ran.attained(ttft_p99_s) >= attained:
            if best is None or ran.replica_hours <= best.ran.replica_hours:
                best = Bound(factor, ran, tried)
            high = middle - 1
        else:
            low = middle + 1
    return None if best is None else Bound(best.factor, best.ran, tried)
