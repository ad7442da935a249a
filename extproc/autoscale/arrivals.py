"""How many requests come a second, how long are they, how fast does that grow, and what was the fastest rise?

Requests are those of the router's own counter, not what servers complete: a server that is full completes no more,
however many come. Counters are looked at when it suits; what came between two looks is spread over the time between
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from extproc.autoscale.growth import slope
from extproc.autoscale.known import Measured, known
from extproc.autoscale.reading import Offered

PARTS = 6  # of a window: the points of the growth
_MOST_MARKS = 1024
_GROWTH_POINTS = 24  # at most: more cost time and tell little
_QUARTERS = 4  # a step can stand in two of the three rises between them, and not in all
_RISE_PARTS = 3  # the rate that counts for a rise is that of half a window: shorter bursts are what queues are for
_RISES_KEPT_S = 3600.0
_RISES_KEPT = 24


@dataclass(frozen=True, slots=True)
class _Mark:
    at_s: float
    counts: Offered


class Arrivals:
    """The requests of one pool. Memory is bounded."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._part_s = window_s / PARTS
        self._lead_s = 0.0  # as it was last told
        self._marks: deque[_Mark] = deque(maxlen=_MOST_MARKS)  # one a part, by time
        self._last: _Mark | None = None  # the last look
        self._lengths: dict[str, tuple[float, float]] = {}  # tokens and when, by name
        self._rises: deque[tuple[float, float]] = deque(maxlen=_RISES_KEPT)  # since when, the greatest of an hour

    def add(self, at_s: float, counts: Offered, lead_s: float) -> None:
        """A look at the counters. Counters that fell began anew: what was before is forgotten, except for lengths."""
        self._lead_s = lead_s
        counts = Offered(*(known(getattr(counts, name)) for name in _NAMES))
        if self._last is not None:
            if at_s <= self._last.at_s:
                return
            if _fell(self._last.counts, counts):
                self._marks.clear()
        self._last = _Mark(at_s, counts)
        if self._marks and at_s - self._marks[-1].at_s < self._part_s:
            return
        self._marks.append(self._last)
        while len(self._marks) > 2 and self._marks[1].at_s <= at_s - lead_s - 2 * self._window_s:
            self._marks.popleft()
        self._note_lengths()
        self._note_rise(at_s, lead_s)

    def rate_per_s(self, now: float) -> Measured | None:
        """Over the window; None: not counted, or not for a part of it yet."""
        since = self._since(now - self._window_s)
        if since is None or self._last is None:
            return None
        rate = _rate(since, self._last)
        return None if rate is None else Measured(rate, max(0.0, now - self._last.at_s))

    def growth_per_s2(self, now: float) -> float | None:
        """How much the rate grows each second (negative: falls), over a lead, and two windows at least; None: too
        little is known.

        What is counted for a short time seems to grow by chance: the error of a slope falls with the length to the
        power of 1.5. Nor does it grow faster than it rose from each quarter of this time to the next: what jumps once
        is a step or a burst, and no ramp.
        """
        span_s = max(2.0 * self._window_s, self._lead_s)
        marks = [mark for mark in self._marks if mark.at_s >= now - span_s - self._part_s]
        stride = 1 + max(0, len(marks) - 2) // _GROWTH_POINTS
        grows = slope(_rates(marks[::-1][::stride][::-1]))
        if grows is None or grows <= 0.0:
            return grows
        parts = _rates([self._since(now - span_s * (1.0 - n / _QUARTERS)) for n in range(_QUARTERS + 1)])
        if len(parts) < _QUARTERS:
            return None
        rises = [(late - early) / (late_s - early_s) for (early_s, early), (late_s, late) in pairwise(parts)]
        return min(grows, max(0.0, min(rises)))

    def tokens(self, name: str, now: float) -> Measured | None:
        """A mean length, of a request or an answer: `prompt_tokens`, `uncached_tokens`, `output_tokens`. When nothing
        came lately it is that of those that came last."""
        kept = self._lengths.get(name)
        return None if kept is None else Measured(kept[0], max(0.0, now - kept[1]))

    @property
    def fastest_rise_per_s(self) -> float | None:
        """By how much the rate grew at most within one lead, in the last 24 hours that were looked at; None: too
        little was seen."""
        return max((rise for _, rise in self._rises), default=None)

    def _since(self, at_s: float) -> _Mark | None:
        """The last mark not after that; else the first there is."""
        found = None
        for mark in self._marks:
            if found is not None and mark.at_s > at_s:
                break
            found = mark
        return found

    def _note_lengths(self) -> None:
        if self._last is None:
            return
        since = self._since(self._last.at_s - self._window_s)
        if since is None:
            return
        count = _grown(since.counts, self._last.counts, "begun")
        for name in _LENGTHS:
            tokens = _grown(since.counts, self._last.counts, name)
            length = known(tokens / count) if tokens is not None and count else None
            if length is not None:
                self._lengths[name] = (length, self._last.at_s)

    def _note_rise(self, now: float, lead_s: float) -> None:
        marks = list(self._marks)
        if len(marks) <= _RISE_PARTS:
            return
        rates = [
            (after.at_s, rate)
            for before, after in zip(marks, marks[_RISE_PARTS:], strict=False)
            if (rate := _rate(before, after)) is not None
        ]
        if not rates or rates[-1][0] != now:
            return
        rise = rates[-1][1] - min(rate for at_s, rate in rates if at_s >= now - lead_s)
        if not self._rises or now - self._rises[-1][0] >= _RISES_KEPT_S:
            self._rises.append((now, rise))
        elif rise > self._rises[-1][1]:
            self._rises[-1] = (self._rises[-1][0], rise)


_LENGTHS = ("prompt_tokens", "uncached_tokens", "output_tokens")
_NAMES = ("requests", "begun", *_LENGTHS)


def _grown(before: Offered, after: Offered, name: str) -> float | None:
    then, now = getattr(before, name), getattr(after, name)
    return None if then is None or now is None else now - then


def _fell(before: Offered, after: Offered) -> bool:
    return any((_grown(before, after, name) or 0.0) < 0.0 for name in _NAMES)


def _rates(marks: Iterable[_Mark | None]) -> list[tuple[float, float]]:
    """From each to the next: the middle of the time, and the rate."""
    out = []
    for before, after in pairwise(mark for mark in marks if mark is not None):
        rate = _rate(before, after)
        if rate is not None:
            out.append(((before.at_s + after.at_s) / 2, rate))
    return out


def _rate(before: _Mark, after: _Mark) -> float | None:
    requests = _grown(before.counts, after.counts, "requests")
    took_s = after.at_s - before.at_s
    return None if requests is None or took_s <= 0.0 else known(requests / took_s)
