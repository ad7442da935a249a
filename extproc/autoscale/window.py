"""What was a gauge on average over the last minute, if it was read now and then?

Each value holds until the next one, but no longer than a stated time: a gap is not zero and not the last value for
ever, it is left out. So a mean is weighted by time, and samples that come in a bunch count no more than others.
"""

from __future__ import annotations

from collections import deque
from math import fsum, isfinite
from operator import mul

from extproc.autoscale.known import Measured, known

PARTS = 12  # of a window; shorter pieces are joined: memory and time are bounded however often a gauge is read


class Window:
    """One gauge of one server."""

    __slots__ = ("_at_s", "_gap_s", "_length_s", "_piece_s", "_pieces", "_value")

    def __init__(self, length_s: float, gap_s: float, *, parts: int = PARTS) -> None:
        """`gap_s`: a value is believed for so long."""
        self._length_s = length_s
        self._piece_s = length_s / parts
        self._gap_s = gap_s
        self._pieces: deque[tuple[float, float, float]] = deque()  # from, until, value; by time
        self._at_s = float("-inf")  # of the last reading
        self._value: float | None = None  # of it

    def add(self, at_s: float, value: float | None) -> None:
        """A reading; None, or a value that no gauge can have: unknown from then on. Older ones than the last are
        ignored."""
        if at_s <= self._at_s:
            return
        piece = self._open(at_s)
        if piece is not None:
            self._append(piece)
        self._at_s, self._value = at_s, known(value)
        while self._pieces and self._pieces[0][1] <= at_s - self._length_s:
            self._pieces.popleft()

    def mean(self, now: float, *, over_s: float | None = None, leave_out: float = 0.0) -> Measured | None:
        """Over the window that ends `now`; None: nothing is known of it. One reading alone is its own mean.

        `over_s`: over the end of the window that is so long. `leave_out`: of the time that is known, this share is left
        out: that with the greatest values.
        """
        start = now - (self._length_s if over_s is None else over_s)
        pieces = list(self._pieces)
        last = self._open(now)
        if last is not None:
            pieces.append(last)
        if not pieces:
            fresh = self._value is not None and self._at_s == now
            return Measured(self._value, 0.0) if fresh and self._value is not None else None
        lengths, values = [], []
        for since, until, value in pieces:
            if until > start:
                lengths.append(until - since if since >= start else until - start)
                values.append(value)
        total_s = sum(lengths)
        if not total_s:
            return None
        if leave_out:
            lengths, values = _lowest(lengths, values, total_s * (1.0 - leave_out))
            total_s = sum(lengths)
        average = sum(map(mul, lengths, values)) / total_s
        if not isfinite(average):  # values of such a size are no requests, but no reason to fail either
            average = fsum(value * (length / total_s) for length, value in zip(lengths, values, strict=True))
        newest_s = self._at_s if self._value is not None else pieces[-1][1]
        return Measured(average, max(0.0, now - newest_s))

    def _open(self, now: float) -> tuple[float, float, float] | None:
        """The piece that began with the last reading, up to now."""
        if self._value is None or now <= self._at_s:
            return None
        return self._at_s, min(now, self._at_s + self._gap_s), self._value

    def _append(self, piece: tuple[float, float, float]) -> None:
        since, until, value = piece
        if self._pieces:
            before, end, other = self._pieces[-1]
            if end == since and until - before <= self._piece_s:
                share = (end - before) / (until - before)
                self._pieces[-1] = before, until, other * share + value * (1.0 - share)
                return
        self._pieces.append(piece)


def _lowest(lengths: list[float], values: list[float], most_s: float) -> tuple[list[float], list[float]]:
    """Of these pieces the lowest, so many seconds of them."""
    pieces = sorted(zip(values, lengths, strict=True))
    out_s, out = [], []
    for value, length_s in pieces:
        out_s.append(min(length_s, most_s))
        out.append(value)
        most_s -= out_s[-1]
        if most_s <= 0.0:
            break
    return out_s, out
