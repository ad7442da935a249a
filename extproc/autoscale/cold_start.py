"""How long does it take until a server that is asked for serves?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from extproc.autoscale.known import known

ENOUGH_STARTS = 3  # fewer may all have found their image and weights in a cache


@dataclass(frozen=True, slots=True)
class ColdStart:
    """What the operator expects: 141 GB at 2 GB/s are 70 s. Seconds, where not said otherwise."""

    node_s: float = 0.0  # until there is a machine; nobody sees a server before
    image_s: float = 30.0
    weights_gb: float = 16.0
    storage_gb_per_s: float = 2.0
    engine_s: float = 60.0  # from weights loaded to the first answer: compiling, CUDA graphs, measuring the memory

    def __post_init__(self) -> None:
        for name in ("node_s", "image_s", "weights_gb", "engine_s"):
            if known(getattr(self, name)) is None:
                raise ValueError(f"{name} {getattr(self, name)} must be at least 0")
        if not known(self.storage_gb_per_s):
            raise ValueError(f"storage_gb_per_s {self.storage_gb_per_s} must be greater than 0")

    @property
    def seen_s(self) -> float:
        """The part that begins when the server is first seen."""
        return self.image_s + self.weights_gb / self.storage_gb_per_s + self.engine_s

    def total_s(self, starts_s: Sequence[float] = ()) -> float:
        """With the measured starts, which take the place of all but the machine: their 90th percentile.

        While they are few, the expectation counts unless they took longer.
        """
        measured = sorted(start for start in starts_s if known(start) is not None)
        if not measured:
            return self.node_s + self.seen_s
        p90_s = measured[ceil(0.9 * len(measured)) - 1]
        return self.node_s + (p90_s if len(measured) >= ENOUGH_STARTS else max(p90_s, self.seen_s))


def lead_s(cold_start_s: float, window_s: float, scrape_s: float, sync_s: float) -> float:
    """How long from the load that needs a server until it serves: seen late by half the window and an interval between
    two looks, acted upon late by the platform's own interval."""
    return cold_start_s + window_s / 2 + scrape_s + sync_s
