"""How fast does a rate grow, if noise and single bursts are not growth?

The slope of Theil and Sen: the median of the slopes between all pairs of points, which a few wild points do not move.
A slope counts only when the points rise or fall together by more than chance would have it (Kendall's test, 1 % on
both sides: it is asked every few seconds): a steady rate with noise has a slope of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import isfinite, sqrt
from statistics import median

ENOUGH_POINTS = 6
_CHANCE = 2.58  # standard deviations


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Of (time, value), per unit of time; 0: no more than chance. None: fewer than six points. Their order is free."""
    if len(points) < ENOUGH_POINTS:
        return None
    pairs = [(a, b) if a[0] < b[0] else (b, a) for a, b in combinations(points, 2) if a[0] != b[0]]
    if not pairs:
        return None
    score = sum((late[1] > early[1]) - (late[1] < early[1]) for early, late in pairs)
    n = len(points)
    if abs(score) <= _CHANCE * sqrt(n * (n - 1) * (2 * n + 5) / 18):
        return 0.0
    middle = median((late[1] - early[1]) / (late[0] - early[0]) for early, late in pairs)
    return middle if isfinite(middle) else None


def jumps(points: Sequence[tuple[float, float]], margin: float = 0.0) -> bool:
    """Whether one jump from a level to another tells (time, value) as well as a straight line does, by the squares that
    each takes away. `margin`: the line must take away so much more."""
    ordered = sorted(points)
    count = len(ordered)
    if count < 2:
        return True
    middle = sum(at for at, _ in ordered) / count
    mean = sum(value for _, value in ordered) / count
    spread = sum((at - middle) * (at - middle) for at, _ in ordered)
    along = sum((at - middle) * (value - mean) for at, value in ordered)
    line = along * along / spread if spread else 0.0
    step = low = 0.0
    for n, (_, value) in enumerate(ordered[:-1], 1):
        low += value - mean
        step = max(step, low * low * count / (n * (count - n)))
    return not step + margin < line  # values of such a size that this is no number are no requests
