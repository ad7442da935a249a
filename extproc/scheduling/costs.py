"""How attractive is each candidate? Lower is better; equal costs are equal candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from extproc.scheduling.candidate import Candidate

Cost = tuple[float, ...]
CostFunction = Callable[[Sequence[Candidate], float], list[Cost]]


def least_loaded(candidates: Sequence[Candidate], now: float) -> list[Cost]:
    """Fewest waiting requests; equal: lowest KV usage; equal: fewest in flight.

    A waiting request means the server has taken all it can (R4), so it comes first. Requests sent since the sample was
    taken count as waiting on top of it: each request of a burst between two samples sees those before it.

    Where a sample is missing or stale its load is unknown, not zero: the pool's mean stands in for both figures, and
    since the sample says nothing of any request, all our requests in flight there count on top. At the same waiting
    count a known server is preferred to an unknown one.
    """
    samples = [candidate.fresh_sample(now) for candidate in candidates]
    waiting = [s.waiting for s in samples if s is not None and s.waiting is not None]
    kv_usage = [s.kv_usage_ratio for s in samples if s is not None and s.kv_usage_ratio is not None]
    mean_waiting = sum(waiting) / len(waiting) if waiting else 0.0
    mean_kv = sum(kv_usage) / len(kv_usage) if kv_usage else 0.0
    costs: list[Cost] = []
    for candidate, sample in zip(candidates, samples, strict=True):
        in_flight = candidate.in_flight
        if sample is None or sample.waiting is None:
            kv = sample.kv_usage_ratio if sample is not None and sample.kv_usage_ratio is not None else mean_kv
            costs.append((mean_waiting + in_flight, 1, kv, in_flight))
        else:
            kv = sample.kv_usage_ratio if sample.kv_usage_ratio is not None else mean_kv
            costs.append((sample.waiting + candidate.unseen, 0, kv, in_flight))
    return costs
