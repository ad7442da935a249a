"""What does the operator say of how a pool is to scale?"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from extproc.autoscale.cold_start import ColdStart, lead_s
from extproc.autoscale.schedule import Schedule
from extproc.autoscale.thresholds import UNCALIBRATED, Calibration, Thresholds

DOWN_RATIO = 0.7  # of every threshold: the load must stay under it before a server goes
_COLD_START = ColdStart()


@dataclass(frozen=True, slots=True)
class Policy:
    """One pool's. Raises ValueError for what cannot be meant."""

    max_replicas: int
    min_replicas: int = 1
    calibration: Calibration | None = None  # None: thresholds are safe defaults
    ttft_target_s: float | None = None  # of the 99th percentile; None: nothing is judged
    design_growth_per_s2: float = 0.0  # requests/s that the load may grow by each second, per server
    cold_start: ColdStart = _COLD_START
    schedules: tuple[Schedule, ...] = ()
    ease: bool = True  # with a calibration: a pool that is calm needs less room; see `calm`
    window_s: float = 60.0  # over which signals are averaged
    scrape_s: float = 1.0  # between two looks at a server
    sync_s: float = 15.0  # until whoever starts servers looks at the recommendation
    sample_stale_after_s: float = 10.0
    down_after_s: float = 300.0  # at least; and at least two cold starts
    stale_after_s: float = 300.0  # a recommendation that is older by what is known of the load is none

    def __post_init__(self) -> None:
        if self.min_replicas < 0 or self.max_replicas < 1:
            raise ValueError("min_replicas must be at least 0, and max_replicas at least 1")
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is more than max_replicas {self.max_replicas}")
        for name in ("window_s", "sample_stale_after_s", "stale_after_s"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0.0):
                raise ValueError(f"{name} {getattr(self, name)} must be greater than 0")
        for name in ("design_growth_per_s2", "scrape_s", "sync_s", "down_after_s"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0.0):
                raise ValueError(f"{name} {getattr(self, name)} must be at least 0")
        if self.ttft_target_s is not None and not (isfinite(self.ttft_target_s) and self.ttft_target_s > 0.0):
            raise ValueError(f"ttft_target_s {self.ttft_target_s} must be greater than 0")

    def lead_s(self, cold_start_s: float) -> float:
        return lead_s(cold_start_s, self.window_s, self.scrape_s, self.sync_s)

    def down_s(self, cold_start_s: float) -> float:
        """How long the load must stay low before a server goes."""
        return max(self.down_after_s, 2.0 * cold_start_s)

    def thresholds(self, growth_per_s2: float, lead_s: float) -> Thresholds:
        """Of one server, when its load may grow so during the lead."""
        return UNCALIBRATED if self.calibration is None else self.calibration.led(growth_per_s2, lead_s)

    @property
    def knee(self) -> Thresholds:
        """Of one server, when nothing grows."""
        return self.thresholds(0.0, 0.0)
