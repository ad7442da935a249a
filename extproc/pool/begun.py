"""How many requests a second does a server begin?

By the count of vLLM's time-to-first-token histogram: a request that has had its first token waits no more.
"""

from __future__ import annotations

from extproc.pool.sample import LoadSample

HALF_LIFE_S = 10.0


class BeginRate:
    """The rate of the last seconds; what was before counts ever less."""

    __slots__ = ("_at_s", "_begun", "_count", "_span_s", "per_s")

    def __init__(self) -> None:
        self.per_s: float | None = None  # None: two samples that tell are needed
        self._count: float | None = None  # of the last sample that told
        self._at_s = 0.0
        self._begun = 0.0
        self._span_s = 0.0

    def observe(self, sample: LoadSample) -> None:
        if sample.ttft is None:
            return
        count, now = sample.ttft.count, sample.taken_at_s
        before, span_s = self._count, now - self._at_s
        if before is not None and span_s <= 0.0:
            return
        self._count, self._at_s = count, now
        if before is None or count < before:
            return  # the first, or counters that began anew
        keep = 0.5 ** (span_s / HALF_LIFE_S)
        self._begun = self._begun * keep + count - before
        self._span_s = self._span_s * keep + span_s
        self.per_s = self._begun / self._span_s
