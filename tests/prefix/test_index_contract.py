"""What every prefix index promises: the same answers as one that looks at everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from extproc.prefix.approximate import ApproximateIndex
from extproc.prefix.blocks import LADDER, block_hashes
from extproc.prefix.index import PrefixIndex
from tests.prefix.naive import NaiveIndex

INDEXES: list[Callable[[], PrefixIndex]] = [ApproximateIndex, NaiveIndex]
ALL = (1 << 64) - 1


def hashes(text: str) -> list[int]:
    """A chain with a block per letter."""
    return block_hashes(text.encode(), model="m", block_bytes=1)


@pytest.fixture(params=INDEXES, ids=["approximate", "naive"])
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    made: PrefixIndex = request.param()
    return made


def test_a_match_counts_leading_blocks_and_leaves_out_who_has_none(index: PrefixIndex) -> None:
    a, b, c = (index.add_endpoint() for _ in range(3))
    index.insert(a, hashes("prompt"))
    index.insert(b, hashes("pro"))
    index.insert(c, hashes("other"))
    assert index.match(hashes("promise"), ALL) == {a: 4, b: 3}
    assert index.match(hashes("promise"), ALL, [0.0, 0.5, 1.0, 1.5, 2.0]) == {a: 2.0, b: 1.5}
    assert index.match(hashes("xprompt"), ALL) == {}
    assert index.match([], ALL) == {}


def test_a_match_has_no_gaps(index: PrefixIndex) -> None:
    slot = index.add_endpoint()
    index.insert(slot, hashes("abc"))
    first, *_ = hashes("abc")
    assert index.match([first, 12345, hashes("abc")[2]], ALL) == {slot: 1}


def test_only_the_slots_of_the_mask_are_asked(index: PrefixIndex) -> None:
    a, b = index.add_endpoint(), index.add_endpoint()
    for slot in (a, b):
        index.insert(slot, hashes("abc"))
    assert index.match(hashes("abc"), 1 << b) == {b: 3}
    assert index.match(hashes("abc"), 0) == {}


def test_a_server_that_restarted_holds_nothing_and_learns_anew(index: PrefixIndex) -> None:
    """case e13"""
    a, b = index.add_endpoint(), index.add_endpoint()
    for slot in (a, b):
        index.insert(slot, hashes("abc"))
    index.forget(a)
    assert index.match(hashes("abc"), ALL) == {b: 3}
    index.insert(a, hashes("ab"))
    assert index.match(hashes("abc"), ALL) == {a: 2, b: 3}


def test_a_server_in_the_place_of_another_inherits_nothing(index: PrefixIndex) -> None:
    """case e13: address reuse by another server"""
    a, b = index.add_endpoint(), index.add_endpoint()
    for slot in (a, b):
        index.insert(slot, hashes("abc"))
    index.remove(a)
    assert index.match(hashes("abc"), ALL) == {b: 3}
    again = index.add_endpoint()
    assert again != b
    assert index.match(hashes("abc"), ALL) == {b: 3}


def test_a_slot_that_is_not_there_is_an_error_by_name_and_none_in_a_mask(index: PrefixIndex) -> None:
    slot = index.add_endpoint()
    index.remove(slot)
    for call in (lambda: index.insert(slot, hashes("a")), lambda: index.forget(slot), lambda: index.remove(slot)):
        with pytest.raises(KeyError):
            call()
    assert index.match(hashes("a"), ALL) == {}


def test_eviction_takes_the_least_recently_used_and_chains_from_their_tails(index: PrefixIndex) -> None:
    """case e10: hot prefixes stay"""
    slot = index.add_endpoint()
    index.set_capacity(slot, 8)
    index.insert(slot, hashes("abcd"))
    index.insert(slot, hashes("wxyz"))
    index.insert(slot, hashes("ab"))  # its tail, cd, stays old
    index.insert(slot, hashes("12"))
    assert index.match(hashes("abcd"), ALL) == {slot: 2}
    assert index.match(hashes("wxyz"), ALL) == {slot: 4}
    index.insert(slot, hashes("345"))
    assert index.match(hashes("wxyz"), ALL) == {slot: 1}
    assert index.match(hashes("ab"), ALL) == {slot: 2}


def test_a_prompt_longer_than_the_cache_keeps_its_beginning(index: PrefixIndex) -> None:
    slot = index.add_endpoint()
    index.set_capacity(slot, 3)
    index.insert(slot, hashes("abcdef"))
    assert index.match(hashes("abcdef"), ALL) == {slot: 3}
    index.set_capacity(slot, 0)
    index.insert(slot, hashes("x"))
    assert index.match(hashes("x"), ALL) == {}


def test_long_blocks_take_more_room(index: PrefixIndex) -> None:
    slot = index.add_endpoint()
    first = LADDER[0][0]
    index.set_capacity(slot, first + 7)
    index.insert(slot, block_hashes(bytes(first + 40), model="m", block_bytes=1))
    assert index.match(block_hashes(bytes(first + 40), model="m", block_bytes=1), ALL) == {slot: first + 1}


def test_what_the_server_wrote_itself_takes_room(index: PrefixIndex) -> None:
    slot = index.add_endpoint()
    index.set_capacity(slot, 8)
    index.insert(slot, hashes("abcd"))
    index.occupy(slot, 6)
    assert index.match(hashes("abcd"), ALL) == {slot: 2}
    index.occupy(slot, 100)
    assert index.match(hashes("abcd"), ALL) == {}


def test_a_mark_matches_as_a_chain_of_its_own_and_goes_before_its_prompt(index: PrefixIndex) -> None:
    slot = index.add_endpoint()
    index.set_capacity(slot, 4)
    index.insert(slot, hashes("abc"), 777)
    assert index.match([777], ALL) == {slot: 1}
    index.insert(slot, hashes("xy"))
    assert index.match([777], ALL) == {}
    assert index.match(hashes("abc"), ALL) == {slot: 2}


texts = st.text("ab", max_size=12)


def mark_of(text: str) -> int:
    return (1 << 63) + int(text.encode().hex() or "0", 16) % (1 << 63)


class SameAsNaive(RuleBasedStateMachine):
    """Short texts of two letters, so that most share a beginning; capacities only grow, since shrinking takes time."""

    @initialize()
    def start(self) -> None:
        self.index = ApproximateIndex(max_blocks=100_000)
        self.naive = NaiveIndex()

    def slot(self, number: int) -> int:
        slots = sorted(self.naive.held)
        return slots[number % len(slots)]

    numbers = st.integers(0, 5)

    @rule(capacity=st.one_of(st.none(), st.integers(0, 20)))
    def add(self, capacity: int | None) -> None:
        slot = self.index.add_endpoint()
        assert slot == self.naive.add_endpoint()
        for each in (self.index, self.naive):
            each.set_capacity(slot, capacity)

    @precondition(lambda self: self.naive.held)
    @rule(number=numbers, text=texts, marked=st.booleans())
    def insert(self, number: int, text: str, marked: bool) -> None:
        slot = self.slot(number)
        mark = mark_of(text) if marked else None
        for each in (self.index, self.naive):
            each.insert(slot, hashes(text), mark)

    @precondition(lambda self: self.naive.held)
    @rule(number=numbers, units=st.integers(0, 9))
    def occupy(self, number: int, units: int) -> None:
        for each in (self.index, self.naive):
            each.occupy(self.slot(number), units)

    @precondition(lambda self: self.naive.held)
    @rule(number=numbers)
    def forget(self, number: int) -> None:
        for each in (self.index, self.naive):
            each.forget(self.slot(number))

    @precondition(lambda self: self.naive.held)
    @rule(number=numbers)
    def remove(self, number: int) -> None:
        slot = self.slot(number)
        for each in (self.index, self.naive):
            each.remove(slot)

    @rule(blocks=st.integers(0, 5))
    def upkeep(self, blocks: int) -> None:
        self.index.upkeep(blocks)

    @rule(text=texts, mask=st.integers(0, 63))
    def match(self, text: str, mask: int) -> None:
        for value in (hashes(text), [mark_of(text)]):
            assert self.index.match(value, mask) == self.naive.match(value, mask)

    @invariant()
    def hold_as_much(self) -> None:
        assert self.index.stats().blocks == self.naive.stats().blocks
        assert self.index.stats().endpoints == self.naive.stats().endpoints


SameAsNaive.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSameAsNaive = SameAsNaive.TestCase
