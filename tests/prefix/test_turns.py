"""What a server generated counts as held by it."""

from __future__ import annotations

import json

from extproc.openai.understand import understand
from extproc.prefix.approximate import ApproximateIndex
from extproc.prefix.blocks import MAX_BLOCKS, units_of
from extproc.prefix.turns import PromptBlocks, learn, match_prompt, prompt_blocks
from extproc.request import RawRequest

BLOCK = 16
ALL = (1 << 64) - 1
QUESTION = {"role": "user", "content": "a question of some length, " * 3}
ANSWER = {"role": "assistant", "content": "an answer of some length, " * 10}
NEXT = {"role": "user", "content": "and the next"}


def blocks(*messages: dict[str, str], salt: str | None = None) -> PromptBlocks:
    body = json.dumps({"messages": messages, "cache_salt": salt}).encode()
    return prompt_blocks(understand(RawRequest("POST", "/v1/chat/completions", {}, body)), model="m", block_bytes=BLOCK)


def test_an_answer_counts_as_held_by_who_gave_it() -> None:
    index = ApproximateIndex()
    served, idle = index.add_endpoint(), index.add_endpoint()
    learn(index, served, blocks(QUESTION))
    second = blocks(QUESTION, ANSWER, NEXT)
    held = match_prompt(index, second, ALL)
    assert held == {served: second.answer_blocks}
    assert idle not in held
    assert index.match(second.hashes, ALL)[served] < held[served] <= len(second.hashes)


def test_another_question_with_the_same_beginning_earns_no_answer() -> None:
    index = ApproximateIndex()
    slot = index.add_endpoint()
    learn(index, slot, blocks(QUESTION))
    other = blocks({**QUESTION, "content": QUESTION["content"] + "!"}, ANSWER, NEXT)
    assert match_prompt(index, other, ALL) == index.match(other.hashes, ALL)


def test_another_salt_earns_nothing() -> None:
    """case c14"""
    index = ApproximateIndex()
    slot = index.add_endpoint()
    learn(index, slot, blocks(QUESTION, salt="t1"))
    assert match_prompt(index, blocks(QUESTION, ANSWER, NEXT, salt="t2"), ALL) == {}
    assert match_prompt(index, blocks(QUESTION, ANSWER, NEXT), ALL) == {}
    assert match_prompt(index, blocks(QUESTION, ANSWER, NEXT, salt="t1"), ALL)[slot] > 0


def test_only_the_slots_of_the_mask_are_credited() -> None:
    index = ApproximateIndex()
    a, b = index.add_endpoint(), index.add_endpoint()
    learn(index, a, blocks(QUESTION))
    assert match_prompt(index, blocks(QUESTION, ANSWER, NEXT), 1 << b) == {}


def test_a_prompt_shorter_than_a_block_is_nothing() -> None:
    """case e12"""
    index = ApproximateIndex()
    learn(index, index.add_endpoint(), blocks({"role": "u", "content": "hi"}))
    assert match_prompt(index, blocks({"role": "u", "content": "hi"}), ALL) == {}
    assert index.stats().blocks == 0


def test_the_saving_is_told_in_units_of_tokens_not_in_shares() -> None:
    """case e12: a short prompt that matches fully saves little"""
    index = ApproximateIndex()
    slot = index.add_endpoint()
    long = blocks({"role": "user", "content": "x" * 30_000})
    for each in (long, blocks(QUESTION)):
        learn(index, slot, each)
    assert match_prompt(index, blocks(QUESTION), ALL)[slot] < 10
    assert match_prompt(index, long, ALL) == {slot: long.units}
    assert long.units > len(long.hashes)


def test_a_prompt_beyond_the_chain_is_held_up_to_there() -> None:
    index = ApproximateIndex()
    slot = index.add_endpoint()
    endless = blocks({"role": "user", "content": "x" * 200_000}, ANSWER, NEXT)
    assert (endless.mark, endless.answer_mark) == (None, None)
    learn(index, slot, endless)
    assert match_prompt(index, endless, ALL) == {slot: units_of(MAX_BLOCKS)}
