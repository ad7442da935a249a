"""The index learns of a pick when the answer is on its way; nobody can tell that from learning it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from extproc.decision import Completion, Pick
from extproc.request import RawRequest
from extproc.router import Router
from tests.placement.fleet import AWARE, chat, fleet, held_tokens, page, say, send, set_members, text
from tests.support.fleet import address

Deed = Callable[[Router], object]


def deeds(seed: int, count: int) -> Iterator[Deed]:
    """What happens to a router, one after the other: mostly requests, many of them siblings."""
    rng = Random(seed)
    stems = [text(400, f"stem {number}") for number in range(5)]
    now, generated, sent = 0.0, dict.fromkeys(range(1, 6), 0.0), 0
    for _ in range(count):
        now += rng.choice((0.0, 0.0, 0.01, 0.3))
        deed = rng.choices(("route", "end", "sample", "restart", "explain", "members"), (60, 15, 15, 1, 5, 2))[0]
        if deed == "route":
            sent += 1
            raw = chat(rng.choice(stems) + text(rng.randrange(300), sent), session=rng.choice((None, "a", "b")))
            yield lambda to, raw=raw, now=now: to.route(raw, now)
        elif deed == "end" and sent:
            number, by = rng.randrange(1, sent + 1), rng.randrange(1, 6)
            yield lambda to, number=number, by=by, now=now: _end(to, f"{number:x}", by, now)
        elif deed in ("sample", "restart"):
            number = rng.randrange(1, 6)
            generated[number] = 0.0 if deed == "restart" else generated[number] + rng.randrange(5_000)
            sample = page(
                now,
                running=float(rng.randrange(4)),
                block_size_tokens=16,
                kv_blocks=400,
                engines=1,
                generation_tokens=generated[number],
            )
            yield lambda to, number=number, sample=sample: say(to, number, sample)
        elif deed == "explain":
            raw = chat(rng.choice(stems))
            yield lambda to, raw=raw, now=now: to.explain(raw, now)
        elif deed == "members":
            there = sorted(rng.sample(range(1, 6), rng.randrange(2, 6)))
            yield lambda to, there=there: set_members(to, there)


def _end(to: Router, pick_id: str, by: int, now: float) -> None:
    """The request ends; perhaps another server than the one it was picked for served it."""
    to.stream_ended(pick_id, now)
    to.complete(Completion(pick_id, address(by), status=200), now)


@pytest.mark.parametrize("profile", AWARE)
def test_every_decision_is_the_same_whether_the_index_learned_at_once_or_when_it_was_asked(profile: str) -> None:
    at_once, late = fleet(profile, 5, max_blocks=300), fleet(profile, 5, max_blocks=300)
    picks = 0
    for deed in deeds(3, 1_500):
        told = deed(at_once)
        at_once.settle()
        assert deed(late) == told
        picks += isinstance(told, Pick)
    assert picks > 500
    stats = [each.placements["vllm"].index.stats() for each in (at_once, late)]
    assert stats[0] == stats[1]
    assert stats[0].evicted_blocks > 300, "the bound was felt"


def test_a_pick_leaves_the_index_as_it_was_until_it_is_settled_or_looked_at() -> None:
    router = fleet("cache-aware", 3)
    index = router.placements["vllm"].index
    raw: RawRequest = chat(text(500, "new"))
    send(router, raw)
    assert index.stats().blocks == 0, "the answer did not wait for it"
    router.settle()
    taught = index.stats().blocks
    assert taught > 0
    router.settle()
    assert index.stats().blocks == taught, "once is enough"
    send(router, chat(text(500, "another")))
    assert held_tokens(router, chat(text(500, "another"))), "who looks finds it"


def test_a_prompt_that_is_still_to_be_learned_is_not_learned_of_a_server_that_has_left() -> None:
    """case e13: the slot of the one that left is the newcomer's"""
    router = fleet("cache-aware", 1)
    raw = chat(text(500, "new"))
    send(router, raw)
    set_members(router, [2])
    assert held_tokens(router, raw) == {}
