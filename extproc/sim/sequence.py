"""What does the engine remember of one request?"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from extproc.sim.events import Request

_HASH_MASK = (1 << 62) - 1


class Sequence:
    """A request inside the engine: its tokens, its blocks and when things happened to it (seconds)."""

    __slots__ = (
        *("aborted", "blocks", "cached_tokens", "computed", "first_token_s", "generated", "hashes", "last_token_s"),
        *("num_tokens", "number", "preemptions", "request", "scheduled_s", "submitted_s"),
    )

    def __init__(self, request: Request, number: int, now: float) -> None:
        self.request = request
        self.number = number  # of this engine's submissions
        self.num_tokens = request.prompt_tokens  # prompt and answer so far
        self.computed = 0  # of these, with KV in blocks, the step in flight included
        self.generated = 0
        self.blocks: list[int] = []
        self.hashes: Seq[int] = request.block_hashes
        self.cached_tokens = 0  # found at the first admission
        self.preemptions = 0
        self.aborted = False  # leaves when the step in flight ends
        self.submitted_s = now
        self.scheduled_s: float | None = None  # first admission
        self.first_token_s: float | None = None
        self.last_token_s = now

    @property
    def done(self) -> bool:
        """Whether the answer has all its tokens."""
        return self.generated == self.request.max_tokens

    def hash_of(self, index: int) -> int:
        """The chained hash of a block whose tokens are all known."""
        hashes = self.hashes
        if index < len(hashes):
            return hashes[index]
        if not isinstance(hashes, list) or hashes is self.request.block_hashes:
            self.hashes = hashes = list(hashes)
        next_hash = self.request.next_hash
        while len(hashes) <= index:
            parent = hashes[-1] if hashes else 0
            at = len(hashes)
            hashes.append(hash((parent, self.number, at)) & _HASH_MASK if next_hash is None else next_hash(at, parent))
        return hashes[index]
