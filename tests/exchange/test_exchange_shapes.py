"""Playbooks: for each way in which Envoy talks to us, what is said to each of its messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.decision import RejectionReason
from extproc.exchange.actions import Action, Close, Continue, EchoBody, SendPick, SendRejection
from extproc.exchange.events import BodyMode, Event, Opening, Part
from extproc.exchange.exchange import CHUNK_BYTES, HEAD_BYTES, Shape, State
from extproc.request import Route
from tests.exchange.playbook import (
    PICK,
    POST,
    REJECTION,
    REQUEST_TRAILERS,
    Playbook,
    request_body,
    request_headers,
)

BODY = b'{"model": "m", "prompt": "hello"}'
H, B, T = Part.REQUEST_HEADERS, Part.REQUEST_BODY, Part.REQUEST_TRAILERS
RESPONSE = [Event(Part.RESPONSE_HEADERS), Event(Part.RESPONSE_BODY, True, b"x"), Event(Part.RESPONSE_TRAILERS, True)]
POLITE_RESPONSE = [[Continue(event.part)] for event in RESPONSE]

# A: the body, whole, and nothing before it


def test_body_first_is_one_message_in_and_the_pick_as_metadata_out() -> None:
    """R1; a header would come too late: they are held behind us by Envoy's buffer filter"""
    book = Playbook(BodyMode.BUFFERED, B)
    assert book.play(request_body(BODY, end=True)) == [SendPick(B, PICK, as_header=False)]
    assert book.asked[0].body == BODY
    assert book.exchange.shape is Shape.BODY_FIRST


def test_body_first_takes_path_method_and_headers_from_the_attributes() -> None:
    opening = Opening(
        request_body=BodyMode.BUFFERED,
        method="POST",
        path="/v1/completions?x=1",
        headers={"x-session-id": "s"},
        route=Route("big"),
        subset=frozenset({"10.0.0.1:8000"}),
    )
    book = Playbook(opening, B)
    book.play(request_body(BODY, end=True))
    raw = book.asked[0]
    assert (raw.method, raw.path, raw.headers) == ("POST", "/v1/completions?x=1", {"x-session-id": "s"})
    assert (raw.route.pool, raw.subset) == ("big", frozenset({"10.0.0.1:8000"}))


def test_body_first_that_ends_with_trailers_is_decided_at_the_body_and_the_trailers_get_one_answer() -> None:
    book = Playbook(BodyMode.BUFFERED, B)
    assert book.play(request_body(BODY)) == [SendPick(B, PICK, as_header=False)]
    assert book.play(REQUEST_TRAILERS) == [Continue(T)]
    assert len(book.asked) == 1


def test_a_response_is_answered_politely_part_by_part() -> None:
    book = Playbook(BodyMode.BUFFERED, B)
    book.play(request_body(BODY, end=True))
    assert book.play_all(RESPONSE) == POLITE_RESPONSE


def test_a_broken_body_is_routed_with_exactly_one_answer() -> None:
    """case a07: whether the JSON is right is not asked here"""
    book = Playbook(BodyMode.BUFFERED, B)
    assert book.play(request_body(b'{"model": "m"', end=True)) == [SendPick(B, PICK, as_header=False)]


# B: headers, then the whole body


def test_headers_are_answered_at_once_without_the_clients_destination_and_the_body_with_the_pick() -> None:
    """cases a02, b01: Envoy holds the body back until the headers are answered"""
    book = Playbook(BodyMode.BUFFERED, H)
    assert book.play(request_headers()) == [Continue(H, strip_destination=True)]
    assert not book.asked
    assert book.play(request_body(BODY, end=True)) == [SendPick(B, PICK, as_header=True)]
    raw = book.asked[0]
    assert (raw.method, raw.path, raw.body) == ("POST", "/v1/chat/completions", BODY)


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL, BodyMode.STREAMED])
@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
def test_a_request_without_a_body_is_decided_at_its_headers(mode: BodyMode, method: str) -> None:
    """cases a15, a23"""
    book = Playbook(mode, H)
    headers = {":method": method, ":path": "/v1/models"}
    assert book.play(request_headers(end=True, headers=headers)) == [SendPick(H, PICK, as_header=True)]
    assert book.play_all(RESPONSE) == POLITE_RESPONSE
    assert len(book.asked) == 1


