"""How many servers does Kubernetes' HorizontalPodAutoscaler make of what a metric asks for?

As its documentation has it, with its defaults: every 15 s it takes the ratio of the metric to its target; within a
tenth of 1 nothing happens, which at more than ten servers swallows one server more or less. It grows by no more than
double or four servers at a time, whichever is more, and shrinks to no fewer than the most that was asked for in the
last 300 s. From none it goes to one, as KEDA does, since a ratio says nothing then.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SYNC_S = 15.0
TOLERANCE = 0.1
STABILISATION_S = 300.0
_UP_SERVERS = 4  # in 15 s, or
_UP_RATIO = 2.0  # of what was there


@dataclass(frozen=True, slots=True)
class Ask:
    """What a metric comes to."""

    replicas: int
    ratio: float  # of the metric to its target, as there are now


class Hpa:
    """One of them. What it answers is what its Deployment is told."""

    def __init__(
        self,
        replicas: int,
        *,
        min_replicas: int,
        max_replicas: int,
        tolerance: float = TOLERANCE,
        stabilisation_s: float = STABILISATION_S,
    ) -> None:
        self.replicas = replicas
        self._min, self._max = min_replicas, max_replicas
        self._tolerance = tolerance
        self._stabilisation_s = stabilisation_s
        self._asked: deque[tuple[float, int]] = deque()  # when, and how many

    def sync(self, now: float, ask: Ask | None) -> int:
        """A look at the metric; None: it is not to be had, so nothing changes."""
        before = self.replicas
        if ask is None:
            return before
        wanted = ask.replicas
        if not before:
            wanted = min(wanted, 1)
        elif abs(ask.ratio - 1.0) <= self._tolerance:
            wanted = before
        wanted = max(self._min, min(wanted, self._max))
        if not self._asked:
            self._asked.append((now, before))
        self._asked.append((now, wanted))
        while self._asked[0][0] < now - self._stabilisation_s:
            self._asked.popleft()
        if wanted < before:
            wanted = min(before, max(replicas for _, replicas in self._asked))
        elif before:
            wanted = min(wanted, max(int(_UP_RATIO * before), before + _UP_SERVERS))
        self.replicas = wanted
        return wanted
