"""What is one endpoint believed to hold, and what of it was used longest ago?

Blocks of a chain that were last used together stand together as a *run*. So the order of last use is kept run by run,
not block by block: a prompt costs a step for each run in it, which is one for a chat that has grown and two for
siblings of a document, and only its new blocks cost a step each.

A request uses its blocks from the last to the first. So a run was never used before one that continues it, the one used
longest ago has none that continues it, and taking blocks from its end takes chains from their tails.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from extproc.prefix.blocks import BLOCK_UNITS, blocks_within, units_of

UNBOUNDED = 1 << 62  # units


class _Run:
    """Blocks of one chain, one after the other, that were last used at one time."""

    __slots__ = ("above", "at", "below", "hashes")

    def __init__(self, at: int, hashes: array[int], above: _Run | None) -> None:
        self.at = at  # the first one's position in the chain
        self.hashes = hashes  # at least one; an array, of which the collector need not look at the elements
        self.above = above  # the run that this one continues; None: a chain begins here
        self.below = 0  # runs that continue this one


class Holding:
    """The blocks of one endpoint. They are counted here; who else holds them is the index's to know."""

    __slots__ = ("_order", "_runs", "_unknown", "bit", "blocks", "capacity", "units")

    def __init__(self, bit: int) -> None:
        self.bit = bit  # the index's, that stands for this endpoint
        self.blocks = 0
        self.units = 0  # in them
        self.capacity = UNBOUNDED  # units
        self._runs: dict[int, _Run] = {}  # by the hash of their first block
        # By last use, the longest ago first: runs; marks, with 0 units; what no hash is known of, by negative numbers.
        self._order: OrderedDict[_Run | int, int] = OrderedDict()
        self._unknown = 0  # the last such number

    def use(self, hashes: Sequence[int]) -> Sequence[int]:
        """A request with these blocks came. Returns those of them that are new here."""
        at, count = 0, len(hashes)
        runs, path = self._runs, []
        while at < count:
            run = runs.get(hashes[at])
            if run is None or run.at != at:
                break
            shared = _shared(run.hashes, hashes, at)
            at += shared
            if shared < len(run.hashes):
                path.append(self._split(run, shared))
                break
            path.append(run)
        new = hashes[at:]
        if new:
            self._continue(path[-1] if path else None, at, new)
        renew = self._order.move_to_end
        for run in reversed(path):
            renew(run)
        return new

    def use_mark(self, mark: int) -> bool:
        """A prompt with this mark came; true when it is new here. It takes no room on the server."""
        order = self._order
        if mark in order:
            order.move_to_end(mark)
            return False
        order[mark] = 0
        self.blocks += 1
        return True

    def occupy(self, units: int) -> None:
        """So much was written at one time, and goes as a whole; no hash is known of it."""
        self._unknown -= 1
        self._order[self._unknown] = units
        self.blocks += 1
        self.units += units

    def drop(self, most: int, until_units: int = -1) -> list[int]:
        """Let go of what was used longest ago: at most so many blocks, and no more than brings the units down.

        Returns the hashes of those that have one.
        """
        order, gone = self._order, []
        while most > 0 and order and self.units > until_units:
            oldest = next(iter(order))
            if isinstance(oldest, int):
                self.units -= order.pop(oldest)
                taken = 1
                if oldest >= 0:
                    gone.append(oldest)
            else:
                tail = self._cut(oldest, most, until_units)
                taken = len(tail)
                gone += tail
            self.blocks -= taken
            most -= taken
        return gone

    def latest(self, most: int) -> Iterator[tuple[int, int]]:
        """The blocks used last, hash and units, the last one first. What no hash is known of has a negative one."""
        return islice(self._latest(), most)

    def _latest(self) -> Iterator[tuple[int, int]]:
        for each, units in reversed(self._order.items()):
            if isinstance(each, _Run):
                yield from zip(each.hashes, BLOCK_UNITS[each.at :], strict=False)
            else:
                yield each, units

    def _split(self, run: _Run, blocks: int) -> _Run:
        """Make the first so many blocks of a run, not all, one of their own. That is used now; the rest stays old."""
        upper = _Run(run.at, run.hashes[:blocks], run.above)
        upper.below = 1
        del run.hashes[:blocks]
        run.at += blocks
        run.above = upper
        self._runs[upper.hashes[0]] = upper
        self._runs[run.hashes[0]] = run
        self._order[upper] = 0
        return upper

    def _continue(self, above: _Run | None, at: int, new: Sequence[int]) -> None:
        """Take in blocks that are new here, after those of `above`."""
        added = array("Q", new)
        self.blocks += len(new)
        self.units += units_of(at + len(new)) - units_of(at)
        if above is not None:
            if not above.below:
                above.hashes += added
                return
            above.below += 1
        run = _Run(at, added, above)
        self._runs[new[0]] = run
        self._order[run] = 0

    def _cut(self, run: _Run, most: int, until_units: int) -> Sequence[int]:
        """Take blocks from the end of the oldest run; see `drop`."""
        hashes = run.hashes
        end = run.at + len(hashes)
        at = max(run.at, end - most)
        if until_units >= 0:
            at = max(at, blocks_within(max(0, until_units - self.units + units_of(end))))
        self.units -= units_of(end) - units_of(at)
        if at > run.at:
            tail = hashes[at - run.at :]
            del hashes[at - run.at :]
            return tail
        del self._order[run]
        if self._runs.get(hashes[0]) is run:  # where two chains have one hash, it is the later one's
            del self._runs[hashes[0]]
        if run.above is not None:
            run.above.below -= 1
        return hashes


def _shared(own: Sequence[int], hashes: Sequence[int], at: int) -> int:
    """How many leading blocks of `own` stand in `hashes` from `at` on. The first one does."""
    high = min(len(own), len(hashes) - at)
    if own[high - 1] == hashes[at + high - 1]:
        return high
    low = 1
    while high - low > 1:
        middle = (low + high) // 2
        if own[middle - 1] == hashes[at + middle - 1]:
            low = middle
        else:
            high = middle
    return low