def test_an_empty_body_after_open_headers_is_routed_too() -> None:
    """case a15: other data planes send an empty body instead of ending with the headers"""
    book = Playbook(BodyMode.BUFFERED, H)
    book.play(request_headers(headers={":method": "GET", ":path": "/v1/models"}))
    assert book.play(request_body(end=True)) == [SendPick(B, PICK, as_header=True)]
    assert book.asked[0].body == b""


def test_trailers_instead_of_a_body_carry_the_pick_as_metadata() -> None:
    book = Playbook(BodyMode.BUFFERED, H)
    book.play(request_headers())
    assert book.play(REQUEST_TRAILERS) == [SendPick(T, PICK, as_header=False)]


def test_a_body_cut_short_by_envoy_is_decided_on_what_came() -> None:
    book = Playbook(BodyMode.BUFFERED_PARTIAL, H)
    book.play(request_headers())
    assert book.play(request_body(BODY[:7])) == [SendPick(B, PICK, as_header=True)]
    assert book.asked[0].body == BODY[:7]


# C: full duplex


def test_full_duplex_answers_nothing_before_the_end_then_headers_and_the_body_as_it_came() -> None:
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H)
    assert book.play(request_headers()) == []
    assert book.play(request_body(BODY[:5])) == []
    assert book.play(request_body(BODY[5:], end=True)) == [
        SendPick(H, PICK, as_header=True),
        EchoBody(B, BODY[:5], end_of_stream=False),
        EchoBody(B, BODY[5:], end_of_stream=True),
    ]
    assert book.asked[0].body == BODY


def test_full_duplex_with_trailers_ends_with_the_trailers_not_with_the_body() -> None:
    """case a06"""
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H)
    sent = book.play_all([request_headers(), request_body(b"a" * 32_768), request_body(b"b"), REQUEST_TRAILERS])
    assert sent[:3] == [[], [], []]
    assert sent[3] == [
        SendPick(H, PICK, as_header=True),
        EchoBody(B, b"a" * 32_768, end_of_stream=False),
        EchoBody(B, b"b", end_of_stream=False),
        Continue(T),
    ]


def test_full_duplex_with_trailers_and_no_body_sends_no_body() -> None:
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H)
    sent = book.play_all([request_headers(), REQUEST_TRAILERS])
    assert sent == [[], [SendPick(H, PICK, as_header=True), Continue(T)]]


def test_full_duplex_without_a_body_answers_the_headers_alone() -> None:
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H)
    assert book.play(request_headers(end=True)) == [SendPick(H, PICK, as_header=True)]


def test_full_duplex_with_an_empty_body_still_ends_it() -> None:
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H)
    book.play(request_headers())
    assert book.play(request_body(end=True))[1:] == [EchoBody(B, b"", end_of_stream=True)]


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES, 200_001])
def test_a_streamed_reply_is_never_larger_than_envoy_takes(size: int) -> None:
    body = bytes(range(251)) * (size // 251 + 1)
    body = body[:size]
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H)
    book.play(request_headers())
    echoes = [action for action in book.play(request_body(body, end=True)) if isinstance(action, EchoBody)]
    assert b"".join(echo.body for echo in echoes) == body
    assert max(len(echo.body) for echo in echoes) <= CHUNK_BYTES
    assert [echo.end_of_stream for echo in echoes] == [False] * (len(echoes) - 1) + [True]


def test_a_second_end_of_the_body_changes_nothing_and_is_not_answered() -> None:
    """case a10: some versions send one more chunk, empty or not"""
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H)
    book.play_all([request_headers(), request_body(BODY), request_body(b"tail", end=True)])
    assert book.play_all([request_body(b"tail", end=True), request_body(end=True)]) == [[], []]
    assert len(book.asked) == 1
    assert book.asked[0].body == BODY + b"tail"


def test_a_body_over_the_limit_is_refused_with_413_and_nothing_follows() -> None:
    """case a01"""
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H, max_body_bytes=10)
    book.play(request_headers())
    assert book.play(request_body(b"12345")) == []
    [refusal] = book.play(request_body(b"678901"))
    assert isinstance(refusal, SendRejection)
    assert (refusal.rejection.status, refusal.rejection.reason) == (413, RejectionReason.INVALID)
    assert "10 bytes" in refusal.rejection.message
    assert book.play_all([request_body(b"x", end=True), *RESPONSE]) == [[], [], [], []]
    assert not book.asked


def test_a_body_of_exactly_the_limit_passes() -> None:
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H, max_body_bytes=10)
    book.play_all([request_headers(), request_body(b"12345"), request_body(b"67890", end=True)])
    assert book.asked[0].body == b"1234567890"


