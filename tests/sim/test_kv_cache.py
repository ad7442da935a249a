"""The block pool forgets the right block."""

from __future__ import annotations

from extproc.sim.kv_cache import KvCache


def held(cache: KvCache, *hashes: int) -> list[int]:
    blocks: list[int] = []
    for block_hash in hashes:
        cache.add_full(block_hash, blocks)
    return blocks


def test_the_tail_of_a_request_is_evicted_before_its_root() -> None:
    cache = KvCache(4)
    cache.release(held(cache, 1, 2, 3, 4))
    held(cache, 9)
    assert [h for h in (1, 2, 3, 4) if cache.holds(h)] == [1, 2, 3]
    held(cache, 8)
    assert cache.match((1, 2, 3, 4), 4) == 2
    assert cache.evicted == 2


def test_the_request_given_back_first_is_evicted_first() -> None:
    cache = KvCache(4)
    older, newer = held(cache, 1, 2), held(cache, 3, 4)
    cache.release(older)
    cache.release(newer)
    held(cache, 5, 6)
    assert [h for h in (1, 2, 3, 4) if cache.holds(h)] == [3, 4]


def test_blocks_never_used_go_before_cached_ones() -> None:
    cache = KvCache(4)
    cache.release(held(cache, 1, 2))
    held(cache, 3, 4)
    assert cache.match((1, 2), 2) == 2


def test_a_block_found_again_is_saved_from_eviction() -> None:
    cache = KvCache(3)
    cache.release(held(cache, 1, 2))
    again: list[int] = []
    cache.hold((1, 2), 1, again)
    held(cache, 8, 9)
    assert cache.holds(1)
    assert not cache.holds(2)


def test_a_shared_block_is_free_only_when_its_last_holder_has_gone() -> None:
    cache = KvCache(2)
    first = held(cache, 1)
    second: list[int] = []
    cache.hold((1,), 1, second)
    assert cache.used == 1
    cache.release(first)
    assert (cache.used, cache.free) == (1, 1)
    cache.release(second)
    assert (cache.used, cache.free) == (0, 2)
    assert cache.holds(1)


def test_a_second_copy_of_a_content_takes_a_block_of_its_own_and_lives_on_as_the_newer() -> None:
    cache = KvCache(3)
    first = held(cache, 1)
    cache.release(first)
    twin = held(cache, 1)  # as a fully cached prompt does with its last block
    assert cache.used == 1
    assert cache.free == 2
    cache.release(held(cache, 2))
    cache.release(twin)
    held(cache, 7, 8)  # takes the block of 2 and the nameless copy
    assert cache.holds(1)
    assert not cache.holds(2)


def test_a_copy_outlives_the_eviction_of_the_first() -> None:
    cache = KvCache(2)
    cache.release(held(cache, 1))
    twin = held(cache, 1)
    other = held(cache, 5)  # evicts the first copy
    assert not cache.holds(1)
    cache.release(twin)
    assert cache.holds(1)
    cache.release(other)
    assert cache.used == 0


def test_a_partial_block_is_found_only_once_it_is_full() -> None:
    cache = KvCache(2)
    blocks: list[int] = []
    cache.add_partial(blocks)
    cache.fill(0, 42, blocks)
    assert blocks == [42]
    assert cache.match((42,), 1) == 1
    cache.release(blocks)
    assert (cache.used, cache.free, cache.cached) == (0, 2, 1)


def test_a_reset_forgets_everything_but_not_while_blocks_are_held() -> None:
    cache = KvCache(2)
    blocks = held(cache, 1)
    assert not cache.reset()
    cache.release(blocks)
    assert cache.reset()
    assert not cache.holds(1)
    assert cache.free == 2
