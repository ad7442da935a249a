"""What does each pool have as its recommendation now? For those who tell it: pages, gauges, KEDA."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from extproc.autoscale.policy import Policy
from extproc.autoscale.recommendation import Recommendation


class Latest(Protocol):
    """The last recommendations."""

    @property
    def names(self) -> Collection[str]:
        """The pools that get one."""
        ...

    def get(self, pool: str) -> Recommendation | None:
        """The last of this pool; None: it was not looked at yet. Raises KeyError for a pool that gets none."""
        ...


@dataclass(frozen=True, slots=True)
class Remarks:
    """What else there is to say of a pool's recommendation."""

    warnings: tuple[str, ...] = ()  # for a person: why its numbers may be wrong
    tightened_to: float | None = None  # share of the rate that the load test allows; None: not to be tightened


class Explained(Latest, Protocol):
    """Recommendations with what they go by. Each raises KeyError for a pool that gets none."""

    def policy(self, pool: str) -> Policy: ...

    def remarks(self, pool: str) -> Remarks: ...
