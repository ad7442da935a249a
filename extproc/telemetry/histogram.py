"""Do the `_bucket` and `_sum` lines of a page make a histogram that can be believed?

A histogram is believed whole or not at all: its quantiles come from differences between buckets, so one wrong bucket
spoils its neighbours. Bounds are read from the `le` labels; they differ between versions of vLLM and between metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from extproc.pool.sample import Histogram
from extproc.telemetry.exposition import Labels, read_float


def build(buckets: Mapping[Labels, float], sums: Mapping[Labels, float]) -> Histogram | None:
    """The sum of all series (engines, models) of one histogram, or None.

    None: no +Inf bucket, a bound that is no number or comes twice, counts that fall as bounds rise, a value that is
    negative or not finite, a series without `_sum`, series whose bounds differ.
    """
    series: dict[Labels, dict[float, float]] = {}
    for labels, count in buckets.items():
        bound = read_float(dict(labels).get("le", ""))
        counts = series.setdefault(tuple(item for item in labels if item[0] != "le"), {})
        if bound is None or math.isnan(bound) or bound in counts:
            return None
        counts[bound] = count
    if not series or series.keys() != sums.keys():
        return None
    bounds = tuple(sorted(next(iter(series.values()))))
    if bounds[-1] != math.inf:
        return None
    for counts in series.values():
        if tuple(sorted(counts)) != bounds or not _rises_from_zero([counts[bound] for bound in bounds]):
            return None
    totals = [finite_sum(counts[bound] for counts in series.values()) for bound in bounds]
    sum_s = finite_sum(sums.values())
    if sum_s is None or sum_s < 0 or None in totals:
        return None
    return Histogram(bounds_s=bounds, counts=tuple(total for total in totals if total is not None), sum_s=sum_s)


def finite_sum(values: Iterable[float]) -> float | None:
    """The exactly rounded sum, so that the order of the values cannot show; None if it is not finite."""
    try:
        total = math.fsum(values)
    except (OverflowError, ValueError):  # past the largest float; infinities of both signs
        return None
    return total if math.isfinite(total) else None


def _rises_from_zero(counts: Sequence[float]) -> bool:
    """Comparisons with NaN are false, so a NaN fails here too."""
    return counts[0] >= 0 and all(low <= high for low, high in pairwise(counts))
