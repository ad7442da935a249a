"""What did one server say about itself, and when?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf


@dataclass(frozen=True, slots=True)
class Histogram:
    """A Prometheus histogram: upper bounds in seconds, cumulative counts, and the sum of all observations."""

    bounds_s: tuple[float, ...]  # ascending; the last is +inf
    counts: tuple[float, ...]  # cumulative, same length
    sum_s: float

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def since(self, before: Histogram) -> Histogram:
        """What was observed after `before`, an earlier state of this histogram."""
        counts = [now - then for now, then in zip(self.counts, before.counts, strict=True)]
        return Histogram(self.bounds_s, tuple(counts), self.sum_s - before.sum_s)

    def quantile_s(self, ratio: float) -> float | None:
        """The value that `ratio` (0 to 1) of all observations do not exceed, as Prometheus has it: by a straight line
        within its bucket, and past the last finite bound that bound. None: nothing was observed."""
        wanted = ratio * self.count
        lower_s = below = 0.0
        for bound_s, count in zip(self.bounds_s, self.counts, strict=True):
            if count >= wanted and count > below:
                return lower_s if bound_s == inf else lower_s + (bound_s - lower_s) * (wanted - below) / (count - below)
            lower_s, below = bound_s, count
        return None


def added_up(histograms: Sequence[Histogram]) -> Histogram | None:
    """All of them as one, in the buckets that all have; None: there is none, or a count is too large for a float."""
    if not histograms:
        return None
    bounds = sorted(set.intersection(*(set(each.bounds_s) for each in histograms)))
    maps = [dict(zip(each.bounds_s, each.counts, strict=True)) for each in histograms]
    try:
        counts = tuple(fsum(each[bound] for each in maps) for bound in bounds)
        return Histogram(tuple(bounds), counts, sum(each.sum_s for each in histograms))
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One scrape of one endpoint. `None` always means "the page did not tell", never zero."""

    taken_at_s: float  # monotonic clock, when the scrape was sent: what happened later may not be in it
    running: float | None = None  # requests, summed over data-parallel engines
    waiting: float | None = None  # requests, summed over data-parallel engines
    kv_usage_ratio: float | None = None  # 0..1, mean over data-parallel engines; blocks of running requests only
    sleeping: bool | None = None
    block_size_tokens: int | None = None
    kv_blocks: int | None = None  # of one engine
    engines: int = 0  # data-parallel engines seen on the page
    models: tuple[str, ...] = ()  # label model_name, sorted
    adapters: tuple[str, ...] = ()  # LoRA adapters running or waiting, sorted
    prefix_queries_tokens: float | None = None
    prefix_hits_tokens: float | None = None
    prompt_tokens: float | None = None
    cached_prompt_tokens: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    ttft: Histogram | None = None
    token_interval: Histogram | None = None
    prefill: Histogram | None = None
    queue: Histogram | None = None
    process_start_s: float | None = None  # unix time; a change means a restart
    rejected_values: int = 0  # values on the page that no gauge or counter can have (NaN, negative, ...)
    truncated: bool = False  # the page was larger than we read

    @property
    def kv_tokens(self) -> int | None:
        """Room in the KV caches of all engines; None: the page did not tell."""
        if self.kv_blocks is None or self.block_size_tokens is None:
            return None
        return max(1, self.engines) * self.kv_blocks * self.block_size_tokens

    @property
    def usable(self) -> bool:
        """Whether the page told anything about load."""
        return self.waiting is not None or self.running is not None or self.kv_usage_ratio is not None
