"""What is to be measured, and how?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from extproc.calibrate.judge import Rule
from extproc.calibrate.lengths import Lengths

Api = Literal["completions", "chat"]


@dataclass(frozen=True, slots=True)
class Plan:
    """One load test. Times in seconds."""

    url: str  # of the server, without a slash at the end
    lengths: Lengths
    rule: Rule
    lengths_source: str  # what was asked for: the lengths follow from it
    model: str | None = None  # None: the first that the server names
    api: Api = "completions"
    shared_ratio: float = 0.0  # of each prompt, what all have in common
    first_per_s: float | None = None  # None: what one request after the other would come to
    warm_up_s: float = 10.0  # of each step, not counted
    cool_down_s: float = 120.0  # at most, until the server is idle again
    poll_s: float = 0.5  # between two looks at the metrics page
    late_ratio: float = 0.1  # of the target: a client that sends later measures itself
    seed: int = 1
    metrics_url: str | None = None  # None: /metrics of the server

    def parameters(self) -> dict[str, Any]:
        """What the result depends on: steps that were measured with others do not go with these."""
        return {
            "url": self.url,
            "model": self.model,
            "api": self.api,
            "lengths": self.lengths_source,
            "shared_prefix": self.shared_ratio,
            "ttft_p99_s": self.rule.target_s,
            "confidence": self.rule.confidence,
            "step_s": self.rule.least_s,
            "step_requests": self.rule.most,
            "start_rate": self.first_per_s,
            "tolerance": self.rule.tolerance,
            "warm_up_s": self.warm_up_s,
            "seed": self.seed,
        }
