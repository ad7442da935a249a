"""How many requests come a second, how long are they, how fast does that grow, and what was the fastest rise?

Requests are those of the router's own counter, not what servers complete: a server that is full completes no more,
however many come. Counters are looked at when it suits; what came between two looks is spread over the time between
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from extproc.autoscale.growth import jumps, slope
from extproc.autoscale.known import Measured, known
from extproc.autoscale.reading import Offered

BURST_RATIO = 1.0 / 3.0  # of a window: what lasts no longer is a burst, for which queues are there
PARTS = 6  # of a window: the points of the growth
_MOST_MARKS = 1024
_GROWTH_POINTS = 24  # at most: more cost time and tell little
_GROWTH_WINDOWS = 5  # at least, of which a growth is read
_WINDOWS = 3  # at most, over which what does not change is counted
_CHANCE = 2.5  # standard deviations: what differs by less may be chance
_LIKELY = 1.64  # so much to one side chance makes one time in twenty
_CONCENTRATED = 3.0  # by so much the busiest third of a window differs from the rest where it is a burst
_SURE = 4.0  # and what differs by more is none, however often one looks
_JUMP = 1.3  # times as much in a window as in the one before
_RISE_PARTS = 3  # the rate that counts for a rise is that of half a window: shorter bursts are what queues are for
_RISES_KEPT_S = 3600.0
_RISES_KEPT = 24


@dataclass(frozen=True, slots=True)
class _Mark:
    at_s: float
    counts: Offered
    running: float | None  # requests at once, on all servers; None: not known


class Arrivals:
    """The requests of one pool. Memory is bounded."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._part_s = window_s / PARTS
        self._lead_s = 0.0  # as it was last told
        self._marks: deque[_Mark] = deque(maxlen=_MOST_MARKS)  # one a part, by time
        self._last: _Mark | None = None  # the last look
        self._grows: tuple[float, _Mark | None, tuple[float | None, float]] | None = None  # when, after which look
        self._lengths: dict[str, tuple[float, float]] = {}  # tokens and when, by name
        self._rises: deque[tuple[float, float]] = deque(maxlen=_RISES_KEPT)  # since when, the greatest of an hour

    def add(self, at_s: float, counts: Offered, lead_s: float, running: float | None = None) -> None:
        """A look at the counters. Counters that fell began anew: what was before is forgotten, except for lengths.

        `running`: requests at once, on all servers; None: not known.
        """
        self._lead_s = lead_s
        counts = Offered(*(known(getattr(counts, name)) for name in _NAMES))
        if self._last is not None:
            if at_s <= self._last.at_s:
                return
            if _fell(self._last.counts, counts):
                self._marks.clear()
        self._last = _Mark(at_s, counts, running)
        if self._marks and at_s - self._marks[-1].at_s < self._part_s:
            return
        self._marks.append(self._last)
        while len(self._marks) > 2 and self._marks[1].at_s <= at_s - self._growth_span_s - 2 * self._window_s:
            self._marks.popleft()
        self._note_lengths()
        self._note_rise(at_s, lead_s)

    def rate_per_s(self, now: float) -> Measured | None:
        """Over the window, or up to three while it stays as it is; None: not counted, or not for a part of one yet.

        What comes in a time is so many by chance: a longer time tells better. A rate that changed, and not by chance,
        is told by the last window alone.
        """
        rate = self._steady(now, _requests)
        if rate is None or self._last is None:
            return None
        # A mean is that of the middle of its time.
        grows = max(0.0, (self.growth_per_s2(now) or 0.0) - self.growth_chance_per_s2(now))
        value = known(rate.value + grows * max(0.0, rate.over_s - self._window_s) / 2.0)
        return None if value is None else Measured(value, max(0.0, now - self._last.at_s))

    def growth_per_s2(self, now: float) -> float | None:
        """How much the rate grows each second (negative: falls), over the longest time, of two windows to five (or to
        the lead), that a line tells; None: too little is known.

        What is counted for a short time seems to grow by chance: the error of a slope falls with the length to the
        power of 1.5. What a single jump tells as well as a line does is a step or a burst, and no ramp.
        """
        return self._growth(now)[0]

    def growth_chance_per_s2(self, now: float) -> float:
        """How much of the growth chance makes at most, but for one time in twenty: requests that come by chance give a
        line over a time an error of the root of 12 x rate / time cubed."""
        rate, span_s = self._steady(now, _requests, 1), self._growth(now)[1]
        return 0.0 if rate is None else _LIKELY * sqrt(12.0 * rate.value / (span_s * span_s * span_s))

    def _growth(self, now: float) -> tuple[float | None, float]:
        """And over which time."""
        if self._grows is None or self._grows[:2] != (now, self._last):
            self._grows = (now, self._last, self._longest_line(now))
        return self._grows[2]

    def _longest_line(self, now: float) -> tuple[float | None, float]:
        shorter = [n * self._window_s for n in range(_GROWTH_WINDOWS, 1, -1)]
        spans_s = [self._growth_span_s, *(each for each in shorter if each < self._growth_span_s)]
        lately = self._steady(now, _requests, 1)
        whole = None
        for span_s in spans_s:
            marks = [mark for mark in self._marks if mark.at_s >= now - span_s - self._part_s]
            stride = 1 + max(0, len(marks) - 2) // _GROWTH_POINTS
            rates = _rates(marks[::-1][::stride][::-1])
            grows = slope(rates)
            longest = span_s == spans_s[0]
            # In a short time, and looked for in several, noise makes a line of a jump.
            chance = 0.0 if longest or lately is None else lately.value / (stride * self._part_s)
            if grows is not None and grows > 0.0 and not jumps(rates, _SURE * _SURE * chance):
                return grows, span_s
            if longest:
                whole = 0.0 if grows is not None and grows > 0.0 else grows
        return whole, spans_s[0]

    @property
    def _growth_span_s(self) -> float:
        return max(_GROWTH_WINDOWS * self._window_s, self._lead_s)

    def jumped(self, now: float) -> bool:
        """Whether the last window has so much more than the one before that a server needs the room for it."""
        last, recent, since = self._last, self._since(now - self._window_s), self._since(now - 2 * self._window_s)
        if last is None or recent is None or since is None:
            return False
        lately, before = _requests(recent, last), _requests(since, recent)
        if lately is None or before is None or lately.value <= _JUMP * before.value:
            return False  # which most looks find, before any burst is looked for
        lately = self._calm(recent, lately) or lately  # bursts are what queues are for
        usual = (lately.value + before.value) / 2.0
        return lately.value > _JUMP * before.value and _differ(lately, before, usual, _SURE)

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
        for name in _LENGTHS:
            length = self._steady(self._last.at_s, _answers if name == "output_tokens" else _tokens(name))
            if length is not None:
                self._lengths[name] = (length.value, self._last.at_s)

    def _steady(self, now: float, counted: _Counted, windows: int = _WINDOWS) -> _Count | None:
        """Over the longest time, of up to so many windows, in which the last window is like what was before but for
        chance: that of n requests differs by one part in the root of n."""
        last, recent = self._last, self._since(now - self._window_s)
        if last is None or recent is None:
            return None
        lately = counted(recent, last)
        if lately is None or not lately.requests:
            return lately
        found = lately
        for n in range(2, windows + 1):
            since = self._since(now - n * self._window_s)
            if since is None or since.at_s >= recent.at_s:
                break
            before, whole = counted(since, recent), counted(since, last)
            if before is None or whole is None or not before.requests:
                break
            if _differ(lately, before, whole.value):
                # Bursts are what queues are for: the rest of the window tells whether the rate changed.
                calm = self._calm(recent, lately) if counted is _requests else None
                changed = calm is None or _differ(calm, before, whole.value)
                if calm is None or (changed and calm.value < before.value):  # there were such bursts before, too
                    break
                if changed:
                    return calm if n == 2 else found
            found = whole
        return found

    def _calm(self, recent: _Mark, lately: _Count) -> _Count | None:
        """What came since that mark, without its busiest third; None: that is no burst."""
        marks = [mark for mark in self._marks if mark.at_s >= recent.at_s]
        if self._last is not None and marks[-1] is not self._last:
            marks.append(self._last)
        parts = [part for pair in pairwise(marks) if (part := _requests(*pair)) is not None]
        parts.sort(key=lambda part: part.value, reverse=True)
        left_s = sum(part.over_s for part in parts) * BURST_RATIO
        busy, calm = _NONE, _NONE
        for part in parts:
            over_s = min(part.over_s, left_s)
            left_s -= over_s
            busy, calm = busy.and_(part.value, over_s), calm.and_(part.value, part.over_s - over_s)
        return calm if calm.requests and _differ(busy, calm, lately.value, _CONCENTRATED) else None

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


