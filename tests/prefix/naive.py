"""A prefix index by the book: what each endpoint holds, as lists, and everything done by looking at everything."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.prefix.blocks import units_of
from extproc.prefix.index import IndexStats


class NaiveIndex:
    """Has no bound over all; the last used come last."""

    def __init__(self) -> None:
        self.held: dict[int, list[tuple[int, int]]] = {}
        self.capacity: dict[int, int | None] = {}

    def add_endpoint(self) -> int:
        slot = next(n for n in range(len(self.held) + 1) if n not in self.held)
        self.held[slot], self.capacity[slot] = [], None
        return slot

    def match(self, hashes: Sequence[int], slots_mask: int, worth: Sequence[float] | None = None) -> dict[int, float]:
        found: dict[int, float] = {}
        for slot, pairs in self.held.items():
            held = {value for value, _ in pairs}
            count = next((n for n, value in enumerate(hashes) if value not in held), len(hashes))
            if count and slots_mask >> slot & 1:
                found[slot] = count if worth is None else worth[count]
        return found

    def insert(self, slot: int, hashes: Sequence[int], mark: int | None = None) -> None:
        room = self.capacity[slot]
        fitting = [n for n in range(len(hashes) + 1) if room is None or units_of(n) <= room]
        if room is not None and len(hashes) >= fitting[-1] and units_of(len(hashes) + 1) > room:
            mark = None
        kept = list(hashes[: fitting[-1]])
        use = ([] if mark is None else [(mark, 0)]) + [
            (value, units_of(n + 1) - units_of(n)) for n, value in reversed(list(enumerate(kept)))
        ]
        used = {value for value, _ in use}
        self.held[slot] = [pair for pair in self.held[slot] if pair[0] not in used] + use
        self._shrink(slot)

    def occupy(self, slot: int, units: int) -> None:
        room = self.capacity[slot]
        units = units if room is None else min(units, room)
        if units:
            self.held[slot].append((-1, units))
            self._shrink(slot)

    def _shrink(self, slot: int) -> None:
        room = self.capacity[slot]
        while room is not None and sum(units for _, units in self.held[slot]) > room:
            self.held[slot].pop(0)

    def set_capacity(self, slot: int, units: int | None) -> None:
        self.capacity[slot] = units

    def forget(self, slot: int) -> None:
        self.held[slot].clear()

    def remove(self, slot: int) -> None:
        del self.held[slot], self.capacity[slot]

    def stats(self) -> IndexStats:
        blocks = sum(map(len, self.held.values()))
        return IndexStats(len(self.held), blocks, 0, 0, 0)
