"""A request is served by another server than the one it was picked for: who is believed to hold its prompt?"""

from __future__ import annotations

from random import Random

import pytest

from extproc.decision import Completion, Pick
from extproc.pool.ledger import LOG_WAIT_S
from extproc.pool.reservation import Reservation
from extproc.request import RawRequest, Route
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from tests.support.fleet import address, observe_all, pool

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}' % (b"a long story " * 400)


def fleet() -> Router:
    plans = [PoolPlan(pool(3, name), PROFILES["cache-aware"], 3) for name in ("vllm", "other")]
    router = Router(plans, rng=Random(1))
    observe_all(router, 0.0)
    return router


def raw(number: int | None = None) -> RawRequest:
    subset = None if number is None else frozenset({f"10.0.0.{number}"})
    return RawRequest("POST", "/v1/chat/completions", {}, CHAT, Route("vllm"), subset)


def holders(router: Router) -> set[int]:
    """Of the whole prompt, but for less than a block."""
    explained = router.explain(raw(), 0.0)
    assert explained.request is not None
    return {
        int(row.address.split(".")[3].split(":")[0])
        for row in explained.endpoints
        if row.held_blocks == explained.request.blocks
    }


def picked(router: Router) -> tuple[Pick, Reservation]:
    pick = router.route(raw(1), 0.0)
    assert isinstance(pick, Pick)
    return pick, router.ledger.recent[-1]


@pytest.mark.parametrize("stream_first", [True, False])
def test_the_one_that_serves_learns_it_and_the_first_keeps_it(stream_first: bool) -> None:
    router = fleet()
    pick, _ = picked(router)
    assert holders(router) == {1}
    if stream_first:
        router.stream_ended(pick.pick_id, 0.0)
    router.complete(Completion(pick.pick_id, address(2), attempts=2, status=200), 0.5)
    assert holders(router) == {1, 2}


def test_it_is_learned_as_soon_as_the_other_is_reached() -> None:
    router = fleet()
    pick, _ = picked(router)
    router.complete(Completion(pick.pick_id, address(3), final=False, attempts=2), 0.2)
    assert holders(router) == {1, 3}


def test_the_prompt_is_kept_no_longer_than_somebody_can_still_tell() -> None:
    router = fleet()
    told, kept = picked(router)
    lost, also_kept = picked(router)
    assert kept.prompt is not None
    router.complete(Completion(told.pick_id, address(1), status=200), 0.5)
    assert kept.prompt is None
    router.stream_ended(lost.pick_id, 1.0)
    assert also_kept.prompt is not None
    router.stream_ended("tick", 1.1 + LOG_WAIT_S)
    assert also_kept.prompt is None


def test_a_server_that_has_left_learns_nothing() -> None:
    """Nor does one that is only in another pool: its number there is another server's here."""
    router = fleet()
    vllm, other = router.pools
    pick, _ = picked(router)
    vllm.set_endpoints([each.endpoint for each in vllm.members if each.address != address(2)])
    assert other.member(address(2)) is not None
    router.complete(Completion(pick.pick_id, address(2), attempts=2, status=200), 0.5)
    assert holders(router) == {1}
