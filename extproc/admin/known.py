"""What do several servers come to, of which some do not tell?"""

from __future__ import annotations

from collections.abc import Iterable


def total(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None: none is."""
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def mean(values: Iterable[float | None]) -> float | None:
    """Likewise."""
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None
