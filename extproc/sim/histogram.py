"""What was observed, counted in buckets as Prometheus does?"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate


class Histogram:
    """Counts per upper bound (inclusive) and the sum. The bucket above the last bound is implied."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds  # ascending, without +Inf
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` as seen `times` times."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self._counts)

    def cumulative(self) -> list[int]:
        """Observations at or below each bound, the last one for +Inf."""
        return list(accumulate(self._counts))
