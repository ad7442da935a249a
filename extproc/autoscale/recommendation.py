"""What is recommended, and by which numbers?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from extproc.autoscale.policy import DOWN_RATIO


class Verdict(StrEnum):
    """What the time to first token says of the thresholds. It never asks for servers: it rises too late."""

    OK = "ok"
    LATE = "late"  # over its target, and no signal asked for more: the thresholds are too high
    EARLY = "early"  # past the knee of the load test, and far below its target: they are too low
    AT_CAPACITY = "at_capacity"  # over its target, and there may be no more servers
    SCALING = "scaling"  # over its target, and more servers are asked for or starting


class SignalName(StrEnum):
    """What may ask for servers."""

    REQUESTS = "requests"  # Little's law: the requests that will be there at once
    PREFILL = "prefill"  # Little's law: the prompt tokens to compute each second
    KV_TOKENS = "kv_tokens"  # Little's law: the tokens that will be in KV caches at once
    WAITING = "waiting"
    KV_USAGE = "kv_usage"
    DEMAND = "demand"  # requests come, and there is no server
    SCHEDULE = "schedule"
    MIN_REPLICAS = "min_replicas"


@dataclass(frozen=True, slots=True)
class Signal:
    """One of them. None: unknown."""

    name: SignalName
    value: float | None  # of the first three in all, else per server
    threshold: float | None  # per server
    replicas: int | None  # so many it asks for; None: it asks for nothing
    age_s: float | None  # of what it was measured from
    words: str  # the numbers as a phrase


@dataclass(frozen=True, slots=True)
class Recommendation:
    """How many servers a pool should have."""

    at_s: float  # monotonic clock
    desired: int | None  # servers; None: nothing is known yet, which is not 0
    reason: str  # one sentence with the numbers
    signals: tuple[Signal, ...]
    provisioned: int  # ready, starting and stale; draining excluded
    ready: int
    starting: int
    draining: int
    stale_servers: int  # there, and nothing is known of their load
    verdict: Verdict | None  # None: the time to first token, or its target, is not known
    ttft_p99_s: float | None
    ttft_target_s: float | None
    age_s: float | None  # since the load of a server was last known; None: never
    stale: bool  # too old to go by: to be told to nobody as a number
    held: str | None  # why load does not change the number now; None: it may
    calibrated: bool  # else the thresholds are safe defaults
    cold_start_s: float
    lead_s: float
    min_too_low: int | None  # so many servers the fastest ramp needs before others can come; None: min_replicas do
    calm: bool = False  # it has fared so well, and for so long, that it needs less room; see `calm`
    room: float = 1.0  # so many times the load of the thresholds a server may have by Little's law
    down_ratio: float = DOWN_RATIO  # of the thresholds: under it a server may go

    @property
    def doubt(self) -> str | None:
        """Why it is no number to go by; None: it is one."""
        if self.desired is None:
            return self.reason
        if not self.stale:
            return None
        if self.age_s is None:
            return "the load of its servers is not known"
        return f"the load of its servers was last known {self.age_s:.0f} s ago"
