"""The canonical prompt: alike for what the model sees alike, and growing at its end only."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.request import NoPrompt
from tests.openai.asking import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, ask, assistant, chat, user

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
CALL = {"id": "42", "type": "function", "function": {"name": "f", "arguments": "{}"}}

texts = st.text(max_size=30)
contents = st.one_of(
    st.none(),
    texts,
    st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=3),
    st.just([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]),
    st.just([{"type": "weird"}, 7, None]),
)
messages = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": contents}),
    st.just({"role": "assistant", "content": None, "tool_calls": [CALL]}),
    st.just({"role": "assistant"}),
)


def shuffled(value: Any) -> Any:
    """Equal JSON with every object's keys in the opposite order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(each) for each in value] if isinstance(value, list) else value


@given(st.lists(messages, min_size=1, max_size=6), st.booleans())
def test_key_order_white_space_and_escapes_do_not_matter(turns: list[object], with_tools: bool) -> None:
    """case c10"""
    body = chat(*turns, **({"tools": TOOLS} if with_tools else {}))
    plain = ask(body)
    spaced = ask(json.dumps(shuffled(body), indent=3, ensure_ascii=False).encode())
    assert plain == spaced


@given(st.lists(messages, min_size=1, max_size=4), st.lists(messages, max_size=4))
def test_a_chat_that_grows_begins_as_before(before: list[object], more: list[object]) -> None:
    """case e09: whole histories, not the first user message, decide"""
    for path, field in ((CHAT, "messages"), (MESSAGES, "messages"), (RESPONSES, "input")):
        short = ask({"tools": TOOLS, field: before}, path).prompt
        long = ask({field: before + more, "tools": TOOLS}, path).prompt
        assert long.startswith(short)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (chat(user("a")), chat(assistant("a"))),
        (chat(user("a"), user("b")), chat(user("ab"))),
        (chat(user("a"), user("b")), chat(user("b"), user("a"))),
        (chat(user("a")), chat({**user("a"), "name": "ann"})),
        (chat({"role": "tool", "tool_call_id": "1", "content": "x"}), chat({"role": "tool", "content": "x"})),
        (chat({"role": "tool", "tool_call_id": "1"}), chat({"role": "tool", "content": "ool_call_id=1"})),
        (chat(user("a")), chat(user("a"), tools=TOOLS)),
        (chat(user("a"), tools=TOOLS), chat(user("a"), tools=TOOLS * 2)),
        (chat(user("a")), chat(user("a"), chat_template_kwargs={"enable_thinking": False})),
        (chat(assistant(None, tool_calls=[CALL])), chat(assistant(None))),
        (chat(assistant("a", reasoning_content="b")), chat(assistant("a"))),
        (chat(user([{"type": "image_url", "image_url": {"url": "http://a"}}])), chat(user([{"type": "image_url"}]))),
    ],
)
def test_what_the_model_sees_differently_is_different(one: object, other: object) -> None:
    assert ask(one).prompt != ask(other).prompt


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (chat(user("a")), chat(user([{"type": "text", "text": "a"}]))),
        (chat(user("a")), chat(user(["a"]))),
        (chat(assistant("a")), chat(assistant("a", refusal=None, annotations=[], audio=None, tool_calls=[]))),
        (chat(user("a")), chat(user("a"), tools=[], stream=True, temperature=0.5, seed=9007199254740993)),
        (chat(assistant(None)), chat({"role": "assistant"})),
        (chat(assistant([])), chat({"role": "assistant"})),
    ],
)
def test_what_the_model_sees_alike_is_alike(one: object, other: object) -> None:
    assert ask(one).prompt == ask(other).prompt


@pytest.mark.parametrize(
    "turn",
    [
        assistant(None, tool_calls=[CALL]),
        {"role": "assistant"},
        assistant([]),
        {"role": "tool", "tool_call_id": "42", "content": "42"},
        user([{"type": "text", "text": "hi"}, {"type": "input_audio", "input_audio": 3}, {"type": "weird"}]),
        user(42),
        user({"a": 1}),
        user([None, 1, [2], {"type": ["text"]}, {"type": "text"}, {"type": "text", "text": 7}]),
        {"role": None, "content": "x"},
        {"role": 3, "name": {}, "tool_call_id": [], "tool_calls": "no", "content": True},
        None,
        "hi",
        [],
        {},
    ],
)
def test_odd_messages_contribute_a_stable_tag(turn: object) -> None:
    """case c03"""
    first, again = ask(chat(user("before"), turn, user("after"))), ask(chat(user("before"), turn, user("after")))
    assert first.no_prompt is None
    assert first.prompt == again.prompt
    assert first.prompt.startswith(ask(chat(user("before"))).prompt)
    assert first.prompt.endswith(b"after")


@pytest.mark.parametrize("turns", [None, [], {}, "hi", 7])
def test_messages_that_are_no_list_give_no_prompt(turns: object) -> None:
    """case c03"""
    assert ask({"messages": turns}).no_prompt is NoPrompt.EMPTY


