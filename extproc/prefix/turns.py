"""How much of a prompt does a server hold, with what it has generated itself?

The index learns prompts, not answers. But the next turn of a chat contains the last answer: prompt n + 1 is prompt n,
the answer, and something new. So each prompt leaves a *mark*, the hash of all of it. Where a server holds the mark of
what stood before the answer, it has generated that answer, and holds it too.

An answer that the client has changed, or that follows reasoning which is not sent back, is credited wrongly: for one
request, by at most the answer's length.
"""

from __future__ import annotations

from collections.abc import Sequence

from extproc.prefix.blocks import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    UNITS_UP_TO,
    blocks_within,
    chain,
    end_mark,
    root_of,
    units_of,
)
from extproc.prefix.index import PrefixIndex
from extproc.request import InferenceRequest
from extproc.value import value


@value
class PromptBlocks:
    """A prompt as the index sees it."""

    hashes: Sequence[int]  # of the full blocks
    mark: int | None  # of the whole prompt, for the index; None: the prompt goes beyond the chain
    answer_mark: int | None  # mark of what stood before the last answer; None: no answer, or beyond the chain
    answer_blocks: int  # full blocks up to the end of that answer

    @property
    def units(self) -> int:
        """Units in all full blocks."""
        return units_of(len(self.hashes))


NOTHING = PromptBlocks((), None, None, 0)


def prompt_blocks(
    request: InferenceRequest,
    *,
    model: str | None,
    adapter: str | None = None,
    block_bytes: int = BLOCK_BYTES,
    max_blocks: int = MAX_BLOCKS,
) -> PromptBlocks:
    """Cut a request's prompt. `model` and `adapter` are the served names, so that aliases share."""
    prompt = request.prompt
    if len(prompt) < block_bytes:
        return NOTHING
    root = root_of(model=model, adapter=adapter, salt=request.cache_salt, block_bytes=block_bytes)
    hashes = chain(prompt, root, block_bytes=block_bytes, max_blocks=max_blocks)
    mark = end_mark(prompt, len(prompt), hashes, root, block_bytes=block_bytes)
    answer_mark, answer_blocks = None, 0
    if request.generated_to > request.generated_from:
        answer_blocks = min(blocks_within(request.generated_to // block_bytes), len(hashes))
        answer_mark = end_mark(prompt, request.generated_from, hashes, root, block_bytes=block_bytes)
    return PromptBlocks(hashes, mark, answer_mark, answer_blocks)


def match_prompt(
    index: PrefixIndex, blocks: PromptBlocks, slots_mask: int, worth: Sequence[float] = UNITS_UP_TO
) -> dict[int, float]:
    """How much of the prompt's beginning is held per slot, the last answer counted where it was generated.

    Only slots that hold any. `worth`: what so many leading blocks come to, in whatever unit; by default in units.
    """
    matched = index.match(blocks.hashes, slots_mask, worth)
    if blocks.answer_mark is not None and blocks.answer_blocks:
        answered = worth[blocks.answer_blocks]
        for slot in index.match((blocks.answer_mark,), slots_mask):
            if answered > matched.get(slot, 0):
                matched[slot] = answered
    return matched


def learn(index: PrefixIndex, slot: int, blocks: PromptBlocks) -> None:
    """The request goes to this slot."""
    index.insert(slot, blocks.hashes, blocks.mark)
