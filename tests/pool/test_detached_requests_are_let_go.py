"""Requests whose stream we closed early take no memory once they are over."""

from __future__ import annotations

from extproc.pool.ledger import DETACHED_MAX_S
from tests.support.fleet import ended, endpoint, route, sampled_router


def test_one_whose_end_nobody_tells_does_not_keep_those_after_it_in_memory() -> None:
    """Its server has left, so no sample tells either: it is given up after two hours; the others when they end"""
    router = sampled_router(2)
    lost = route(router, 0.0, subset=["10.0.0.1"])
    router.detach(lost.pick_id)
    router.pools[0].set_endpoints([endpoint(2)])
    for i in range(500):
        pick = route(router, float(i))
        router.detach(pick.pick_id)
        router.stream_ended(pick.pick_id, float(i))
        router.complete(ended(pick), float(i))
    assert len(router.ledger._detached) == router.ledger.open_count == 1
    router.stream_ended("tick", DETACHED_MAX_S + 1)
    assert len(router.ledger._detached) == router.ledger.open_count == 0
