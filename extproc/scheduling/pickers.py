"""Given the costs, who is first, and who next if that one fails?"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from random import Random

from extproc.scheduling.costs import Cost

_FEW = 16  # sorting so many costs less than setting up a heap

# Costs in seconds this close to the least are taken for equal: an estimate of a first token is no better than a step of
# the engine or so, nor than some percent.
TIE_S = 0.005
TIE_RATIO = 0.05
_TAKEN = float("inf")


def cheapest(costs: Sequence[Cost], count: int, rng: Random) -> list[int]:
    """Indices of the `count` lowest costs, ascending; equal costs in random order, never the first in the list."""
    if not costs:
        return []
    if count == 1 or len(costs) == 1:
        best = min(costs)
        ties = [i for i, cost in enumerate(costs) if cost == best]
        return [ties[0] if len(ties) == 1 else rng.choice(ties)]
    draw = rng.random
    order = [(cost, draw(), i) for i, cost in enumerate(costs)]
    if len(order) > _FEW:
        order = nsmallest(count, order)
    else:
        order.sort()
    return [i for _, _, i in order[:count]]


def tie_limit(least_s: float) -> float:
    """Costs up to this one tie with the least."""
    return least_s + max(TIE_S, TIE_RATIO * least_s)


def cheapest_s(costs_s: Sequence[float], loads: Sequence[float], count: int, rng: Random) -> list[int]:
    """Like `cheapest`, for costs in seconds: among those that tie with the least, the least loaded comes first.

    `loads` are any measure of load, by the same index; only those that tie are looked at.
    """
    if not costs_s:
        return []
    limit = tie_limit(min(costs_s))
    draw = rng.random
    tied = [(loads[i], draw(), i) for i, cost in enumerate(costs_s) if cost <= limit]
    if len(tied) == 1:
        order = [tied[0][2]]
    else:
        order = [i for _, _, i in (sorted(tied)[:count] if len(tied) <= _FEW else nsmallest(count, tied))]
    if len(order) < count:
        left = list(costs_s)
        for _, _, i in tied:
            left[i] = _TAKEN
        for _ in range(min(count, len(left)) - len(order)):  # a few: two or three looks at all beat a heap
            i = left.index(min(left))
            left[i] = _TAKEN
            order.append(i)
    return order
