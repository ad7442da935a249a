"""What was measured at one rate?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.autoscale.profile import StepRow
from extproc.calibrate.gauges import Readings
from extproc.calibrate.judge import Judgement, Verdict
from extproc.calibrate.sent import Sent, times


@dataclass(frozen=True, slots=True)
class Now:
    """How far a step is, for who watches."""

    phase: str  # "warming up", "measuring", "cooling down"
    seconds: float  # of the phase
    open: int  # requests sent and not ended
    measured: int = 0  # requests that count
    waiting: float | None = None  # as the metrics page said last
    running: float | None = None
    kv_usage_ratio: float | None = None
    ttft_p50_s: float | None = None
    judgement: Judgement | None = None  # of the last look


def step_row(
    rate_per_s: float,
    seconds: float,
    sent: Sequence[Sent],
    until_s: float,
    readings: Readings,
    judgement: Judgement,
) -> StepRow:
    """`sent`: those that were judged; `until_s`: when they were."""
    seen = times(sent, until_s)
    return StepRow(
        rate_per_s=rate_per_s,
        seconds=round(seconds, 3),
        requests=judgement.of,
        errors=seen.errors,
        met=judgement.verdict is Verdict.MET,
        certain=judgement.certain,
        over=judgement.over,
        over_ratio_low=judgement.low,
        over_ratio_high=judgement.high,
        why=judgement.why,
        waiting=readings.waiting,
        running=readings.running,
        kv_usage_ratio=readings.kv_usage_ratio,
        prefill_tokens_per_s=readings.prefill_tokens_per_s,
        hit_ratio=readings.hit_ratio,
        preemptions=readings.preemptions,
        ttft_mean_s=seen.ttft_mean,
        ttft_p50_s=seen.ttft_p50,
        ttft_p99_s=seen.ttft_p99,
        token_interval_mean_s=seen.interval_mean,
        token_interval_p50_s=seen.interval_p50,
        token_interval_p99_s=seen.interval_p99,
        late_p99_s=seen.late_p99,
        prompt_tokens=seen.prompt_tokens,
        output_tokens=seen.output_tokens,
    )
