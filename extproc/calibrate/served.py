"""How long are the prompts and answers that servers have served, by their metrics pages?

vLLM counts both in histograms, `vllm:request_prompt_tokens` and `vllm:request_generation_tokens`, since it was started.
Servers whose histograms have different buckets are added up in those that all have.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from extproc.calibrate.lengths import Buckets, Independent
from extproc.pool.sample import Histogram, added_up
from extproc.telemetry import histogram
from extproc.telemetry.exposition import Labels, name_of, read_sample

PROMPT, OUTPUT = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"


def lengths_of(pages: Sequence[bytes]) -> tuple[Independent, int] | None:
    """The lengths and of how many requests they are; None: no page has any."""
    prompt, output = _shape(pages, PROMPT), _shape(pages, OUTPUT)
    if prompt is None or output is None:
        return None
    return Independent(prompt[0], output[0]), min(prompt[1], output[1])


def _shape(pages: Sequence[bytes], name: str) -> tuple[Buckets, int] | None:
    read = [each for each in (_histogram(page, name) for page in pages) if each is not None and each.count > 0]
    total = added_up(read)
    if total is None or len(total.bounds_s) < 2:
        return None
    bounds, totals = total.bounds_s, total.counts
    counts = [totals[0], *(high - low for low, high in pairwise(totals))]
    mean = total.sum_s / total.count
    finite = [bound if bound != inf else 2.0 * bounds[-2] for bound in bounds]
    kept = [place for place, count in enumerate(counts) if count or (place + 1 < len(counts) and counts[place + 1])]
    shape = Buckets(tuple(finite[place] for place in kept), tuple(counts[place] for place in kept), max(1.0, mean))
    return shape, round(total.count)


def _histogram(page: bytes, name: str) -> Histogram | None:
    """In tokens, though its fields say seconds."""
    buckets: dict[Labels, float] = {}
    sums: dict[Labels, float] = {}
    targets = {f"{name}_bucket".encode(): buckets, f"{name}_sum".encode(): sums}
    for line in page.split(b"\n"):
        target = targets.get(name_of(line))
        if target is not None:
            sample = read_sample(line)
            if sample is None:
                return None
            target[sample[0]] = sample[1]
    return histogram.build(buckets, sums)
