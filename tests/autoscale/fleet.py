"""A pool that is looked at every five seconds, for tests with values in and out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from extproc.autoscale.cold_start import ColdStart
from extproc.autoscale.policy import Policy
from extproc.autoscale.reading import Offered, PoolReading, ServerReading, ServerState
from extproc.autoscale.recommendation import Recommendation
from extproc.autoscale.recommender import Recommender
from extproc.autoscale.thresholds import Calibration, Step

STEP_S = 5.0
COLD = ColdStart(node_s=0.0, image_s=10.0, weights_gb=16.0, storage_gb_per_s=2.0, engine_s=42.0)  # a minute


def steps(knee: float = 10.0) -> tuple[Step, ...]:
    """One server: 2 s a request (0.2 s + 90 tokens at 20 ms), waiting explodes at the knee."""
    return tuple(
        Step(
            rate_per_s=share * knee,
            waiting=waiting,
            running=share * knee * 2.0,
            kv_usage_ratio=0.8 * share,
            prefill_tokens_per_s=share * knee * 1000.0,
            ttft_s=0.2,
            token_interval_s=0.02,
        )
        for share, waiting in ((0.2, 0.0), (0.4, 0.1), (0.6, 0.2), (0.8, 0.6), (1.0, 2.0), (1.2, 50.0))
    )


CALIBRATION = Calibration(steps(), knee_per_s=10.0, uncached_tokens=1000.0, output_tokens=90.0, kv_tokens=26_125.0)


def policy(**changes: Any) -> Policy:
    return replace(Policy(max_replicas=20, calibration=CALIBRATION, cold_start=COLD, ttft_target_s=1.0), **changes)


def server(
    number: int,
    *,
    state: ServerState = ServerState.READY,
    waiting: float | None = 0.0,
    running: float | None = 5.0,
    kv: float | None = 0.2,
    **more: Any,
) -> ServerReading:
    return ServerReading(
        f"10.0.0.{number}:8000", state, 0.0, waiting=waiting, running=running, kv_usage_ratio=kv, **more
    )


def servers(count: int, **more: Any) -> list[ServerReading]:
    return [server(number, **more) for number in range(count)]


class Run:
    """One recommender over time."""

    def __init__(self, of: Policy | None = None) -> None:
        self.recommender = Recommender(policy() if of is None else of)
        self.now = 1000.0
        self.requests = self.output_tokens = 0.0
        self.seen: list[Recommendation] = []

    def look(self, there: Sequence[ServerReading], rate: float | None = 0.0, **changes: Any) -> Recommendation:
        """The next look, after five seconds at this rate. Prompts have 1,000 tokens to compute, answers 90."""
        self.now += STEP_S
        offered = Offered()
        output = changes.pop("output", 90.0)
        if rate is not None:
            self.requests += rate * STEP_S
            self.output_tokens += rate * STEP_S * output
            offered = Offered(
                self.requests, self.requests, self.requests * 1000.0, self.requests * 1000.0, self.output_tokens
            )
        reading = PoolReading(self.now, tuple(there), offered=offered, **changes)
        self.seen.append(self.recommender.look(reading, self.now))
        return self.seen[-1]

    def for_s(
        self,
        seconds: float,
        there: Sequence[ServerReading],
        rate: float | Callable[[float], float] | None = 0.0,
        **changes: Any,
    ) -> Recommendation:
        """The same for so long; a rate may follow the seconds."""
        last = None
        for i in range(int(seconds / STEP_S)):
            last = self.look(there, rate(i * STEP_S) if callable(rate) else rate, **changes)
        assert last is not None
        return last
