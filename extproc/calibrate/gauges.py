"""What do the metrics pages of a step come to?

Gauges are means over time: each value holds until the next page, but not past a gap. Counters are compared between the
first page and the last. What no page told, or too few, is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from extproc.autoscale.window import Window
from extproc.pool.sample import LoadSample

_GAP_INTERVALS = 4.0  # between two pages: a longer time without one is left out


@dataclass(frozen=True, slots=True)
class Readings:
    """Of one step. None: not told."""

    pages: int = 0
    waiting: float | None = None  # mean
    running: float | None = None  # mean
    kv_usage_ratio: float | None = None  # mean
    prefill_tokens_per_s: float | None = None  # prompt tokens computed
    hit_ratio: float | None = None  # of prompt tokens, those found in the cache
    preemptions: float | None = None
    restarted: bool = False  # another process answered than at the beginning


def read(samples: Sequence[LoadSample], interval_s: float) -> Readings:
    """`samples` by time; `interval_s`: as they were asked for."""
    if not samples:
        return Readings()
    first, last = samples[0], samples[-1]
    seconds = last.taken_at_s - first.taken_at_s
    computed, cached = (
        _rise(samples, lambda each: each.prompt_tokens),
        _rise(samples, lambda each: each.cached_prompt_tokens),
    )
    starts = {sample.process_start_s for sample in samples if sample.process_start_s is not None}
    return Readings(
        pages=len(samples),
        waiting=_mean(samples, interval_s, lambda each: each.waiting),
        running=_mean(samples, interval_s, lambda each: each.running),
        kv_usage_ratio=_mean(samples, interval_s, lambda each: each.kv_usage_ratio),
        # A server without prefix caching tells of none, and computes all of its prompts.
        prefill_tokens_per_s=None
        if computed is None or not seconds
        else max(0.0, computed - (cached or 0.0)) / seconds,
        hit_ratio=_ratio(samples),
        preemptions=_rise(samples, lambda each: each.preemptions),
        restarted=len(starts) > 1,
    )


def _mean(
    samples: Sequence[LoadSample], interval_s: float, value: Callable[[LoadSample], float | None]
) -> float | None:
    window = Window(inf, _GAP_INTERVALS * interval_s)
    for sample in samples:
        window.add(sample.taken_at_s, value(sample))
    mean = window.mean(samples[-1].taken_at_s)
    return None if mean is None else mean.value


def _rise(samples: Sequence[LoadSample], value: Callable[[LoadSample], float | None]) -> float | None:
    told = [each for each in map(value, samples) if each is not None]
    if len(told) < 2 or told[-1] < told[0]:
        return None
    return told[-1] - told[0]


def _ratio(samples: Sequence[LoadSample]) -> float | None:
    """By the prefix cache's own account: it counts when a request is admitted."""
    queries = _rise(samples, lambda each: each.prefix_queries_tokens)
    hits = _rise(samples, lambda each: each.prefix_hits_tokens)
    return None if not queries or hits is None else min(1.0, hits / queries)
