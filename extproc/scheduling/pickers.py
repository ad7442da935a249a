"""Given the costs, who is first, and who next if that one fails?"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from random import Random

from extproc.scheduling.costs import Cost

_FEW = 16  # sorting so many costs less than setting up a heap


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
