"""How long did requests of a pool wait for their first token, by its servers' own word, since we watch?

Each server tells a histogram of its whole life. What is new in it since the last look is added up here over all servers
of the pool, those that have left included, so that the sum never falls. The buckets are ours, whatever a page says.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from extproc.pool.sample import Histogram

# Seconds; those of vLLM 0.32, so that its counts are taken over as they are. Of a bucket that ends between two of
# them it is only known that it ends by the upper one.
BOUNDS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)


class FirstTokenCounts:
    """Counts since start, of one pool."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0.0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, before: Histogram | None, after: Histogram | None) -> None:
        """Two looks at one server. What it had counted before the first look is not ours to tell; one whose counts
        fell, or whose buckets are others, was restarted, and all that it tells is new."""
        if before is None or after is None or after.counts == before.counts:
            return
        follows = after.bounds_s == before.bounds_s and all(
            now >= then for now, then in zip(after.counts, before.counts, strict=True)
        )
        new = after.since(before) if follows else after
        below = 0.0
        for bound_s, count in zip(new.bounds_s, new.counts, strict=True):
            if count > below:
                self._counts[bisect_left(BOUNDS_S, bound_s)] += count - below
                below = count
        self.sum_s += max(0.0, new.sum_s)

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """As Prometheus wants it: pairs of upper bound and count of all up to it; and the sum in seconds."""
        bounds = (*map(str, BOUNDS_S), "+Inf")
        return list(zip(bounds, accumulate(self._counts), strict=True)), self.sum_s
