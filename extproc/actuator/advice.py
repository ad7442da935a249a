"""What does the service recommend, and may it be gone by?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any


class NoAdviceError(Exception):
    """There is nothing to go by now; the message says why."""


class UnknownPoolError(NoAdviceError):
    """The service recommends nothing for such a pool, ever."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation that counts. Servers, where not said otherwise."""

    desired: int  # within the bounds
    min_replicas: int
    max_replicas: int
    reason: str  # one sentence with the numbers
    cold_start_s: float | None = None  # how long a server is expected to take


def read(page: Any) -> Advice:
    """The recommendation of a page of `/autoscale/v1/pools/{pool}`. Raises NoAdviceError."""
    if not isinstance(page, Mapping):
        raise NoAdviceError("what the service answers is no recommendation; is it of another version?")
    if page.get("stale") or page.get("desired") is None:
        raise NoAdviceError(str(page.get("error") or page.get("reason") or "the service recommends nothing now"))
    desired = _count(page, "desired")
    low, high = _count(page, "min_replicas"), _count(page, "max_replicas")
    if high < low:
        raise NoAdviceError(f"the service says max_replicas {high} and min_replicas {low}")
    cold_start_s = page.get("cold_start_s")
    known = isinstance(cold_start_s, int | float) and isfinite(cold_start_s) and cold_start_s >= 0
    return Advice(
        desired=min(max(desired, low), high),
        min_replicas=low,
        max_replicas=high,
        reason=str(page.get("reason") or "no reason is given"),
        cold_start_s=cold_start_s if known else None,
    )


def _count(page: Mapping[str, Any], name: str) -> int:
    value = page.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise NoAdviceError(f"the service says {name} {value!r}, which is no number of servers; another version?")
    return value
