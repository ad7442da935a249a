"""How does a workload's prompt look to the engine and to the prefix index, without its text?

Both cut prompts into blocks and hash them in a chain; where two prompts differ is told by their spans alone. The engine
is given the chain of prompt and answer at its own block size (`workloads.block_hashes`). The index is given what
`prefix.turns.prompt_blocks` makes of the bytes of such a prompt: the hash at each of its longer blocks' ends, the mark
of the whole, and the mark of what stood before the last answer. It is not told any answer in advance.

What spans leave out: heads of messages, and that four bytes are a token only about. The text itself is in `bodies`.

Beginnings that come again (documents, system prompts, earlier turns) are hashed once: a tree of spans remembers them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from extproc.placement import UNIT_TOKENS
from extproc.prefix.blocks import BLOCK_UNITS, MAX_BLOCKS, blocks_within
from extproc.prefix.turns import NOTHING, PromptBlocks
from extproc.sim.workloads import Arrival, Span

_MASK = 0x7FFF_FFFF_FFFF_FFFF  # as workloads.block_hashes
_MARK = -5  # begins what a mark is the hash of; no chain has it
_UNITS = tuple(accumulate(BLOCK_UNITS))  # up to the end of each block of the index


@dataclass(frozen=True, slots=True)
class CutPrompt:
    """One prompt, as blocks."""

    engine_hashes: list[int]  # of the full blocks of prompt and answer
    blocks: PromptBlocks


class _Beginning:
    """Some leading spans of a prompt."""

    __slots__ = ("hash", "hashes", "longer", "parts", "tokens")

    def __init__(self, hash_: int, parts: tuple[tuple[int, int, int], ...], tokens: int, hashes: list[int]) -> None:
        self.hash = hash_  # of the last full block
        self.parts = parts  # text, start and length of what stands in the block that is not full
        self.tokens = tokens
        self.hashes = hashes  # of the blocks that its last span has filled
        self.longer: dict[Span, _Beginning] = {}

    @property
    def mark(self) -> int:
        return hash((_MARK, self.hash, *self.parts)) & _MASK


class PromptCutter:
    """Cuts the prompts of one workload for engines of one block size.

    Raises:
        ValueError: the index's unit of tokens is no multiple of the block size.
    """

    def __init__(self, arrivals: Iterable[Arrival], block_tokens: int) -> None:
        if UNIT_TOKENS % block_tokens:
            raise ValueError(f"block_size_tokens: {block_tokens} does not divide {UNIT_TOKENS}, the index's unit")
        self._block_tokens = block_tokens
        self._per_unit = UNIT_TOKENS // block_tokens
        self._answers = {arrival.answer for arrival in arrivals}
        self._root = _Beginning(0, (), 0, [])

    def cut(self, arrival: Arrival) -> CutPrompt:
        """The blocks of a prompt. What has a session, or more than one span, is remembered but for its last part."""
        at, before_answer, answer_end = self._root, None, 0
        hashes: list[int] = []
        last = len(arrival.spans) - 1
        for place, span in enumerate(arrival.spans):
            before = at
            at = self._step(at, span, keep=place < last or arrival.session is not None)
            hashes += at.hashes
            if place < last and span[0] in self._answers:
                before_answer, answer_end = before, at.tokens
        prompt = at
        with_answer = self._step(at, (arrival.answer, arrival.answer_tokens), keep=arrival.session is not None)
        hashes += with_answer.hashes
        return CutPrompt(hashes, self._blocks(hashes, prompt, before_answer, answer_end))

    def _blocks(
        self, hashes: list[int], prompt: _Beginning, before_answer: _Beginning | None, answer_end: int
    ) -> PromptBlocks:
        full = blocks_within(prompt.tokens // UNIT_TOKENS)
        if not full:
            return NOTHING
        blocks = [hashes[units * self._per_unit - 1] for units in _UNITS[:full]]
        mark = prompt.mark if full < MAX_BLOCKS else None
        if before_answer is None or blocks_within(before_answer.tokens // UNIT_TOKENS) == MAX_BLOCKS:
            return PromptBlocks(blocks, mark, None, 0)
        return PromptBlocks(blocks, mark, before_answer.mark, min(blocks_within(answer_end // UNIT_TOKENS), full))

    def _step(self, at: _Beginning, span: Span, *, keep: bool) -> _Beginning:
        longer = at.longer.get(span)
        if longer is None:
            longer = self._extend(at, span)
            if keep:
                at.longer[span] = longer
        return longer

    def _extend(self, at: _Beginning, span: Span) -> _Beginning:
        text, tokens = span
        size, parent, parts = self._block_tokens, at.hash, at.parts
        out: list[int] = []
        start = 0
        filled = at.tokens % size
        if filled:
            start = min(size - filled, tokens)
            parts = (*parts, (text, 0, start))
            if filled + start == size:
                parent = hash((parent, *parts)) & _MASK
                out.append(parent)
                parts = ()
        end = start + (tokens - start) // size * size
        for start in range(start, end, size):  # noqa: B020 - the first value is where the range begins
            parent = hash((parent, (text, start, size))) & _MASK
            out.append(parent)
        if end < tokens:
            parts = (*parts, (text, end, tokens - end))
        return _Beginning(parent, parts, at.tokens + tokens, out)
