"""Which KV blocks are held, which are cached, and which goes next when room is needed?

vLLM's block pool, by content. A *full* block is known by its chained hash (an int >= 0) and is shared: it has a number
of holders. A block that is not full, or holds the same content as a block that is known already (a *twin*: two requests
computed the same prefix at the same time, or a fully cached prompt recomputed its last block), is private to one holder
and is known by a negative number.

A block without holders goes to the end of the free list but stays cached; blocks for new content come from the front.
A request gives back its blocks from the tail to the root, so that its tail is reused first and the root, the part that
others share, lives longest. A cached block found again leaves the free list.

Where vLLM keeps two copies of a content, here the copy given back later takes the known name to the end of the free
list and the earlier copy becomes a nameless block. The content lives as long as in vLLM; only the place of the nameless
copy in the free list differs, and the content is missed while only a twin in use is left.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """Blocks of one engine. Blocks of a holder are kept by the holder, in a list that these methods change."""

    __slots__ = ("_blank", "_free", "_holders", "_next_private", "_private", "_twin_of", "blocks", "evicted")

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.evicted = 0  # cached contents lost so far
        self._blank = blocks  # never used since the last reset: at the front of the free list
        self._free: OrderedDict[int, None] = OrderedDict()  # front: reused next
        self._holders: dict[int, int] = {}  # hash -> number of holders, only where above 0
        self._private = 0  # blocks held under a negative number
        self._twin_of: dict[int, int] = {}  # negative number -> hash of the same content
        self._next_private = -1

    @property
    def free(self) -> int:
        """Blocks nobody holds, cached or not."""
        return self._blank + len(self._free)

    @property
    def used(self) -> int:
        """Blocks held by requests, shared ones counted once."""
        return len(self._holders) + self._private

    @property
    def cached(self) -> int:
        """Contents that a new request could find."""
        return len(self._holders) + sum(1 for key in self._free if key >= 0)

    def holds(self, block_hash: int) -> bool:
        """Whether this content would be found."""
        return block_hash in self._holders or block_hash in self._free

    def match(self, hashes: Sequence[int], at_most: int) -> int:
        """How many leading blocks are present, `at_most` or fewer."""
        holders, free = self._holders, self._free
        found = 0
        for block_hash in hashes[:at_most]:
            if block_hash not in holders and block_hash not in free:
                break
            found += 1
        return found

    def idle(self, hashes: Sequence[int], count: int) -> int:
        """How many of the first `count` blocks, all present, nobody holds: holding them takes that many free blocks."""
        free = self._free
        return sum(1 for block_hash in hashes[:count] if block_hash in free)

    def hold(self, hashes: Sequence[int], count: int, blocks: list[int]) -> None:
        """Add the first `count` blocks, all present, to `blocks`."""
        holders, free = self._holders, self._free
        for block_hash in hashes[:count]:
            n = holders.get(block_hash, 0)
            if n == 0:
                del free[block_hash]
            holders[block_hash] = n + 1
            blocks.append(block_hash)

    def add_full(self, block_hash: int, blocks: list[int]) -> None:
        """Take a free block for a content that fills it. The caller has checked `free`."""
        self._take()
        if block_hash in self._holders or block_hash in self._free:
            key = self._new_private()
            self._twin_of[key] = block_hash
            blocks.append(key)
        else:
            self._holders[block_hash] = 1
            blocks.append(block_hash)

    def add_partial(self, blocks: list[int]) -> None:
        """Take a free block for a content that does not fill it yet. The caller has checked `free`."""
        self._take()
        blocks.append(self._new_private())

    def fill(self, index: int, block_hash: int, blocks: list[int]) -> None:
        """The partial block at `index` is full now."""
        if block_hash in self._holders or block_hash in self._free:
            self._twin_of[blocks[index]] = block_hash
        else:
            self._private -= 1
            self._holders[block_hash] = 1
            blocks[index] = block_hash

    def release(self, blocks: list[int]) -> None:
        """Give all of `blocks` back, the tail first, and empty the list."""
        holders, free = self._holders, self._free
        for key in reversed(blocks):
            if key < 0:
                self._release_private(key)
            else:
                n = holders[key]
                if n == 1:
                    del holders[key]
                    free[key] = None
                else:
                    holders[key] = n - 1
        blocks.clear()

    def reset(self) -> bool:
        """Forget every content, unless blocks are held: then nothing happens and the answer is False."""
        if self.used:
            return False
        self._free.clear()
        self._blank = self.blocks
        return True

    def _new_private(self) -> int:
        key = self._next_private
        self._next_private = key - 1
        self._private += 1
        return key

    def _take(self) -> None:
        if self._blank:
            self._blank -= 1
        else:
            key, _ = self._free.popitem(last=False)
            if key >= 0:
                self.evicted += 1

    def _release_private(self, key: int) -> None:
        self._private -= 1
        block_hash = self._twin_of.pop(key, None) if self._twin_of else None
        if block_hash is None or block_hash in self._holders:
            self._free[key] = None
        elif block_hash in self._free:
            self._free[key] = None
            self._free.move_to_end(block_hash)
        else:  # the other copy is gone; this one is the content now
            self._free[block_hash] = None
