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
    costs: list[Cost] = []
    for candidate in candidates:
        waiting, kv_usage = candidate.waiting, candidate.kv_usage_ratio
        if waiting is None or kv_usage is None or now > candidate.usable_until_s:
            return _with_unknown_loads(candidates, now)
        costs.append((waiting + candidate.unseen, 0, kv_usage, candidate.in_flight))
    return costs


def _with_unknown_loads(candidates: Sequence[Candidate], now: float) -> list[Cost]:
    """`least_loaded` where a figure is missing somewhere."""
    fresh = [candidate for candidate in candidates if now <= candidate.usable_until_s]
    mean_waiting = _mean([c.waiting for c in fresh if c.waiting is not None])
    mean_kv_usage = _mean([c.kv_usage_ratio for c in fresh if c.kv_usage_ratio is not None])
    costs: list[Cost] = []
    for candidate in candidates:
        waiting = kv_usage = None
        if now <= candidate.usable_until_s:
            waiting, kv_usage = candidate.waiting, candidate.kv_usage_ratio
        kv = mean_kv_usage if kv_usage is None else kv_usage
        if waiting is None:
            costs.append((mean_waiting + candidate.in_flight, 1, kv, candidate.in_flight))
        else:
            costs.append((waiting + candidate.unseen, 0, kv, candidate.in_flight))
    return costs


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
