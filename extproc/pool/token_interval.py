"""How long does a server take from one token of an answer to the next, when its batch is full?

By the difference between two samples of vLLM's histogram: its whole history says mostly how quick the server is when
there is little to do. A step takes longer the more requests it is for, so what was measured with the largest batch
counts; what is measured later with a batch hardly smaller takes its place.
"""

from __future__ import annotations

from extproc.pool.sample import Histogram, LoadSample

ENOUGH_TOKENS = 1000.0  # the last percent of them are ten
FULL_RATIO = 0.9  # of the largest batch seen


class TokenInterval:
    """The 99th percentile at a full batch, in seconds."""

    __slots__ = ("_base", "_batch", "_largest", "p99_s")

    def __init__(self) -> None:
        self.p99_s: float | None = None  # None: the samples have not told yet
        self._base: Histogram | None = None  # where the present window begins
        self._batch = 0.0  # the fewest requests running at a sample of the window
        self._largest = 0.0

    def observe(self, sample: LoadSample) -> None:
        histogram, running = sample.token_interval, sample.running
        if histogram is None or running is None:
            return
        base = self._base
        if base is not None and histogram.count < base.count:  # counters that began anew: a new process
            self.p99_s, self._largest = None, 0.0
            base = None
        if base is None or base.bounds_s != histogram.bounds_s:
            self._base, self._batch = histogram, running
            return
        self._batch = min(self._batch, running)
        if histogram.count - base.count < ENOUGH_TOKENS:
            if not running:  # the window would join what is before the pause and what is after
                self._base = None
            return
        if self._batch and self._batch >= FULL_RATIO * self._largest:
            self._largest = max(self._largest, self._batch)
            self.p99_s = histogram.since(base).quantile_s(0.99)
        self._base, self._batch = histogram, running
