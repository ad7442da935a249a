"""What can be asked of, and told to, an index of prefixes?

Endpoints are *slots*: small numbers that the index hands out, so that a set of endpoints is the bits of one integer.
Room on a server is counted in *units* (64 tokens, of which a block has one or more: `extproc.prefix.blocks`), memory
here in *blocks*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class IndexStats:
    """How full an index is."""

    endpoints: int
    blocks: int  # held, summed over the endpoints
    leaving_blocks: int  # of endpoints that were forgotten, and not yet cleaned up; they match nothing
    evicted_blocks: int  # since the start, for want of room
    bytes: int  # estimate of the memory they take


class PrefixIndex(Protocol):
    """Which leading blocks of a prompt each endpoint is believed to hold.

    Hashes are chains as of `extproc.prefix.blocks`: each stands for all blocks before it, too. A slot that was never
    handed out, or was removed, raises KeyError where one slot is named, and is ignored in a mask.
    """

    def add_endpoint(self) -> int:
        """A new slot, holding nothing. A slot that was removed may be handed out again."""
        ...

    def match(self, hashes: Sequence[int], slots_mask: int, worth: Sequence[float] | None = None) -> dict[int, float]:
        """For the slots of the mask: how many blocks they hold from the first on, without a gap. None are left out.

        `worth`: what to say in place of so many blocks.
        """
        ...

    def insert(self, slot: int, hashes: Sequence[int], mark: int | None = None) -> None:
        """A request with these blocks went there. `mark`: of the whole prompt; it matches as a chain of its own."""
        ...

    def occupy(self, slot: int, units: int) -> None:
        """The server filled this much with what no hash is known of, such as an answer that nobody continues."""
        ...

    def set_capacity(self, slot: int, units: int | None) -> None:
        """How much the server's cache has room for; None: unknown."""
        ...

    def forget(self, slot: int) -> None:
        """The server's cache is empty (it restarted, slept, was reset). The slot stays."""
        ...

    def remove(self, slot: int) -> None:
        """The server left."""
        ...

    def stats(self) -> IndexStats: ...
