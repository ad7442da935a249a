"""The id of a response, from the first bytes of its body."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai.answer import response_id_of

WHOLE = b'{"id":"resp_8f2","created_at":1700000000,"instructions":null,"model":"m","object":"response","output":[]}'
STREAMED = (
    b"event: response.created\n"
    b'data: {"response":{"id":"resp_8f2","created_at":1700000000.0,"previous_response_id":"resp_1"},'
    b'"sequence_number":0,"type":"response.created"}\n\n'
)


@pytest.mark.parametrize("head", [WHOLE, STREAMED, json.dumps(json.loads(WHOLE), indent=1).encode()])
def test_it_is_found_in_whole_and_in_streamed_answers(head: bytes) -> None:
    """case c15"""
    assert response_id_of(head) == "resp_8f2"


@pytest.mark.parametrize("head", [WHOLE, STREAMED])
def test_as_long_as_it_is_cut_off_it_is_unknown_and_never_a_part_of_itself(head: bytes) -> None:
    found = [response_id_of(head[:end]) for end in range(len(head) + 1)]
    known_from = found.index("resp_8f2")
    assert set(found[:known_from]) == {None}
    assert set(found[known_from:]) == {"resp_8f2"}


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b'{"error":{"message":"Response with id \'resp_1\' not found.","type":"invalid_request_error"}}',
        b'{"id":"chatcmpl-1","object":"chat.completion"}',
        b'{"previous_response_id":"resp_1"}',
        b'{"id":"resp_' + b"x" * 300 + b'"}',
        b"\x1f\x8b\x08\x00\xff\xfe",
    ],
)
def test_other_answers_have_none(head: bytes) -> None:
    assert response_id_of(head) is None


@given(st.text())
def test_no_text_of_an_answer_passes_for_an_id(text: str) -> None:
    trap = json.dumps({"output": [{"id": "msg_1", "text": f'"id":"resp_evil" {text}'}]}).encode()
    assert response_id_of(trap) is None
