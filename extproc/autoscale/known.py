"""Which numbers can be believed, and how are they counted up?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, fsum, isfinite

_ROUNDING = 1e-9  # 3.0000000001 servers are three


@dataclass(frozen=True, slots=True)
class Measured:
    """A value, and how old what it was measured from is at least."""

    value: float
    age_s: float


def known(value: float | None) -> float | None:
    """The value if a gauge or counter can have it: finite and not negative. Else None: unknown, never 0."""
    return value if value is not None and isfinite(value) and value >= 0.0 else None


def mean(values: Iterable[float]) -> float | None:
    """The same in any order; None: there are none, or their sum is too large for a float."""
    listed = list(values)
    try:
        return fsum(listed) / len(listed) if listed else None
    except OverflowError:
        return None


def whole(servers: float, most: int) -> int:
    """So many whole servers, at most `most`; a number that is none comes to `most` too."""
    return max(0, ceil(servers - _ROUNDING)) if servers < most else most
