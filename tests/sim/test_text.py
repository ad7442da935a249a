"""Equal texts have equal tokens, different ones have not."""

from __future__ import annotations

from typing import Any

from extproc.sim.text import Conversation, count_tokens, render_chat, render_prompt, seed_hash

SYSTEM = {"role": "system", "content": "You answer in rhymes, whatever you are asked." * 3}
QUESTION = {"role": "user", "content": "What is the time?"}


def conversation(prompt: bytes, seed: str = "m") -> Conversation:
    return Conversation(prompt, 4, chain_seed=seed_hash(seed))


def shared(one: Conversation, other: Conversation) -> int:
    pairs = zip(one.block_hashes, other.block_hashes, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one.block_hashes), len(other.block_hashes)))


def chat(*messages: dict[str, Any], **more: Any) -> Conversation:
    return conversation(render_chat({"messages": list(messages), **more}))


def test_about_four_bytes_are_a_token() -> None:
    assert count_tokens(render_prompt("x" * 400)) == 100
    assert count_tokens(render_prompt("x")) == 1
    assert count_tokens(render_prompt([5, 6, 7])) == 3
    assert count_tokens(render_prompt("é" * 100)) == 50


def test_chats_that_begin_alike_share_the_blocks_of_the_beginning() -> None:
    one = chat(SYSTEM, QUESTION)
    other = chat(SYSTEM, {"role": "user", "content": "Who are you?"})
    assert shared(one, other) == count_tokens(render_chat({"messages": [SYSTEM]})) // 4 - 1


def test_the_next_turn_contains_prompt_and_answer_of_the_last() -> None:
    first = chat(SYSTEM, QUESTION)
    answer = first.words(0, 40)
    parent = first.block_hashes[-1]
    hashes = list(first.block_hashes)
    while len(hashes) < (first.prompt_tokens + 40) // 4:
        parent = first.answer_hash(len(hashes), parent)
        hashes.append(parent)
    second = chat(SYSTEM, QUESTION, {"role": "assistant", "content": answer}, {"role": "user", "content": "Go on"})
    assert second.block_hashes[: len(hashes)] == hashes


def test_roles_tools_images_models_and_salts_make_a_difference() -> None:
    plain = chat(QUESTION)
    image = {"type": "image_url", "image_url": {"url": "data:,a"}}
    other_image = {"type": "image_url", "image_url": {"url": "data:,b"}}
    assert shared(plain, chat({**QUESTION, "role": "system"})) == 0
    assert shared(plain, chat(QUESTION, tools=[{"type": "function", "function": {"name": "f"}}])) == 0
    assert (
        chat({"role": "user", "content": [image]}).block_hashes
        != chat({"role": "user", "content": [other_image]}).block_hashes
    )
    prompt = render_prompt("the same text of more than one block")
    assert shared(conversation(prompt, "m"), conversation(prompt, "other")) == 0


def test_the_order_of_keys_makes_no_difference() -> None:
    turned = dict(reversed(SYSTEM.items()))
    assert chat(SYSTEM).block_hashes == chat(turned).block_hashes


def test_text_parts_read_as_the_text_they_hold() -> None:
    parts = {"role": "user", "content": [{"type": "text", "text": QUESTION["content"]}]}
    assert chat(parts).block_hashes == chat(QUESTION).block_hashes


def test_the_same_prompt_is_answered_in_the_same_words() -> None:
    assert chat(QUESTION).words(0, 50) == chat(QUESTION).words(0, 50)
    assert chat(QUESTION).words(0, 50) != chat(SYSTEM).words(0, 50)
    assert len(chat(QUESTION).words(0, 50)) == 200


def test_a_lone_surrogate_is_a_prompt_like_any_other() -> None:
    assert chat({"role": "user", "content": "\ud800"}).prompt_tokens > 0
