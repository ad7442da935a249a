"""By which rules can the size of a simulated fleet be set?

Ours, by the recommender as it is in service. The rules that are common for vLLM on Kubernetes, each with the threshold
that the same load test gives. And two that need no rule: a fleet of one size, and one that knows what will come.

The common rules get a mean over the last minute where many set-ups read the gauge once, which makes it jump.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil, isfinite
from statistics import fmean
from typing import Protocol

from extproc.autoscale.look import PoolLook
from extproc.autoscale.policy import Policy
from extproc.autoscale.recommendation import Recommendation
from extproc.autoscale.recommender import Recommender
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.sim.scaling.hpa import STABILISATION_S, Ask

WINDOW_S = 60.0  # over which the common rules take a mean
_ROUNDING = 1e-9


class Scaler(Protocol):
    """Looks at the fleet every few seconds, and is asked now and then."""

    stabilisation_s: float  # of the HPA that carries it out
    careful: bool  # servers go one at a time, and only when the others have room

    def look(self, now: float) -> None:
        """The samples of the servers are those of now."""

    def ask(self, now: float, replicas: int) -> Ask | None:
        """What it asks for, where so many are wanted at present; None: it does not know."""


Maker = Callable[[Pool, Callable[[], float]], Scaler]  # of the pool, and of how many requests have come


class Ours:
    """The recommender. It is slow enough downwards by itself, and says when a server may go."""

    stabilisation_s = 0.0
    careful = True

    def __init__(self, policy: Policy, pool: Pool, requests: Callable[[], float], unix_s: float) -> None:
        """`unix_s`: the time of day at 0 of the clock."""
        self.seen: list[Recommendation] = []
        self._look = PoolLook(pool, requests)
        self._recommender = Recommender(policy)
        self._unix_s = unix_s

    def look(self, now: float) -> None:
        self.seen.append(self._recommender.look(self._look.read(now), self._unix_s + now))

    def ask(self, now: float, replicas: int) -> Ask | None:
        last = self.seen[-1] if self.seen else None
        if last is None or last.desired is None or last.stale:
            return None
        return Ask(last.desired, last.desired / replicas if replicas else 1.0)


class GaugeRule:
    """An HPA on a gauge of the servers, with its mean over the servers as target.

    A server that tells nothing counts as idle where the others ask for more, and as right at the target where they ask
    for less.
    """

    stabilisation_s = STABILISATION_S
    careful = False

    def __init__(self, pool: Pool, gauge: Callable[[Member], float | None], target: float) -> None:
        self._pool = pool
        self._gauge = gauge
        self._target = target
        self._read: dict[Member, deque[tuple[float, float]]] = {}

    def look(self, now: float) -> None:
        kept, self._read = self._read, {}
        for member in self._pool.members:
            if member.drain is None:
                read = self._read[member] = kept.get(member, deque())
                value = self._gauge(member) if member.fresh_sample(now) is not None else None
                if value is not None:
                    read.append((now, value))
                while read and read[0][0] <= now - WINDOW_S:
                    read.popleft()

    def ask(self, now: float, replicas: int) -> Ask | None:
        values = [fmean(value for _, value in read) for read in self._read.values() if read]
        silent = len(self._read) - len(values)
        if not values:
            return None
        ratio = fmean(values) / self._target
        if silent:
            with_silent = (sum(values) / self._target + (silent if ratio < 1.0 else 0.0)) / len(self._read)
            if (with_silent > 1.0) != (ratio > 1.0):
                return Ask(replicas, 1.0)
            ratio = with_silent
        wanted = ceil(ratio * len(self._read) - _ROUNDING)
        return Ask(wanted, ratio)


class RateRule:
    """KEDA on the rate of requests: that over the last minute by what one server can have."""

    stabilisation_s = STABILISATION_S
    careful = False

    def __init__(self, requests: Callable[[], float], per_server_per_s: float) -> None:
        self._requests = requests
        self._per_server_per_s = per_server_per_s
        self._counted: deque[tuple[float, float]] = deque()

    def look(self, now: float) -> None:
        self._counted.append((now, self._requests()))
        while len(self._counted) > 1 and self._counted[1][0] <= now - WINDOW_S:
            self._counted.popleft()

    def ask(self, now: float, replicas: int) -> Ask | None:
        if len(self._counted) < 2 or self._counted[-1][0] - self._counted[0][0] < WINDOW_S / 2:
            return None
        (since_s, before), (until_s, after) = self._counted[0], self._counted[-1]
        servers = (after - before) / (until_s - since_s) / self._per_server_per_s
        return Ask(ceil(servers - _ROUNDING), servers / replicas if replicas else 1.0)


class Planned:
    """So many from each of these times on, whatever happens."""

    stabilisation_s = 0.0
    careful = False

    def __init__(self, steps: Sequence[tuple[float, int]]) -> None:
        """By time; the first is at or before 0."""
        self._at_s = [at_s for at_s, _ in steps]
        self._replicas = [replicas for _, replicas in steps]

    def look(self, now: float) -> None:
        pass

    def ask(self, now: float, replicas: int) -> Ask | None:
        wanted = self._replicas[max(0, bisect_right(self._at_s, now) - 1)]
        return Ask(wanted, 1.0 if wanted == replicas else float("inf"))


def ours(policy: Policy, unix_s: float = 0.0) -> Maker:
    return lambda pool, requests: Ours(policy, pool, requests, unix_s)


def on_waiting(target: float) -> Maker:
    """An HPA on `vllm:num_requests_waiting`."""
    return lambda pool, _: GaugeRule(pool, lambda member: member.waiting, _target(target))


def on_kv_usage(target_ratio: float) -> Maker:
    """An HPA on `vllm:kv_cache_usage_perc`."""
    return lambda pool, _: GaugeRule(pool, lambda member: member.kv_usage_ratio, _target(target_ratio))


def on_rate(per_server_per_s: float) -> Maker:
    return lambda _, requests: RateRule(requests, _target(per_server_per_s))


def planned(steps: Sequence[tuple[float, int]]) -> Maker:
    return lambda _pool, _requests: Planned(steps)


def _target(value: float) -> float:
    if not (isfinite(value) and value > 0.0):
        raise ValueError(f"a rule needs a target above 0, not {value}")
    return value
