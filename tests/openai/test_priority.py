"""How important is a request, by its own word?"""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.openai.priority import priority_of
from extproc.openai.understand import understand
from extproc.request import RawRequest

HEADER = "x-request-priority"


def raw(body: bytes = b"", **headers: str) -> RawRequest:
    return RawRequest("POST", "/v1/chat/completions", headers, body)


@pytest.mark.parametrize(
    ("body", "priority"),
    [
        (b'{"priority": 7}', 7),
        (b'{"priority": -7}', -7),
        (b'{"priority": 0}', 0),
        (b'{"model": "m"}', 0),
        (b'{"priority": "7"}', 0),
        (b'{"priority": 7.5}', 0),
        (b'{"priority": true}', 0),
        (b'{"priority": null}', 0),
        (b'{"priority": [7]}', 0),
        (b'{"messages": [{"role": "user", "priority": 7, "content": "priority: 7"}]}', 0),
        (b'{"priority": 4294967296000}', 2**31),
        (b"[7]", 0),
        (b'{"priority": 7', 0),
        (b"", 0),
    ],
)
def test_the_body_names_it_at_the_top_whether_it_has_been_read_or_not(body: bytes, priority: int) -> None:
    request = raw(body)
    assert priority_of(request) == priority
    assert priority_of(request, None, understand(request)) == priority


def test_a_compressed_body_is_read() -> None:
    assert priority_of(raw(gzip.compress(b'{"priority": 7}'), **{"content-encoding": "gzip"})) == 7


@pytest.mark.parametrize(
    ("text", "priority"),
    [("3", 3), ("-3", -3), (" 3 ", 3), ("+3", 3), ("high", 0), ("", 0), ("3.5", 0), ("1_0", 0), ("9" * 30, 0)],
)
def test_the_header_counts_before_the_body_and_what_is_no_number_is_0(text: str, priority: int) -> None:
    assert priority_of(raw(b'{"priority": 9}', **{HEADER: text}), HEADER) == priority


def test_without_the_header_the_body_counts_and_a_header_that_is_not_set_has_no_say() -> None:
    assert priority_of(raw(b'{"priority": 9}'), HEADER) == 9
    assert priority_of(raw(b'{"priority": 9}', **{HEADER: "3"})) == 9


@given(st.binary(max_size=50), st.text(max_size=20))
def test_no_request_makes_it_raise(body: bytes, text: str) -> None:
    assert isinstance(priority_of(raw(body, **{HEADER: text}), HEADER), int)
    assert isinstance(priority_of(raw(body), HEADER), int)
