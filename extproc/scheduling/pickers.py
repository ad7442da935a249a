"""Given the costs, who is first, and who next if that one fails?"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from random import Random

from extproc.scheduling.candidate import Candidate
from extproc.scheduling.costs import Cost

_FEW = 16  # sorting so many costs less than setting up a heap

# Costs in seconds this close to the least are taken for equal: an estimate of a first token is no better than a step of
# the engine or so, nor than some percent.
TIE_S = 0.005
TIE_RATIO = 0.05
_TAKEN = float("inf")

_ODD = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: the product's upper bits depend on all of the factor
_64_BITS = 0xFFFF_FFFF_FFFF_FFFF


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


def cheapest_s(
    costs_s: Sequence[float], candidates: Sequence[Candidate], count: int, rng: Random, key: int | None = None
) -> list[int]:
    """Like `cheapest`, for costs in seconds: among those that tie with the least, the least loaded comes first.

    Among equally loaded ones the order is drawn by `key` (64 bits): the same wherever the same servers are seen, so
    routers agree that know nothing of each other (rendezvous hashing). None: a lot is drawn.
    """
    if not costs_s:
        return []
    limit = tie_limit(min(costs_s))
    ties = [i for i, cost in enumerate(costs_s) if cost <= limit]
    order = ties
    if len(ties) > 1:
        if key is None:
            draw = rng.random
            tied: list[tuple[float, float, int]] = [(candidates[i].load, draw(), i) for i in ties]
        else:
            tied = [
                (candidates[i].load, (key ^ candidates[i].endpoint.address.number) * _ODD & _64_BITS, i) for i in ties
            ]
        order = [i for _, _, i in (sorted(tied)[:count] if len(tied) <= _FEW else nsmallest(count, tied))]
    if len(order) < count:
        left = list(costs_s)
        for i in ties:
            left[i] = _TAKEN
        for _ in range(min(count, len(left)) - len(order)):  # a few: two or three looks at all beat a heap
            i = left.index(min(left))
            left[i] = _TAKEN
            order.append(i)
    return order
