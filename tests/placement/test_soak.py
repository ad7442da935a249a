"""The soak of routing, in small; `python -m bench.soak_routing` is the long one."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from bench.soak_routing import Soak
from tests.placement.fleet import AWARE


@pytest.mark.parametrize("profile", ["least-loaded", *AWARE])
def test_joins_leaves_restarts_aborts_and_lost_logs_leave_nothing_behind(profile: str) -> None:
    """case e04: in flight, prompts owed and pick ids, after 1,000 requests with unique prompts"""
    soak = Soak(servers=4, profile=profile, max_blocks=2_000)
    rows = list(soak.run(1_000, rows=5))
    assert all(row.in_flight > 0 for row in rows)
    assert all(row.blocks <= 2_000 for row in rows)
    assert soak.finish() == []


def test_memory_is_flat_once_the_index_is_full() -> None:
    """case e10: 500 requests of 8 kB are 16,000 blocks, so the index is full long before. Requests that were kept would
    show as 500 times 8 kB, or as 500 reservations of some 500 bytes. The decision log has to be full, too.
    """
    soak = Soak(servers=4, max_blocks=2_000)
    tracemalloc.start()
    try:
        sizes = []
        for _ in range(14):
            list(soak.run(500, rows=1))
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[-1] - sizes[9] < 250_000, sizes
