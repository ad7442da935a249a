"""What would the router have learned of an engine from its metrics page?

The same as from rendering the page (`metrics_page`) and reading it (`telemetry.vllm_page`), which a test compares, but
some hundred times cheaper.
"""

from __future__ import annotations

import math

from extproc.pool.sample import Histogram, LoadSample
from extproc.sim import histogram
from extproc.sim.engine import Engine


def sample_of(engine: Engine, taken_at_s: float, *, model: str, started_unix_s: float) -> LoadSample:
    """One scrape of an engine that was advanced to `taken_at_s`."""
    stats, spec = engine.stats, engine.spec
    return LoadSample(
        taken_at_s=taken_at_s,
        running=engine.running,
        waiting=engine.waiting,
        kv_usage_ratio=engine.kv_usage_ratio,
        sleeping=False,
        block_size_tokens=spec.block_size_tokens,
        kv_blocks=spec.num_gpu_blocks,
        engines=1,
        models=(model,),
        prefix_queries_tokens=stats.prefix_queries,
        prefix_hits_tokens=stats.prefix_hits,
        prompt_tokens=stats.prompt_tokens,
        cached_prompt_tokens=stats.cached_prompt_tokens,
        generation_tokens=stats.generation_tokens,
        preemptions=stats.preemptions,
        ttft=_histogram(stats.ttft),
        token_interval=_histogram(stats.token_interval),
        prefill=_histogram(stats.prefill),
        queue=_histogram(stats.queue),
        process_start_s=started_unix_s,
    )


def _histogram(counted: histogram.Histogram) -> Histogram:
    return Histogram((*counted.bounds, math.inf), tuple(counted.cumulative()), counted.sum)