@dataclass(frozen=True, slots=True)
class _Count:
    value: float
    requests: float  # that it was counted from
    over_s: float = 0.0  # and in which time

    def and_(self, per_s: float, for_s: float) -> _Count:
        """And requests at such a rate for so long."""
        requests, over_s = self.requests + per_s * for_s, self.over_s + for_s
        return _Count(requests / over_s if over_s else 0.0, requests, over_s)


_NONE = _Count(0.0, 0.0)


_Counted = Callable[[_Mark, _Mark], _Count | None]
_LENGTHS = ("prompt_tokens", "uncached_tokens", "output_tokens")
_NAMES = ("requests", "begun", *_LENGTHS)


def _differ(one: _Count, other: _Count, usual: float, chance: float = _CHANCE) -> bool:
    """Whether by more than chance (standard deviations) makes of what is `usual`."""
    if not one.requests or not other.requests:
        return bool(one.requests or other.requests)
    return abs(one.value - other.value) > chance * usual * sqrt(1.0 / one.requests + 1.0 / other.requests)


def _grown(before: Offered, after: Offered, name: str) -> float | None:
    then, now = getattr(before, name), getattr(after, name)
    return None if then is None or now is None else now - then


def _requests(before: _Mark, after: _Mark) -> _Count | None:
    rate = _rate(before, after)
    return None if rate is None else _Count(rate, rate * (after.at_s - before.at_s), after.at_s - before.at_s)


