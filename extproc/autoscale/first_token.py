"""What time to first token do 99 of 100 requests of a pool stay within, lately?

By the difference between two states of each server's histogram: its whole history says how it was, not how it is.
Servers whose histograms have different buckets are added up in those that all have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from extproc.autoscale.known import Measured, known
from extproc.pool.sample import Histogram, added_up

ENOUGH_REQUESTS = 100.0  # for a 99th percentile
_PARTS = 6  # of a window


class FirstTokens:
    """Those of one server, over a window."""

    __slots__ = ("_length_s", "_marks", "last")

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._marks: deque[tuple[float, Histogram]] = deque()  # one a part; the first may be older than the window
        self.last: tuple[float, Histogram] | None = None  # the reading, and when

    def add(self, at_s: float, histogram: Histogram | None) -> None:
        """A reading; one without a histogram says nothing."""
        if histogram is None or not histogram.bounds_s or (self.last is not None and at_s <= self.last[0]):
            return
        if any(known(count) is None for count in histogram.counts):
            return
        last = self.last[1] if self.last is not None else None
        if last is not None and not _follows(last, histogram):
            self._marks.clear()  # another process
        self.last = (at_s, histogram)
        if not self._marks or at_s - self._marks[-1][0] >= self._length_s / _PARTS:
            self._marks.append(self.last)
        while len(self._marks) > 1 and self._marks[1][0] <= at_s - self._length_s:
            self._marks.popleft()

    def lately(self, now: float) -> tuple[Histogram, float] | None:
        """What was observed within the window, and the age of the last reading; None: there was none within it."""
        if self.last is None or now - self.last[0] > self._length_s:
            return None
        return self.last[1].since(self._marks[0][1]), max(0.0, now - self.last[0])


def p99_s(servers: Iterable[tuple[Histogram, float] | None]) -> Measured | None:
    """Of all servers together, in seconds; None: of fewer than a hundred requests it cannot be told.

    Past the last finite bound of the histograms it is that bound.
    """
    read = [each for each in servers if each is not None and each[0].count > 0.0]
    total = added_up([histogram for histogram, _ in read])
    if total is None or total.count < ENOUGH_REQUESTS:
        return None
    value = total.quantile_s(0.99)
    return None if value is None else Measured(value, max(age_s for _, age_s in read))


def _follows(before: Histogram, after: Histogram) -> bool:
    """Whether `after` may be a later state of the same histogram."""
    return before.bounds_s == after.bounds_s and all(
        low <= high for low, high in zip(before.counts, after.counts, strict=True)
    )
