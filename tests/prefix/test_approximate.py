"""The approximate index beyond the contract: its bounds, and work that is spread over calls."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.prefix.approximate import BYTES_PER_BLOCK, ApproximateIndex
from extproc.prefix.blocks import block_hashes, chain

ALL = (1 << 64) - 1


def hashes(text: str) -> list[int]:
    return block_hashes(text.encode(), model="m", block_bytes=1)


def new_chain(rng: Random, blocks: int) -> list[int]:
    return [rng.getrandbits(64) for _ in range(blocks)]


def fill(index: ApproximateIndex, slots: list[int], chains: int, blocks: int, seed: int = 1) -> None:
    rng = Random(seed)
    for number in range(chains):
        index.insert(slots[number % len(slots)], new_chain(rng, blocks))


def entries(index: ApproximateIndex) -> int:
    """Blocks in the table, each counted once however many hold it."""
    return sum(map(len, index._table))


def test_the_bound_over_all_holds_after_every_call() -> None:
    """case e10"""
    index = ApproximateIndex(max_blocks=500)
    slots = [index.add_endpoint() for _ in range(7)]
    rng = Random(1)
    for _ in range(400):
        index.insert(rng.choice(slots), new_chain(rng, rng.randrange(120)), rng.getrandbits(64))
        index.occupy(rng.choice(slots), 3)
        stats = index.stats()
        assert stats.blocks + stats.leaving_blocks <= 500
        assert entries(index) <= 500
    assert index.stats().blocks > 400


def test_a_hot_prefix_survives_a_flood_of_others() -> None:
    """case e10"""
    index = ApproximateIndex(max_blocks=400)
    slot = index.add_endpoint()
    rng = Random(1)
    hot = new_chain(rng, 50)
    for _ in range(200):
        index.insert(slot, hot)
        index.insert(slot, new_chain(rng, 100))
    assert index.match(hot, ALL) == {slot: 50}


def test_one_that_rests_above_its_share_is_found_though_all_others_keep_growing() -> None:
    """An insert looks at a few endpoints in turn: 40 of them are gone through in some ten inserts."""
    index = ApproximateIndex(max_blocks=4000)
    rests, *others = [index.add_endpoint() for _ in range(40)]
    rng = Random(2)
    first = [new_chain(rng, 50) for _ in range(10)]
    for each in first:
        index.insert(rests, each)  # 500 blocks; its share is 100
    fill(index, others, 39 * 20, 50)
    held = sum(index.match(each, 1 << rests).get(rests, 0) for each in first)
    assert held <= 100
    assert index.stats().blocks == 4000


def test_an_endpoint_above_the_equal_share_gives_way_to_one_below() -> None:
    index = ApproximateIndex(max_blocks=1000)
    busy, quiet = index.add_endpoint(), index.add_endpoint()
    fill(index, [busy], 30, 100)
    kept = new_chain(Random(9), 400)
    index.insert(quiet, kept)
    fill(index, [busy], 30, 100, seed=2)
    assert index.match(kept, ALL) == {quiet: 400}


def test_an_endpoint_may_use_what_others_leave_free() -> None:
    index = ApproximateIndex(max_blocks=1000)
    busy, _ = index.add_endpoint(), index.add_endpoint()
    whole = new_chain(Random(1), 800)
    index.insert(busy, whole)
    assert index.match(whole, ALL) == {busy: 800}


def test_a_forgotten_endpoint_costs_nothing_at_once_and_is_gone_after_some_inserts() -> None:
    """case e13"""
    index = ApproximateIndex()
    a, b = index.add_endpoint(), index.add_endpoint()
    fill(index, [a], 100, 200)
    index.forget(a)
    assert (index.stats().blocks, index.stats().leaving_blocks) == (0, 20_000)
    fill(index, [b], 200, 10)
    assert index.stats().leaving_blocks == 0
    assert entries(index) == index.stats().blocks == 2000


def test_what_has_left_is_dropped_before_anything_that_is_held() -> None:
    index = ApproximateIndex(max_blocks=1000)
    a, b = index.add_endpoint(), index.add_endpoint()
    kept = new_chain(Random(5), 450)
    index.insert(b, kept)
    fill(index, [a], 1, 450)
    index.remove(a)
    fill(index, [b], 1, 500, seed=2)
    assert index.match(kept, ALL) == {b: 450}
    assert index.stats().evicted_blocks == 0


def test_upkeep_ends_the_clean_up_without_inserts() -> None:
    index = ApproximateIndex()
    slot = index.add_endpoint()
    fill(index, [slot], 10, 100)
    index.remove(slot)
    index.upkeep(400)
    assert index.stats().leaving_blocks == 600
    index.upkeep(10_000)
    assert entries(index) == index.stats().leaving_blocks == 0


def test_servers_that_come_and_go_leave_nothing_behind() -> None:
    index = ApproximateIndex()
    rng = Random(1)
    stays = index.add_endpoint()
    for _ in range(300):
        slot = index.add_endpoint()
        index.insert(slot, new_chain(rng, 20))
        index.forget(slot)
        index.forget(slot)
        index.remove(slot)
        index.insert(stays, hashes("a"))
    assert len(index._slot_of_bit) < 10
    assert index.stats().blocks == 1


def test_a_smaller_capacity_is_reached_with_the_inserts_that_follow() -> None:
    index = ApproximateIndex()
    slot = index.add_endpoint()
    fill(index, [slot], 10, 200)
    index.set_capacity(slot, 100)
    fill(index, [slot], 40, 10, seed=2)
    assert index.stats().blocks == 100


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_bound_without_room_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ApproximateIndex(max_blocks=wrong)
    index = ApproximateIndex()
    with pytest.raises(ValueError, match="-1 units"):
        index.set_capacity(index.add_endpoint(), -1)


def test_a_block_takes_no_more_memory_than_said() -> None:
    """case e10: the bound in blocks is one in bytes"""
    rng = Random(1)
    index = ApproximateIndex(max_blocks=50_000)
    slots = [index.add_endpoint() for _ in range(8)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(600):
            index.insert(slots[number % 8], new_chain(rng, 200))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert index.stats().blocks == 50_000
    assert taken < 1.2 * index.stats().bytes == 1.2 * 50_000 * BYTES_PER_BLOCK


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.text("ab", max_size=12)), max_size=30),
    st.text("ab", max_size=12),
    st.integers(1, 40),
)
def test_a_match_exceeds_neither_the_prompt_nor_what_was_inserted(
    inserts: list[tuple[int, str]], prompt: str, max_blocks: int
) -> None:
    index = ApproximateIndex(max_blocks=max_blocks)
    slots = [index.add_endpoint() for _ in range(3)]
    for number, text in inserts:
        index.insert(slots[number], hashes(text))
    for slot, blocks in index.match(hashes(prompt), ALL).items():
        sent = [text for number, text in inserts if slots[number] == slot]
        assert 0 < blocks <= len(prompt)
        assert any(text.startswith(prompt[:blocks]) for text in sent)


def test_many_endpoints_at_all_depths_are_told_apart() -> None:
    """Every depth of the search: 500 endpoints, each holding another number of blocks."""
    index = ApproximateIndex()
    whole = chain(bytes(600), 1, block_bytes=1)
    slots = [index.add_endpoint() for _ in range(len(whole))]
    for slot in slots:
        index.insert(slot, whole[:slot])
    assert index.match(whole, (1 << len(slots)) - 1) == {slot: slot for slot in slots if slot}


def test_what_an_endpoint_alone_holds_is_what_no_other_does() -> None:
    index = ApproximateIndex()
    a, b, c = index.add_endpoint(), index.add_endpoint(), index.add_endpoint()
    index.insert(a, hashes("shared and mine"))
    index.insert(b, hashes("shared and yours"))
    index.insert(c, hashes("shared and mine"))
    index.occupy(b, 1000)
    assert (index.alone(a), index.alone(c)) == (0, 0)
    assert 0 < index.alone(b) < 1000, "what no hash is known of nobody asks for"
    index.forget(c)
    assert index.alone(a) > 0, "the other was restarted and holds it no more"
