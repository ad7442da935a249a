"""The last recommendations of pools, as a test wants them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from extproc.autoscale.latest import Remarks
from extproc.autoscale.policy import Policy
from extproc.autoscale.recommendation import Recommendation

FOUR = Recommendation(
    at_s=0.0,
    desired=4,
    reason="4 stay: no fewer are allowed",
    signals=(),
    provisioned=4,
    ready=4,
    starting=0,
    draining=0,
    stale_servers=0,
    verdict=None,
    ttft_p99_s=None,
    ttft_target_s=None,
    age_s=0.5,
    stale=False,
    held=None,
    calibrated=True,
    cold_start_s=60.0,
    lead_s=100.0,
    min_too_low=None,
)


class Known:
    """An `autoscale.latest.Explained`."""

    def __init__(self, **pools: Recommendation | None) -> None:
        self.pools = dict(pools)

    @property
    def names(self) -> list[str]:
        return list(self.pools)

    def get(self, pool: str) -> Recommendation | None:
        return self.pools[pool]

    def policy(self, pool: str) -> Policy:
        return Policy(max_replicas=8)

    def remarks(self, pool: str) -> Remarks:
        return Remarks()

    def set(self, pool: str, desired: int | None, **changed: Any) -> None:
        self.pools[pool] = replace(FOUR, desired=desired, **changed)
