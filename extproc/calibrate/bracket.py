"""Which rate is to be tried next, until the knee is between two that are close to each other?

From a low rate on, each is twice the last until one misses the target; then the geometric middle of the highest that
met it and the lowest that missed it, until these differ by less than the tolerance. If the first rate misses it
already, each is half the last.

A step may be lucky, and the knee is the highest of many that were not unlucky. So it is measured once more; if it then
misses the target, it counts as missed, and the search goes on below it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10, sqrt

LEAST_RATIO = 1 / 64  # of the first rate: below it the search gives up


@dataclass(frozen=True, slots=True)
class Tried:
    """A step that was decided."""

    rate_per_s: float
    met: bool


@dataclass(frozen=True, slots=True)
class Try:
    """This rate is next. `low`: the highest that met the target; `high`: the lowest that missed it."""

    rate_per_s: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Knee:
    """The highest rate that met the target, and the lowest that missed it."""

    rate_per_s: float
    missed_per_s: float


@dataclass(frozen=True, slots=True)
class TooLow:
    """Even so low a rate missed the target."""

    rate_per_s: float


def search(tried: Sequence[Tried], first_per_s: float, tolerance: float) -> Try | Knee | TooLow:
    """What follows from the steps so far, in any order. `tolerance`: 0.05 are 5 %."""
    high = min((each.rate_per_s for each in tried if not each.met), default=None)
    low = max(
        (each.rate_per_s for each in tried if each.met and (high is None or each.rate_per_s < high)), default=None
    )
    if high is None:
        return Try(rounded(first_per_s if low is None else 2.0 * low), low, high)
    if low is None:
        lower = rounded(high / 2.0)
        return TooLow(high) if lower < first_per_s * LEAST_RATIO else Try(lower, low, high)
    middle = rounded(sqrt(low * high))
    if high / low > 1.0 + tolerance and low < middle < high:
        return Try(middle, low, high)
    confirmed = sum(each.rate_per_s == low for each in tried) > 1
    return Knee(low, high) if confirmed else Try(low, low, high)


def rounded(rate_per_s: float) -> float:
    """To three digits: a rate is to be readable."""
    digits = 2 - floor(log10(rate_per_s))
    return round(rate_per_s, digits)
