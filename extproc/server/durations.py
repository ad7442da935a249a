"""How long did something take, over all times it was done? A histogram that costs a bisection to add to."""

from __future__ import annotations

from bisect import bisect_left

# Seconds. From 20 µs, what a pick over a few endpoints costs, to the 1 s that Envoy's message timeout allows.
BOUNDS_S = (20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 0.2, 1.0)


class Durations:
    """Counts by upper bound, not cumulative; the last counts what is longer than all bounds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """As Prometheus wants it: pairs of upper bound and count of all up to it; and the sum in seconds."""
        out, total = [], 0
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, float(total)))
        return out, self.sum_s
