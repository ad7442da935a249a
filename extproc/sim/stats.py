"""What has one engine done so far, counted as vLLM counts it?

When each series moves was read off a recorded page: prefix queries at admission, prompt tokens and time to first token
at the first token, the other request histograms when a request ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc.sim.histogram import Histogram
from extproc.sim.sequence import Sequence

# Bucket bounds as on the recorded page of vLLM 0.32.
TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
INTERVAL_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def token_bounds(max_model_len: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50, ... up to the model's length, as vLLM makes them."""
    bounds: list[float] = []
    scale = 1
    while scale <= max_model_len:
        bounds += [float(m * scale) for m in (1, 2, 5) if m * scale <= max_model_len]
        scale *= 10
    return tuple(bounds)


def _seconds() -> Histogram:
    return Histogram(REQUEST_S)


@dataclass(slots=True)
class EngineStats:
    """Counters (tokens unless the name says otherwise) and histograms (seconds unless `_tokens`) since the start."""

    max_model_len: int
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0  # times a request was preempted
    steps: int = 0
    busy_s: float = 0.0  # sum of all step times
    finished: dict[str, int] = field(  # requests by reason
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
    )
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_S))
    token_interval: Histogram = field(default_factory=lambda: Histogram(INTERVAL_S))
    mean_token_interval: Histogram = field(default_factory=lambda: Histogram(INTERVAL_S))  # one value a request
    e2e: Histogram = field(default_factory=_seconds)
    queue: Histogram = field(default_factory=_seconds)
    inference: Histogram = field(default_factory=_seconds)
    prefill: Histogram = field(default_factory=_seconds)
    decode: Histogram = field(default_factory=_seconds)
    step_tokens: Histogram = field(default_factory=lambda: Histogram(STEP_TOKENS))
    request_preemptions: Histogram = field(default_factory=lambda: Histogram(PREEMPTIONS))
    choices: Histogram = field(default_factory=lambda: Histogram(CHOICES))
    request_prompt_tokens: Histogram = field(init=False)
    request_generation_tokens: Histogram = field(init=False)
    request_max_tokens: Histogram = field(init=False)
    request_computed_tokens: Histogram = field(init=False)

    def __post_init__(self) -> None:
        bounds = token_bounds(self.max_model_len)
        self.request_prompt_tokens = Histogram(bounds)
        self.request_generation_tokens = Histogram(bounds)
        self.request_max_tokens = Histogram(bounds)
        self.request_computed_tokens = Histogram(bounds)

    def request_completed(self, sequence: Sequence) -> None:
        """Fill the histograms that have one value a request, when its last token is there."""
        scheduled_s, first_s, last_s = sequence.scheduled_s, sequence.first_token_s, sequence.last_token_s
        assert scheduled_s is not None
        assert first_s is not None
        request, generated = sequence.request, sequence.generated
        self.e2e.observe(last_s - sequence.submitted_s)
        self.queue.observe(scheduled_s - sequence.submitted_s)
        self.prefill.observe(first_s - scheduled_s)
        self.decode.observe(last_s - first_s)
        self.inference.observe(last_s - scheduled_s)
        self.mean_token_interval.observe((last_s - first_s) / (generated - 1) if generated > 1 else 0.0)
        self.request_preemptions.observe(sequence.preemptions)
        self.request_prompt_tokens.observe(request.prompt_tokens)
        self.request_generation_tokens.observe(generated)
        self.request_max_tokens.observe(request.max_tokens)
        self.request_computed_tokens.observe(request.prompt_tokens - sequence.cached_tokens)
        self.choices.observe(1)
