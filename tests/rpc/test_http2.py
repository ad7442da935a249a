"""What a connection makes of a peer's frames, and what it says to it."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from extproc.rpc import framing, http2
from extproc.rpc.framing import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    WINDOW_UPDATE,
    ProtocolError,
    frame,
)
from extproc.rpc.http2 import Connection
from tests.rpc.wire import PATH, REQUEST, SETTINGS, Recorder, connection, frames, open_stream

OPENED = ("opened", 1, PATH, False)


def u32(number: int) -> bytes:
    return struct.pack(">I", number)


def setting(number: int, value: int) -> bytes:
    return frame(framing.SETTINGS, 0, 0, struct.pack(">HI", number, value))


def test_it_introduces_itself_and_confirms_the_peers_settings() -> None:
    made = Connection(Recorder())
    assert [kind for kind, *_ in frames(made.take())] == [framing.SETTINGS, WINDOW_UPDATE]
    made.receive(PREFACE + SETTINGS)
    assert frames(made.take()) == [(framing.SETTINGS, ACK, 0, b"")]


def test_a_stream_is_headers_data_and_an_end() -> None:
    made, recorder = connection()
    made.receive(
        open_stream(1) + frame(DATA, 0, 1, b"ab") + frame(DATA, END_STREAM, 1, b"c") + open_stream(3, ended=True)
    )
    assert recorder.told == [OPENED, ("data", 1, b"ab", False), ("data", 1, b"c", True), ("opened", 3, PATH, True)]


def test_trailers_end_a_stream() -> None:
    made, recorder = connection()
    made.receive(open_stream(1) + frame(HEADERS, END_HEADERS | END_STREAM, 1, framing.literal(b"a", b"b")))
    assert recorder.told == [OPENED, ("data", 1, b"", True)]


def test_padding_and_priority_are_left_out() -> None:
    made, recorder = connection()
    block = b"\x03" + b"\x00\x00\x00\x00\x10" + REQUEST + b"\x00" * 3
    made.receive(frame(HEADERS, END_HEADERS | PADDED | PRIORITY_FLAG, 1, block))
    made.receive(frame(DATA, PADDED, 1, b"\x02xy\x00\x00") + frame(PRIORITY, 0, 1, b"\x00" * 5))
    assert recorder.told == [OPENED, ("data", 1, b"xy", False)]


def test_headers_may_come_in_parts() -> None:
    made, recorder = connection()
    made.receive(frame(HEADERS, 0, 1, REQUEST[:5]) + frame(CONTINUATION, 0, 1, REQUEST[5:9]))
    assert recorder.told == []
    made.receive(frame(CONTINUATION, END_HEADERS, 1, REQUEST[9:]))
    assert recorder.told == [OPENED]


def test_repeated_headers_are_read_from_the_table_as_it_is_then() -> None:
    """Blocks of references are remembered, but only while what they refer to stays where it is."""
    made, recorder = connection()
    encoder = Encoder()

    def request(path: str) -> bytes:
        fields = [(":method", "POST"), (":path", path), ("content-type", "application/grpc")]
        return encoder.encode(fields, huffman=False)

    blocks = [request(path) for path in ("/a", "/a", "/b", "/a", "/b", "/a")]
    assert blocks[1] != blocks[3]  # "/b" has moved "/a" by one
    for number, block in enumerate(blocks):
        made.receive(frame(HEADERS, END_HEADERS, 2 * number + 1, block))
    assert [told[2] for told in recorder.told] == [b"/a", b"/a", b"/b", b"/a", b"/b", b"/a"]


def test_a_ping_is_answered() -> None:
    made, _ = connection()
    made.receive(frame(PING, 0, 0, b"12345678") + frame(PING, ACK, 0, b"87654321"))
    assert frames(made.take()) == [(PING, ACK, 0, b"12345678")]


def test_a_reset_is_told_once_and_what_was_under_way_is_passed_over() -> None:
    made, recorder = connection()
    made.receive(open_stream(1) + frame(RST_STREAM, 0, 1, u32(8)) * 2)
    made.receive(frame(DATA, 0, 1, b"late") + frame(WINDOW_UPDATE, 0, 1, u32(5)))
    assert recorder.told == [OPENED, ("reset", 1)]
    assert made.take() == b""


def test_an_answer_ends_with_trailers_and_releases_the_peer_from_the_rest() -> None:
    made, recorder = connection()
    made.receive(open_stream(1) + open_stream(3, ended=True))
    for stream in (1, 3):
        made.send_headers(stream, b"\x88")
        assert made.send_data(stream, b"hello")
        made.send_end(stream, framing.literal(b"grpc-status", b"0"))
    said = [(kind, flags, stream) for kind, flags, stream, _ in frames(made.take())]
    answer = [(HEADERS, END_HEADERS), (DATA, 0), (HEADERS, END_HEADERS | END_STREAM)]
    assert said == [(*one, 1) for one in answer] + [(RST_STREAM, 0, 1)] + [(*one, 3) for one in answer]
    made.receive(frame(DATA, END_STREAM, 1, b"late"))
    made.send_data(1, b"too late")
    assert made.take() == b""
    assert made.open_streams == 0
    assert len(recorder.told) == 2


def test_data_wait_for_the_room_that_the_peer_gives() -> None:
    made, recorder = connection(settings=setting(4, 10))
    made.receive(open_stream(1) + open_stream(3))
    assert not made.send_data(1, b"0123456789abcdef")
    assert made.send_data(3, b"xyz")
    made.send_end(1, b"\x88")
    assert [(stream, payload) for _, _, stream, payload in frames(made.take())] == [(1, b"0123456789"), (3, b"xyz")]
    made.receive(frame(WINDOW_UPDATE, 0, 1, u32(4)))
    assert frames(made.take()) == [(DATA, 0, 1, b"abcd")]
    made.receive(setting(4, 20))
    said = frames(made.take())
    assert [(kind, payload) for kind, _, _, payload in said] == [
        (framing.SETTINGS, b""), (DATA, b"ef"), (HEADERS, b"\x88"), (RST_STREAM, u32(0)),
    ]  # fmt: skip
    assert not made.waits(1)
    assert recorder.told == [OPENED, ("opened", 3, PATH, False)]


def test_who_waited_hears_when_all_is_on_its_way() -> None:
    made, recorder = connection(settings=setting(4, 0))
    made.receive(open_stream(1))
    assert not made.send_data(1, b"ab")
    made.receive(frame(WINDOW_UPDATE, 0, 1, u32(1)))
    assert ("sent", 1) not in recorder.told
    made.receive(frame(WINDOW_UPDATE, 0, 1, u32(1)))
    assert recorder.told[-1] == ("sent", 1)


def test_the_connections_room_is_shared_and_frames_are_no_longer_than_the_peer_takes() -> None:
    made, _ = connection(settings=setting(4, 1 << 20))
    made.receive(open_stream(1) + open_stream(3))
    assert not made.send_data(1, b"a" * 100_000)
    assert not made.send_data(3, b"b")
    said = frames(made.take())
    assert {stream for _, _, stream, _ in said} == {1}
    assert sum(len(payload) for *_, payload in said) == 65_535
    assert max(len(payload) for *_, payload in said) == 16_384
    made.receive(frame(WINDOW_UPDATE, 0, 0, u32(100_000)))
    said = frames(made.take())
    assert sum(len(payload) for *_, payload in said) == 100_001 - 65_535


def test_what_is_dealt_with_makes_room_for_more() -> None:
    made, _ = connection()
    made.receive(open_stream(1))
    for _ in range(40):
        made.receive(frame(DATA, 0, 1, b"x" * 16_384))
        made.acknowledge(1, 16_384)
    said = frames(made.take())
    assert [(kind, stream) for kind, _, stream, _ in said] == [(WINDOW_UPDATE, 1)]
    assert http2.STREAM_WINDOW_BYTES // 2 < int.from_bytes(said[0][3]) <= 40 * 16_384
    for _ in range(http2.CONNECTION_WINDOW_BYTES // 2 // 16_384):
        made.receive(frame(DATA, 0, 1, b"x" * 16_384))
        made.acknowledge(1, 16_384)
    assert (WINDOW_UPDATE, 0) in [(kind, stream) for kind, _, stream, _ in frames(made.take())]


def test_who_sends_more_than_there_is_room_for_breaks_the_protocol() -> None:
    made, recorder = connection()
    made.receive(open_stream(1))
    for _ in range(http2.STREAM_WINDOW_BYTES // 16_384):
        made.receive(frame(DATA, 0, 1, b"x" * 16_384))
    with pytest.raises(ProtocolError) as found:
        made.receive(frame(DATA, 0, 1, b"x"))
    assert found.value.code == framing.FLOW_CONTROL_ERROR
    assert len(recorder.told) == 1 + http2.STREAM_WINDOW_BYTES // 16_384


def test_room_for_one_stream_costs_the_same_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = connection(settings=setting(4, 0))
    streams = range(1, 200, 2)
    made.receive(b"".join(open_stream(stream) for stream in streams))
    looked_at: list[int] = []
    send = made._send_outbound

    def counted(stream: int) -> None:
        looked_at.append(stream)
        send(stream)

    monkeypatch.setattr(made, "_send_outbound", counted)
    for stream in streams:
        made.send_data(stream, b"ab")
    for stream in streams:
        made.receive(frame(WINDOW_UPDATE, 0, stream, u32(1)) + frame(WINDOW_UPDATE, 0, 0, u32(1)))
    assert looked_at == [*streams, *streams]
    assert all(made.waits(stream) for stream in streams)


def test_going_away_says_up_to_which_stream() -> None:
    made, _ = connection()
    made.receive(open_stream(5))
    made.send_goaway(final=False)
    made.send_goaway(framing.PROTOCOL_ERROR, reason="why")
    assert frames(made.take()) == [
        (GOAWAY, 0, 0, u32(2**31 - 1) + u32(0)),
        (GOAWAY, 0, 0, u32(5) + u32(1) + b"why"),
    ]


def test_kinds_that_nobody_knows_are_passed_over() -> None:
    made, recorder = connection()
    made.receive(frame(0x20, 0xFF, 77, b"future") + frame(GOAWAY, 0, 0, u32(0) * 2) + open_stream(1))
    assert recorder.told == [OPENED]


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", 1),
        (PREFACE + open_stream(1), 1),
        (PREFACE + frame(PING, 0, 0, b"12345678"), 1),
        (PREFACE + SETTINGS + open_stream(2), 1),
        (PREFACE + SETTINGS + open_stream(3) + open_stream(1), 1),
        (PREFACE + SETTINGS + open_stream(1) * 2, 1),
        (PREFACE + SETTINGS + open_stream(1, ended=True) + frame(DATA, 0, 1, b"x"), 5),
        (PREFACE + SETTINGS + frame(DATA, 0, 1, b"x"), 1),
        (PREFACE + SETTINGS + frame(DATA, 0, 0, b"x"), 1),
        (PREFACE + SETTINGS + open_stream(1) + frame(DATA, PADDED, 1, b"\x05ab"), 1),
        (PREFACE + SETTINGS + frame(RST_STREAM, 0, 1, u32(0)), 1),
        (PREFACE + SETTINGS + frame(RST_STREAM, 0, 1, b""), 6),
        (PREFACE + SETTINGS + frame(WINDOW_UPDATE, 0, 0, u32(0)), 1),
        (PREFACE + SETTINGS + frame(WINDOW_UPDATE, 0, 0, u32(2**31 - 1)), 3),
        (PREFACE + SETTINGS + frame(WINDOW_UPDATE, 0, 9, u32(1)), 1),
        (PREFACE + SETTINGS + frame(WINDOW_UPDATE, 0, 0, b"x"), 6),
        (PREFACE + frame(framing.SETTINGS, 0, 0, b"12345"), 6),
        (PREFACE + frame(framing.SETTINGS, 0, 1), 1),
        (PREFACE + SETTINGS + frame(framing.SETTINGS, ACK, 0, b"123456"), 6),
        (PREFACE + setting(4, 2**31), 3),
        (PREFACE + setting(5, 100), 1),
        (PREFACE + SETTINGS + frame(PING, 0, 0, b"short"), 6),
        (PREFACE + SETTINGS + frame(PRIORITY, 0, 1, b"x"), 6),
        (PREFACE + SETTINGS + frame(PUSH_PROMISE, 0, 1, b"x"), 1),
        (PREFACE + SETTINGS + frame(CONTINUATION, 0, 1, b"x"), 1),
        (PREFACE + SETTINGS + frame(HEADERS, 0, 1, REQUEST) + frame(PING, 0, 0, b"12345678"), 1),
        (PREFACE + SETTINGS + frame(HEADERS, 0, 1, REQUEST) + frame(CONTINUATION, 0, 3, b""), 1),
        (PREFACE + SETTINGS + frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"x" * 16_384) * 5, 11),
        (PREFACE + SETTINGS + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\x0f"), 9),
        (PREFACE + SETTINGS + frame(HEADERS, END_HEADERS | PRIORITY_FLAG, 1, b"abc"), 6),
        (PREFACE + SETTINGS + frame(DATA, 0, 1, b"x" * 16_385), 6),
    ],
)
def test_a_violation_is_told_by_its_code(sent: bytes, code: int) -> None:
    made = Connection(Recorder())
    with pytest.raises(ProtocolError) as found:
        made.receive(sent)
    assert found.value.code == code
    assert str(found.value)


CONVERSATION = (
    PREFACE
    + SETTINGS
    + open_stream(1)
    + frame(DATA, 0, 1, b"hello")
    + frame(PING, 0, 0, b"12345678")
    + open_stream(3)
    + frame(DATA, END_STREAM, 1, b"x" * 300)
    + frame(RST_STREAM, 0, 3, u32(8))
)


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=12))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    whole, recorder = Connection(Recorder()), Recorder()
    whole.receive(CONVERSATION)
    cut = Connection(recorder)
    edges = [0, *sorted(cuts), len(CONVERSATION)]
    for start, stop in pairwise(edges):
        cut.receive(CONVERSATION[start:stop])
    assert recorder.told == whole._streams.told  # type: ignore[attr-defined]
    assert cut.take() == whole.take()


@given(st.binary(max_size=400), st.booleans())
def test_garbage_is_a_violation_and_nothing_worse(data: bytes, begun: bool) -> None:
    made, _ = connection() if begun else (Connection(Recorder()), None)
    try:
        made.receive(data)
    except ProtocolError:
        pass


@given(
    st.lists(
        st.builds(
            frame,
            st.integers(0, 11),
            st.integers(0, 255),
            st.sampled_from([0, 1, 3, 5]),
            st.binary(max_size=20) | st.just(REQUEST) | st.just(u32(0)),
        ),
        max_size=20,
    )
)
def test_frames_in_any_order_are_taken_or_a_violation(sent: list[bytes]) -> None:
    made, _ = connection()
    try:
        for each in sent:
            made.receive(each)
            for stream in (1, 3, 5):
                made.send_headers(stream, b"\x88")
                made.send_data(stream, b"x" * 1000)
    except ProtocolError:
        pass
    frames(made.take())