def test_closing_early_ends_the_stream_right_after_the_request() -> None:
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H, close_early=True)
    book.play(request_headers())
    assert book.play(request_body(BODY, end=True))[-2:] == [EchoBody(B, BODY, end_of_stream=True), Close()]
    assert book.exchange.state is State.ENDED
    assert book.play_all(RESPONSE) == [[], [], []]


@pytest.mark.parametrize("response", [mode for mode in BodyMode if mode is not BodyMode.NONE])
def test_a_stream_that_the_response_comes_through_is_never_closed_early(response: BodyMode) -> None:
    """What Envoy had sent us of it would be lost."""
    book = Playbook(Opening(request_body=BodyMode.FULL_DUPLEX_STREAMED, response_body=response), H, close_early=True)
    sent = book.play_all([request_headers(), request_body(BODY, end=True), *RESPONSE])
    assert not any(isinstance(action, Close) for actions in sent for action in actions)
    assert all(len(actions) == 1 for actions in sent[2:])


@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX_STREAMED, BodyMode.BUFFERED, BodyMode.NONE])
def test_envoy_can_do_without_us_once_the_request_is_decided(mode: BodyMode) -> None:
    book = Playbook(mode, H)
    assert not book.exchange.may_end
    book.play(request_headers())
    assert book.exchange.may_end == (mode is BodyMode.NONE)
    if mode is not BodyMode.NONE:
        book.play(request_body(BODY, end=True))
        assert book.exchange.may_end


def test_envoy_cannot_do_without_us_while_something_passes_through_us() -> None:
    """The body of a request in pieces or without end, or a response's."""
    upgrade = request_headers(headers={":method": "GET", "upgrade": "websocket"})
    duplex = BodyMode.FULL_DUPLEX_STREAMED
    for opening, events in (
        (Opening(request_body=BodyMode.STREAMED), [request_headers()]),
        (Opening(request_body=duplex), [upgrade]),
        (Opening(request_body=duplex, response_body=duplex), [request_headers(), request_body(BODY, end=True)]),
    ):
        book = Playbook(opening, H)
        book.play_all(events)
        assert book.exchange.state is State.DECIDED
        assert not book.exchange.may_end


@pytest.mark.parametrize("mode", [mode for mode in BodyMode if mode is not BodyMode.FULL_DUPLEX_STREAMED])
def test_only_full_duplex_closes_early(mode: BodyMode) -> None:
    """Elsewhere the end of the stream is what tells that the request ended."""
    book = Playbook(mode, H, close_early=True)
    sent = book.play_all([request_headers(), request_body(BODY, end=True)])
    assert not any(isinstance(action, Close) for actions in sent for action in actions)


def test_echo_answers_every_piece_of_a_full_duplex_response() -> None:
    opening = Opening(request_body=BodyMode.FULL_DUPLEX_STREAMED, response_body=BodyMode.FULL_DUPLEX_STREAMED)
    book = Playbook(opening, H)
    book.play(request_headers(end=True))
    part = Part.RESPONSE_BODY
    big = b"z" * (CHUNK_BYTES + 1)
    assert book.play(Event(Part.RESPONSE_HEADERS)) == [Continue(Part.RESPONSE_HEADERS)]
    assert book.play(Event(part, False, b"data: 1\n\n")) == [EchoBody(part, b"data: 1\n\n", end_of_stream=False)]
    assert book.play(Event(part, False, big)) == [
        EchoBody(part, big[:CHUNK_BYTES], end_of_stream=False),
        EchoBody(part, b"z", end_of_stream=False),
    ]
    assert book.play(Event(part, True)) == [EchoBody(part, b"", end_of_stream=True)]
    assert book.play(Event(Part.RESPONSE_TRAILERS, True)) == [Continue(Part.RESPONSE_TRAILERS)]


# What is looked at of a response