def _tokens(name: str) -> _Counted:
    def counted(before: _Mark, after: _Mark) -> _Count | None:
        requests, tokens = _grown(before.counts, after.counts, "begun"), _grown(before.counts, after.counts, name)
        length = known(tokens / requests) if tokens is not None and requests else None
        return None if length is None or not requests else _Count(length, requests)

    return counted


def _answers(before: _Mark, after: _Mark) -> _Count | None:
    """What is generated belongs to what began, and to what ran before and ended since: of that, and of what runs now,
    half was still to come. Else answers would seem shorter while a rate rises, and longer while a queue is worked off.
    """
    found = _tokens("output_tokens")(before, after)
    if found is None or before.running is None or after.running is None:
        return found
    answers = found.requests - (after.running - before.running) / 2.0
    length = known(found.value * found.requests / answers) if answers > 0.0 else None
    return found if length is None else _Count(length, found.requests)


def _fell(before: Offered, after: Offered) -> bool:
    return any((_grown(before, after, name) or 0.0) < 0.0 for name in _NAMES)


def _rates(marks: Iterable[_Mark]) -> list[tuple[float, float]]:
    """From each to the next: the middle of the time, and the rate."""
    out = []
    for before, after in pairwise(marks):
        rate = _rate(before, after)
        if rate is not None:
            out.append(((before.at_s + after.at_s) / 2, rate))
    return out


def _rate(before: _Mark, after: _Mark) -> float | None:
    requests = _grown(before.counts, after.counts, "requests")
    took_s = after.at_s - before.at_s
    return None if requests is None or took_s <= 0.0 else known(requests / took_s)