@pytest.mark.parametrize(("path", "field"), [(COMPLETIONS, "prompt"), (EMBEDDINGS, "input")])
class TestPlainPrompts:
    def test_text_lists_and_token_ids_have_a_prompt(self, path: str, field: str) -> None:
        """case c01"""
        for prompt in ("a", ["a", "b"], [1, 2, 3], [[1, 2], [3]], ["x"] * 2048):
            assert ask({field: prompt}, path).no_prompt is None

    def test_token_ids_take_four_bytes_each(self, path: str, field: str) -> None:
        """case c01"""
        ids = [0, 1, 128_000, 2**32 - 1]
        assert ask({field: ids}, path).prompt == struct.pack("<4I", *ids)
        assert ask({field: [ids]}, path).prompt == struct.pack("<4I", *ids)

    def test_how_a_list_is_divided_matters(self, path: str, field: str) -> None:
        """case c01"""
        prompts = [["ab"], ["a", "b"], [[1, 2], [3]], [[1], [2, 3]], [1, 2, 3]]
        assert len({ask({field: prompt}, path).prompt for prompt in prompts}) == len(prompts)
        assert ask({field: ["ab"]}, path).prompt == ask({field: "ab"}, path).prompt

    @pytest.mark.parametrize(
        "odd",
        [
            [],
            "",
            [["a"]],
            [1, "a"],
            7,
            None,
            {},
            [[]],
            [[1], []],
            [-1],
            [2**32],
            [1.5],
            [None],
            [[1], "a"],
            [[1], [[2]]],
        ],
    )
    def test_odd_shapes_are_left_to_the_server(self, path: str, field: str, odd: object) -> None:
        """case c01"""
        assert ask({field: odd}, path).no_prompt is NoPrompt.EMPTY
        assert ask({"model": "m"}, path).no_prompt is NoPrompt.EMPTY

    def test_texts_and_token_ids_that_grow_begin_as_before(self, path: str, field: str) -> None:
        assert ask({field: "abcd"}, path).prompt.startswith(ask({field: "abc"}, path).prompt)
        assert ask({field: [1, 2, 3]}, path).prompt.startswith(ask({field: [1, 2]}, path).prompt)


class TestResponses:
    def test_text_is_short_for_a_user_message(self) -> None:
        """case c15"""
        as_items = {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}
        assert ask({"input": "hi"}, RESPONSES).prompt == ask(as_items, RESPONSES).prompt

    def test_instructions_come_first(self) -> None:
        """case c15"""
        with_instructions = ask({"input": "hi", "instructions": "be short"}, RESPONSES).prompt
        assert with_instructions.endswith(ask({"input": "hi"}, RESPONSES).prompt)

    def test_tool_calls_and_results_count_in_full_and_their_ids_do_not(self) -> None:
        """case c15"""

        def prompt(**more: object) -> bytes:
            call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **more}
            result = {"type": "function_call_output", "call_id": "c", "output": "long result"}
            return ask({"input": [user("hi"), call, result]}, RESPONSES).prompt

        assert b"long result" in prompt()
        assert prompt(id="fc_1", status="completed") == prompt(id="fc_2")
        assert prompt(arguments='{"a":1}') != prompt()

    def test_a_stored_response_before_it_sets_a_prompt_apart(self) -> None:
        """case c15"""
        one, other = (ask({"input": "hi", "previous_response_id": name}, RESPONSES) for name in ("resp_1", "resp_2"))
        assert one.response_id == "resp_1"
        assert one.prompt != other.prompt

    @pytest.mark.parametrize("odd", [None, "", [], 7, {}])
    def test_odd_input_is_left_to_the_server(self, odd: object) -> None:
        """case c15"""
        assert ask({"input": odd}, RESPONSES).no_prompt is NoPrompt.EMPTY

    @pytest.mark.parametrize("odd", [[None], [7], ["a"], [[]], [{}], [{"type": 3}], [{"role": None}]])
    def test_odd_items_contribute_a_tag(self, odd: object) -> None:
        assert ask({"input": odd}, RESPONSES).no_prompt is None


class TestMessages:
    def test_the_system_prompt_is_the_first_message(self) -> None:
        blocks = [{"type": "text", "text": "be short", "cache_control": {"type": "ephemeral"}}]
        found = {
            ask({"system": system, "messages": [user("hi")]}, MESSAGES).prompt for system in ("be short", blocks)
        } | {ask(chat({"role": "system", "content": "be short"}, user("hi"))).prompt}
        assert len(found) == 1

    def test_tool_results_count_in_full(self) -> None:
        result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "long result"}]}
        assert b"long result" in ask({"messages": [user([result])]}, MESSAGES).prompt

    def test_tool_results_within_tool_results_are_bounded(self) -> None:
        part: dict[str, object] = {"type": "text", "text": "deep"}
        for _ in range(200):
            part = {"type": "tool_result", "content": [part]}
        assert ask({"messages": [user([part])]}, MESSAGES).no_prompt is None


class TestTheLastAnswer:
    def test_it_stands_between_the_earlier_prompt_and_what_follows(self) -> None:
        turns = [user("q"), assistant("a"), user("q2")]
        found = ask(chat(*turns))
        assert found.prompt[: found.generated_from] == ask(chat(*turns[:1])).prompt
        assert found.prompt[: found.generated_to] == ask(chat(*turns[:2])).prompt

    def test_it_may_be_several_items(self) -> None:
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        items = [user("q"), {"type": "reasoning", "summary": []}, call, {"type": "function_call_output", "output": "1"}]
        found = ask({"input": items, "instructions": "i"}, RESPONSES)
        earlier = ask({"input": items[:1], "instructions": "i"}, RESPONSES)
        assert found.prompt[: found.generated_from] == earlier.prompt
        assert found.prompt[found.generated_to :].count(b"function_call_output") == 1

    @pytest.mark.parametrize("turns", [[user("q")], [user("q"), assistant("begun")], [assistant("a")]])
    def test_without_an_answer_that_is_followed_there_is_none(self, turns: list[object]) -> None:
        found = ask(chat(*turns))
        assert (found.generated_from, found.generated_to) == (0, 0)
