"""What did the load test of a server find? The file `profile.json`, which `extproc calibrate` writes and the service
reads."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from extproc.autoscale.thresholds import Calibration, Step

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Part(BaseModel):
    # A newer `extproc calibrate` may tell more.
    model_config = ConfigDict(extra="ignore", frozen=True)


class Server(_Part):
    """What was tested: another model, version or size has another profile. None: it did not tell."""

    model: str
    url: str | None = None
    engine: str | None = None  # vllm
    version: str | None = None
    kv_tokens: Positive | None = None  # room of its KV cache
    max_model_len: Annotated[int, Field(gt=0)] | None = None


class Lengths(_Part):
    """Of the requests that were sent: means, in tokens."""

    prompt_tokens: Positive
    uncached_tokens: Amount | None = None  # of a prompt, what the server computed
    output_tokens: Amount


class StepRow(_Part):
    """One steady rate. Gauges are means; None: not measured."""

    rate_per_s: Positive  # offered
    seconds: Positive
    requests: Annotated[int, Field(ge=0)]
    errors: Annotated[int, Field(ge=0)] = 0
    met: bool  # it kept the target
    certain: bool = True  # its requests show so with confidence
    over: Annotated[int, Field(ge=0)] | None = None  # requests over the target
    over_ratio_low: Ratio | None = None  # between these lies the part of all requests that is over it
    over_ratio_high: Ratio | None = None
    why: str = ""  # it was decided so
    waiting: Amount | None = None
    running: Amount | None = None
    kv_usage_ratio: Ratio | None = None
    prefill_tokens_per_s: Amount | None = None  # prompt tokens computed
    hit_ratio: Ratio | None = None  # of prompt tokens, those found in the cache
    preemptions: Amount | None = None  # in all
    ttft_mean_s: Amount | None = None
    ttft_p50_s: Amount | None = None
    ttft_p99_s: Amount | None = None
    token_interval_mean_s: Amount | None = None
    token_interval_p50_s: Amount | None = None
    token_interval_p99_s: Amount | None = None
    late_p99_s: Amount | None = None  # how late the client sent
    prompt_tokens: Amount | None = None  # of a request, mean
    output_tokens: Amount | None = None


class Profile(_Part):
    """The whole of it. Raises pydantic's ValidationError (a ValueError) for what is none."""

    version: Literal[1] = 1
    made_at: str  # ISO 8601
    ttft_p99_target_s: Positive
    knee_per_s: Positive  # the highest rate that met the target
    missed_per_s: Positive | None = None  # the lowest that missed it
    idle_ttft_s: Amount | None = None  # with nothing else to do
    idle_stay_s: Amount | None = None  # to the end of an answer
    shared_prefix_ratio: Ratio = 0.0  # of each prompt, what all had in common
    server: Server
    lengths: Lengths
    steps: Annotated[tuple[StepRow, ...], Field(min_length=1)]  # by rising rate

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if any(low.rate_per_s >= high.rate_per_s for low, high in pairwise(self.steps)):
            raise ValueError("the steps must have rising rates")
        return self

    @property
    def calibration(self) -> Calibration:
        return Calibration(
            steps=tuple(
                Step(
                    rate_per_s=row.rate_per_s,
                    waiting=row.waiting,
                    running=row.running,
                    kv_usage_ratio=row.kv_usage_ratio,
                    prefill_tokens_per_s=row.prefill_tokens_per_s,
                    # Little's law is one of means.
                    ttft_s=row.ttft_p50_s if row.ttft_mean_s is None else row.ttft_mean_s,
                    token_interval_s=(
                        row.token_interval_p50_s if row.token_interval_mean_s is None else row.token_interval_mean_s
                    ),
                )
                for row in self.steps
            ),
            knee_per_s=self.knee_per_s,
            uncached_tokens=self.lengths.uncached_tokens,
            output_tokens=self.lengths.output_tokens,
            kv_tokens=self.server.kv_tokens,
        )
