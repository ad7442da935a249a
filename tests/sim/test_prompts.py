"""Prompts cut from spans are what engine and router would make of their text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise, takewhile
from random import Random

import pytest

from extproc.openai.understand import understand
from extproc.prefix.turns import PromptBlocks, prompt_blocks
from extproc.sim.bodies import SESSION_HEADER, BodyWriter
from extproc.sim.prompts import PromptCutter
from extproc.sim.spec import A100_8B
from extproc.sim.workloads import WORKLOADS, Arrival, Fleet, block_hashes, draw

FLEET = Fleet.of(A100_8B, 4)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def blocks_of_text(arrivals: list[Arrival], some: list[Arrival]) -> list[PromptBlocks]:
    """By way of real bodies, as the service reads them."""
    writer = BodyWriter(arrivals)
    requests = [understand(writer.request(arrival), session_headers=[SESSION_HEADER]) for arrival in some]
    return [prompt_blocks(request, model=request.model) for request in requests]


@pytest.mark.parametrize("block_tokens", [16, 32, 64])
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_engine_gets_the_hashes_of_prompt_and_answer(name: str, block_tokens: int) -> None:
    arrivals = draw(name, 1, FLEET, 5)
    cutter = PromptCutter(arrivals, block_tokens)
    for arrival in arrivals[:100]:
        whole = (*arrival.spans, (arrival.answer, arrival.answer_tokens))
        assert cutter.cut(arrival).engine_hashes == block_hashes(whole, block_tokens)


def test_spans_that_end_within_a_block_are_cut_like_any_other() -> None:
    rng = Random(3)
    arrivals = [
        Arrival(
            0, tuple((rng.randint(1, 3), rng.randint(1, 40)) for _ in range(rng.randint(1, 6))), 100 + n, 1 + n % 40
        )
        for n in range(300)
    ]
    cutter = PromptCutter(arrivals, 16)
    for arrival in arrivals:
        whole = (*arrival.spans, (arrival.answer, arrival.answer_tokens))
        assert cutter.cut(arrival).engine_hashes == block_hashes(whole, 16)


def test_the_index_gets_as_many_blocks_as_the_text_has() -> None:
    """Text has 2 to 20 bytes more a message than its spans: with under 40 messages at most 3 blocks of 256 bytes."""
    arrivals = draw("W9", 1, FLEET, 20)
    some = arrivals[::5]
    cutter = PromptCutter(arrivals, 16)
    for arrival, of_text in zip(some, blocks_of_text(arrivals, some), strict=True):
        blocks = cutter.cut(arrival).blocks
        assert 0 <= len(of_text.hashes) - len(blocks.hashes) <= 3
        assert (blocks.answer_mark is None) == (of_text.answer_mark is None)
        assert 0 <= of_text.answer_blocks - blocks.answer_blocks <= 3


def test_two_prompts_share_as_many_blocks_as_their_texts() -> None:
    arrivals = draw("W3", 1, FLEET, 5)[:40]
    cutter = PromptCutter(arrivals, 16)
    cut = [cutter.cut(arrival).blocks.hashes for arrival in arrivals]
    of_text = [blocks.hashes for blocks in blocks_of_text(arrivals, arrivals)]
    for (one, other), (text, other_text) in zip(pairwise(cut), pairwise(of_text), strict=True):
        assert common(one, other) == 4000 // 64
        assert common(one, other) == common(text, other_text)


@pytest.mark.parametrize("by_text", [False, True])
def test_a_turn_names_the_mark_that_the_last_turn_left(by_text: bool) -> None:
    """Neither way is the router told an answer: the mark is of what stood before it."""
    sessions: dict[str | None, list[Arrival]] = defaultdict(list)
    for arrival in draw("W2", 1, FLEET, 60):
        sessions[arrival.session].append(arrival)
    arrivals = max(sessions.values(), key=len)
    assert len(arrivals) > 4
    if by_text:
        turns = blocks_of_text(arrivals, arrivals)
    else:
        cutter = PromptCutter(arrivals, 16)
        turns = [cutter.cut(arrival).blocks for arrival in arrivals]
    for before, after in pairwise(turns):
        assert after.answer_mark == before.mark
        assert after.answer_mark is not None
        assert after.answer_blocks >= common(before.hashes, after.hashes) == len(before.hashes)


def test_a_prompt_shorter_than_a_block_is_nothing_to_the_index() -> None:
    arrival = Arrival(0, ((1, 63),), 2, 100)
    assert PromptCutter([arrival], 16).cut(arrival).blocks.hashes == ()


def test_an_engine_whose_blocks_do_not_fit_the_index_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size_tokens: 48 does not divide 64"):
        PromptCutter([], 48)