@pytest.mark.parametrize("mode", [mode for mode in BodyMode if mode is not BodyMode.NONE])
def test_a_stored_response_is_looked_at_after_it_was_answered_and_up_to_the_bound(mode: BodyMode) -> None:
    opening = Opening(request_body=BodyMode.FULL_DUPLEX_STREAMED, response_body=mode)
    book = Playbook(opening, H, decision=replace(PICK, stores=True))
    book.play(request_headers(end=True))
    part = Part.RESPONSE_BODY
    pieces = [b'{"id":', b"", b'"resp_1"', b"x" * HEAD_BYTES, b"y"]
    plain = Playbook(opening, H)
    plain.play(request_headers(end=True))
    for piece in pieces:
        sent = book.play(Event(part, False, piece))
        assert sent == plain.play(Event(part, False, piece)), "it changes what is sent"
    heads = [b'{"id":', b'{"id":', b'{"id":"resp_1"', b'{"id":"resp_1"' + b"x" * (HEAD_BYTES - 14)]
    assert book.heads == heads
    assert plain.heads == []


# D and STREAMED: decided at the headers


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED])
def test_without_a_whole_body_the_headers_decide(mode: BodyMode) -> None:
    book = Playbook(mode, H)
    assert book.play(request_headers()) == [SendPick(H, PICK, as_header=True)]
    assert book.asked[0].body == b""


def test_streamed_chunks_and_trailers_get_one_plain_answer_each() -> None:
    """case a06"""
    book = Playbook(BodyMode.STREAMED, H)
    sent = book.play_all([request_headers(), request_body(b"a"), request_body(b"b"), REQUEST_TRAILERS])
    assert sent[1:] == [[Continue(B)], [Continue(B)], [Continue(T)]]


# What has no end of body to wait for


ENDLESS = [
    {":method": "GET", ":path": "/v1/realtime", "connection": "Upgrade", "upgrade": "websocket"},
    {":method": "CONNECT", ":protocol": "websocket", ":path": "/v1/realtime"},
    {":method": "POST", ":path": "/inference.Service/Stream", "content-type": "application/grpc+proto"},
]


@pytest.mark.parametrize("headers", ENDLESS, ids=["upgrade", "connect", "grpc"])
@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED])
def test_an_endless_request_is_decided_at_its_headers(headers: dict[str, str], mode: BodyMode) -> None:
    """case a13"""
    book = Playbook(mode, H, close_early=True)
    assert book.play(request_headers(headers=headers)) == [SendPick(H, PICK, as_header=True)]


def test_an_endless_full_duplex_request_is_echoed_piece_by_piece() -> None:
    """case a13"""
    book = Playbook(BodyMode.FULL_DUPLEX_STREAMED, H, close_early=True)
    book.play(request_headers(headers=ENDLESS[0]))
    assert book.play(request_body(b"frame")) == [EchoBody(B, b"frame", end_of_stream=False)]
    big = [action for action in book.play(request_body(b"f" * 150_000, end=True)) if isinstance(action, EchoBody)]
    assert [len(echo.body) for echo in big] == [62_000, 62_000, 26_000]
    assert [echo.end_of_stream for echo in big] == [False, False, True]


# Rejections, observation, and what should not come


@pytest.mark.parametrize(
    ("mode", "first"),
    [(mode, Part.REQUEST_HEADERS) for mode in BodyMode] + [(BodyMode.BUFFERED, Part.REQUEST_BODY)],
)
def test_after_a_rejection_nothing_is_sent(mode: BodyMode, first: Part) -> None:
    """case a07"""
    book = Playbook(mode, first, decision=REJECTION)
    sent: list[Action] = []
    if first is H:
        sent += book.play(request_headers())
    sent += book.play(request_body(BODY, end=True))
    assert sent[-1] == SendRejection(REJECTION)
    assert book.play_all([request_body(end=True), REQUEST_TRAILERS, *RESPONSE]) == [[]] * 5


@pytest.mark.parametrize("mode", list(BodyMode))
def test_an_observing_stream_wants_no_answer_and_reserves_nothing(mode: BodyMode) -> None:
    book = Playbook(Opening(request_body=mode, observe_only=True), H)
    assert book.play_all([request_headers(), request_body(BODY, end=True), *RESPONSE]) == [[]] * 5
    assert not book.asked


def test_a_stream_that_begins_with_the_response_is_answered_politely() -> None:
    """A gateway that skips the request phase has chosen the server itself."""
    book = Playbook(BodyMode.NONE, Part.RESPONSE_HEADERS)
    assert book.play_all(RESPONSE) == POLITE_RESPONSE
    assert not book.asked


def test_the_headers_message_decides_over_the_attributes_only_where_they_are_absent() -> None:
    book = Playbook(Opening(request_body=BodyMode.NONE, path="/from/attributes"), H)
    book.play(request_headers(headers=POST))
    assert (book.asked[0].path, book.asked[0].method) == ("/from/attributes", "POST")
