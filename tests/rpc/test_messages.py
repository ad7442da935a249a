"""Where messages begin and end in a stream of bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.rpc.messages import Messages, framed
from extproc.rpc.status import AbortedError, Code


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(0, 330), max_size=10))
def test_messages_come_out_whole_however_they_are_cut(sent: list[bytes], cuts: list[int]) -> None:
    data = b"".join(framed(message) for message in sent)
    messages = Messages(50)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        messages.feed(data[start:stop])
    assert messages.queued_bytes == len(data)
    assert [messages.take() for _ in sent] == sent
    assert messages.queued_bytes == 0
    messages.end()


def test_one_that_is_too_long_is_refused_before_it_has_come() -> None:
    with pytest.raises(AbortedError, match="a message of 11 bytes; at most 10 are taken") as found:
        Messages(10).feed(framed(b"x" * 11)[:5])
    assert found.value.code is Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("cut", [False, True])
def test_a_compressed_one_is_refused(cut: bool) -> None:
    messages = Messages(10)
    data = b"\x01" + framed(b"abc")[1:]
    if cut:
        messages.feed(data[:3])
    with pytest.raises(AbortedError) as found:
        messages.feed(data[3:] if cut else data)
    assert found.value.code is Code.UNIMPLEMENTED


def test_one_that_is_cut_short_is_no_end() -> None:
    messages = Messages(10)
    messages.feed(framed(b"abc")[:-1])
    with pytest.raises(AbortedError, match="cut short") as found:
        messages.end()
    assert found.value.code is Code.INTERNAL
