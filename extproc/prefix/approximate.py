"""Which prefixes does each server hold, going by where requests were sent?

One flat table: block hash -> the set of endpoints, as the bits of an integer. Beside it, per endpoint, its blocks in
the order of their last use (`extproc.prefix.holding`). A request uses its blocks from the last to the first, so a block
is never older than one that builds on it, and evicting the oldest first takes chains from their tails. It follows that

    an endpoint holds a block only if it holds all blocks before it,

which is what lets `match` jump: along a chain, the set of holders only shrinks, so where it changes is found by
doubling steps and bisection instead of looking at every block.

Room is bounded twice: per endpoint by its own cache in units, over all by `max_blocks`. When all of them want more, an
endpoint above the equal share gives way. Forgetting an endpoint takes its bit out of use at once; the blocks behind it
are cleaned up by and by, at most a few per block inserted, and the bit is used again when that is done. No call's work
depends on how much is held.

Memory: of a block and holder 85 to 140 bytes while it fills, and 130 to 210 once it is full and evicts, since dicts
that are deleted from stay larger; the more, the shorter the prompts. Where they have a block or two each it is 300 to
450 (CPython 3.11, 64 endpoints, tracemalloc, as `make bench-pick` measures it).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import compress

from extproc.prefix.blocks import blocks_within
from extproc.prefix.holding import UNBOUNDED, Holding
from extproc.prefix.index import IndexStats

BYTES_PER_BLOCK = 300  # an estimate on the safe side for all but the shortest prompts
DEFAULT_MAX_BLOCKS = 1_000_000

# A dict that grows is copied as a whole: 15 to 60 ms for a million entries, under 0.5 ms for 1/64 of them.
_SHARDS = 64
_SHARD_BITS = _SHARDS - 1
# Clean-up and shrinking beside an insert: this many blocks, and as many again per new one.
_UPKEEP_BLOCKS = 128
_FEW_VICTIMS = 4  # looked at per insert
_FEW_BITS = 32  # are quicker taken one by one than all looked at
_MEMO_MASKS = 64
_MEMO_SETS = 512
_BINARY = bytes.maketrans(b"01", b"\0\1")
_LOOKED_AT = 4096  # blocks, to estimate what one endpoint alone holds


class ApproximateIndex:
    """A `PrefixIndex` fed by our own picks."""

    def __init__(self, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        """`max_blocks` bounds the sum over all endpoints, at `BYTES_PER_BLOCK` each."""
        if max_blocks < 1:
            raise ValueError(f"max_blocks {max_blocks} must be at least 1")
        self._max_blocks = max_blocks
        self._table: list[dict[int, int]] = [{} for _ in range(_SHARDS)]
        self._holdings: dict[int, Holding] = {}
        self._slot_of_bit: list[int] = []  # by the bit's number; of a bit in use
        self._free_slots: list[int] = []
        self._free_bits: list[int] = []
        self._leaving: deque[Holding] = deque()
        self._masks: dict[int, int] = {}  # the caller's slots -> our bits, for the masks seen of late
        self._sets: dict[int, Sequence[int]] = {}  # our bits -> slots, for the sets seen of late
        self._total = 0  # blocks, the leaving ones included
        self._leaving_blocks = 0
        self._evicted = 0
        self._next_victim: deque[Holding] = deque()

    # Endpoints come and go.

    def add_endpoint(self) -> int:
        slot = heapq.heappop(self._free_slots) if self._free_slots else len(self._holdings)
        holding = Holding(self._take_bit(slot))
        self._holdings[slot] = holding
        self._next_victim.append(holding)
        self._masks.clear()
        return slot

    def remove(self, slot: int) -> None:
        holding = self._holdings.pop(slot)
        heapq.heappush(self._free_slots, slot)
        self._next_victim.remove(holding)
        self._leave(holding)

    def forget(self, slot: int) -> None:
        left = self._holdings[slot]
        empty = Holding(self._take_bit(slot))
        empty.capacity = left.capacity
        self._holdings[slot] = empty
        self._next_victim[self._next_victim.index(left)] = empty
        self._leave(left)

    def set_capacity(self, slot: int, units: int | None) -> None:
        """A smaller one than before is reached by and by, with the inserts that follow."""
        if units is not None and units < 0:
            raise ValueError(f"a capacity of {units} units")
        self._holdings[slot].capacity = UNBOUNDED if units is None else units

    def _take_bit(self, slot: int) -> int:
        if self._free_bits:
            number = heapq.heappop(self._free_bits)
            self._slot_of_bit[number] = slot
            self._sets.clear()
        else:
            number = len(self._slot_of_bit)
            self._slot_of_bit.append(slot)
        return 1 << number

    def _leave(self, holding: Holding) -> None:
        self._masks.clear()
        if not holding.blocks:
            self._free_bit(holding)
            return
        self._leaving.append(holding)
        self._leaving_blocks += holding.blocks

    def _free_bit(self, holding: Holding) -> None:
        heapq.heappush(self._free_bits, holding.bit.bit_length() - 1)

    # Looking up.

    def match(self, hashes: Sequence[int], slots_mask: int, worth: Sequence[float] | None = None) -> dict[int, float]:
        matched: dict[int, float] = {}
        if not hashes:
            return matched
        bits = self._masks.get(slots_mask)
        if bits is None:
            bits = self._bits_of(slots_mask)
        table = self._table
        value = hashes[0]
        holders = table[value & _SHARD_BITS].get(value, 0) & bits
        low, last = 0, len(hashes) - 1  # all of `holders` hold the block at `low`
        while holders:
            # Find the next block, `high`, that not all of them hold; `still` are those that do.
            high, step, still = low + 1, 1, 0
            while high <= last:
                value = hashes[high]
                still = table[value & _SHARD_BITS].get(value, 0) & holders
                if still != holders:
                    break
                low, step = high, step * 2
                high = min(low + step, last) if low < last else last + 1
            if high > last:
                still = 0
            while high - low > 1:
                middle = (low + high) // 2
                value = hashes[middle]
                some = table[value & _SHARD_BITS].get(value, 0) & holders
                if some == holders:
                    low = middle
                else:
                    high, still = middle, some
            gone = holders ^ still
            slots = self._sets.get(gone) or self._slots_of(gone)
            matched.update(dict.fromkeys(slots, high if worth is None else worth[high]))
            holders, low = still, high
        return matched

    def _slots_of(self, bits: int) -> Sequence[int]:
        """The slots that these bits stand for; remembered, for who holds a prefix changes less often than it is asked
        for."""
        slots = self._slot_of_bit
        if bits.bit_count() < _FEW_BITS:
            found, left = [], bits
            while left:
                lowest = left & -left
                found.append(slots[lowest.bit_length() - 1])
                left ^= lowest
        else:
            found = list(compress(slots, f"{bits:b}"[::-1].encode().translate(_BINARY)))
        if len(self._sets) >= _MEMO_SETS:
            self._sets.clear()
        self._sets[bits] = found
        return found

    def _bits_of(self, slots_mask: int) -> int:
        bits = 0
        for slot, holding in self._holdings.items():
            if slots_mask >> slot & 1:
                bits |= holding.bit
        if len(self._masks) >= _MEMO_MASKS:
            self._masks.clear()
        self._masks[slots_mask] = bits
        return bits

    # Taking in.

    def insert(self, slot: int, hashes: Sequence[int], mark: int | None = None) -> None:
        holding = self._holdings[slot]
        room = min(blocks_within(holding.capacity), self._max_blocks)
        if len(hashes) >= room:
            hashes, mark = hashes[:room], None
        table, bit = self._table, holding.bit
        added = 0
        if mark is not None and holding.use_mark(mark):  # before the blocks, so that it goes before them
            shard = table[mark & _SHARD_BITS]
            shard[mark] = shard.get(mark, 0) | bit
            added = 1
        new = holding.use(hashes)
        for value in new:
            shard = table[value & _SHARD_BITS]
            holders = shard.setdefault(value, bit)
            if holders != bit:
                shard[value] = holders | bit
        added += len(new)
        self._total += added
        self._make_room(holding, added)

    def occupy(self, slot: int, units: int) -> None:
        holding = self._holdings[slot]
        units = min(units, holding.capacity)
        if units <= 0:
            return
        holding.occupy(units)
        self._total += 1
        self._make_room(holding, 1)

    # Making room.

    def _make_room(self, holding: Holding, added: int) -> None:
        if holding.units > holding.capacity:
            self._evicted += self._drop(holding, added + _UPKEEP_BLOCKS, holding.capacity)
        if self._leaving:
            self._clean_up(added + _UPKEEP_BLOCKS)
        while self._total > self._max_blocks:
            self._give_way(self._total - self._max_blocks, holding)

    def _give_way(self, blocks: int, growing: Holding) -> None:
        """The leaving endpoints first. Without them some endpoint is above the equal share, or all would fit.

        A few are looked at for one above it, in turn, so that one that has grown too large and now rests is found some
        day; then the one that grows.
        """
        if self._leaving:
            self._clean_up(blocks)
            return
        share = self._max_blocks // len(self._holdings)
        in_turn = self._next_victim
        few = _FEW_VICTIMS
        while in_turn[0].blocks <= share and (few or growing.blocks <= share):
            in_turn.rotate(-1)
            few = max(0, few - 1)
        victim = in_turn[0] if in_turn[0].blocks > share else growing
        self._evicted += self._drop(victim, min(blocks, victim.blocks - share))

    def _clean_up(self, blocks: int) -> None:
        """Go on with the blocks of endpoints that were forgotten."""
        while blocks > 0 and self._leaving:
            holding = self._leaving[0]
            dropped = self._drop(holding, blocks)
            self._leaving_blocks -= dropped
            blocks -= dropped
            if not holding.blocks:
                self._leaving.popleft()
                self._free_bit(holding)

    def _drop(self, holding: Holding, most: int, until_units: int = -1) -> int:
        """Take out the oldest blocks: at most so many, and no more than brings the units down. How many it were."""
        before = holding.blocks
        gone = holding.drop(most, until_units)
        table, bit = self._table, holding.bit
        for value in gone:
            shard = table[value & _SHARD_BITS]
            holders = shard.pop(value, bit)
            if holders != bit:
                shard[value] = holders & ~bit
        dropped = before - holding.blocks
        self._total -= dropped
        return dropped

    def alone(self, slot: int) -> float:
        """How many units this endpoint holds that no other does: what would have to be computed anew without it.

        An estimate from its blocks used last; what no hash is known of counts as nothing, for nobody asks for it.
        """
        holding = self._holdings[slot]
        live = 0
        for each in self._holdings.values():
            live |= each.bit
        looked_at, only = 0, 0
        for value, size in holding.latest(_LOOKED_AT):
            looked_at += 1
            if value >= 0 and self._table[value & _SHARD_BITS].get(value, 0) & live == holding.bit:
                only += size
        return only * holding.blocks / looked_at if looked_at else 0.0

    def upkeep(self, blocks: int) -> None:
        """Do some of the clean-up now, for a caller with time to spare."""
        self._clean_up(blocks)

    def stats(self) -> IndexStats:
        return IndexStats(
            endpoints=len(self._holdings),
            blocks=self._total - self._leaving_blocks,
            leaving_blocks=self._leaving_blocks,
            evicted_blocks=self._evicted,
            bytes=self._total * BYTES_PER_BLOCK,
        )
