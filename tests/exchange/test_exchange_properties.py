"""What holds for every stream that anybody could send us."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from extproc.exchange.actions import Close, EchoBody, SendPick, SendRejection
from extproc.exchange.events import BodyMode, Event, Opening, Part
from extproc.exchange.exchange import HEAD_BYTES, Shape
from tests.exchange.playbook import PICK, POST, REJECTION, REQUEST_TRAILERS, Playbook, request_body, request_headers

HEADERS = st.sampled_from([POST, {}, {"upgrade": "websocket"}, {":method": "CONNECT"}])


def events() -> st.SearchStrategy[Event]:
    return st.builds(
        Event,
        st.sampled_from(list(Part)),
        st.booleans(),
        st.sampled_from([b"", b"a", b"b" * 62_001]),
        HEADERS,
    )


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=8), st.booleans(), st.booleans())
def test_any_chunking_of_a_body_gives_the_same_request_and_the_same_bytes_back(
    body: bytes, cuts: list[int], empty_end: bool, trailers: bool
) -> None:
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    chunks = [body[start:end] for start, end in pairwise(bounds)] + [b""] * empty_end
    whole = Playbook(BodyMode.BUFFERED, Part.REQUEST_HEADERS)
    whole.play_all([request_headers(), request_body(body, end=True)])
    pieces = Playbook(BodyMode.FULL_DUPLEX_STREAMED, Part.REQUEST_HEADERS)
    sent = pieces.play(request_headers())
    for i, chunk in enumerate(chunks):
        sent += pieces.play(request_body(chunk, end=not trailers and i == len(chunks) - 1))
    if trailers:
        sent += pieces.play(REQUEST_TRAILERS)
    assert pieces.asked == whole.asked
    echoes = [action for action in sent if isinstance(action, EchoBody)]
    assert b"".join(echo.body for echo in echoes) == body
    assert [echo.end_of_stream for echo in echoes].count(True) == (not trailers)


@given(
    st.builds(
        Opening,
        request_body=st.sampled_from(list(BodyMode)),
        response_body=st.sampled_from(list(BodyMode)),
        observe_only=st.booleans(),
    ),
    st.lists(events(), min_size=1, max_size=12),
    st.sampled_from([PICK, replace(PICK, stores=True), REJECTION]),
    st.booleans(),
)
def test_whatever_comes_each_message_gets_at_most_one_reply_of_its_kind_and_at_most_one_pick_is_asked_for(
    opening: Opening, messages: list[Event], decision: object, close_early: bool
) -> None:
    """case a07"""
    book = Playbook(
        opening,
        messages[0].part,
        decision=decision,  # type: ignore[arg-type]
        close_early=close_early,
        max_body_bytes=100_000,
    )
    received: Counter[Part] = Counter()
    replied: Counter[Part] = Counter()
    ended = False
    for message in messages:
        received[message.part] += 1
        sent = book.play(message)
        assert not (sent and ended), "something was sent after the end"
        assert not (sent and opening.observe_only), "an observing stream was answered"
        for i, action in enumerate(sent):
            if isinstance(action, SendRejection | Close):
                ended = True
                assert i == len(sent) - 1
            elif isinstance(action, EchoBody):
                assert len(action.body) <= 62_000
            else:
                replied[action.part] += 1  # type: ignore[union-attr]
                assert replied[action.part] <= received[action.part]  # type: ignore[union-attr]
        echoed = {action.part for action in sent if isinstance(action, EchoBody)}
        assert all(received[part] for part in echoed)
        if book.exchange.shape is not Shape.FULL_DUPLEX and not ended and not opening.observe_only:
            parts = {action.part for action in sent}  # type: ignore[union-attr]
            assert parts == {message.part}, "silence, or a reply of another kind"
    assert len(book.asked) <= 1
    assert not (opening.observe_only and book.asked)
    assert all(len(head) <= HEAD_BYTES for head in book.heads)


@given(st.lists(events(), max_size=10), st.sampled_from(list(BodyMode)))
def test_a_pick_is_sent_exactly_when_it_was_asked_for(messages: list[Event], mode: BodyMode) -> None:
    book = Playbook(mode, messages[0].part if messages else Part.REQUEST_HEADERS)
    sent = [action for actions in book.play_all(messages) for action in actions]
    assert sum(isinstance(action, SendPick) for action in sent) == len(book.asked)
