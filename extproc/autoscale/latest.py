"""What was recommended last, for those who tell it to others?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from extproc.autoscale.recommendation import Recommendation


class Latest(Protocol):
    """Of all pools that get recommendations."""

    @property
    def names(self) -> Collection[str]:
        """Of these pools."""

    def get(self, pool: str) -> Recommendation | None:
        """None: it was not looked at yet. Raises KeyError for a pool that gets none."""
