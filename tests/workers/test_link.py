"""Frames between the supervisor and a worker."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.workers import link as link_module
from extproc.workers.link import MOST_BYTES, FrameError, Frames, Kind, Link, frame
from tests.support.waiting import eventually

FRAMES = st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=50)), max_size=6)


@given(FRAMES, st.lists(st.integers(0, 400), max_size=8))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    frames: list[tuple[Kind, bytes]], cuts: list[int]
) -> None:
    data = b"".join(frame(kind, payload) for kind, payload in frames)
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    reader = Frames()
    found = [each for a, b in pairwise(places) for each in reader.feed(data[a:b])]
    assert found == frames


def test_a_frame_of_an_unknown_kind_or_too_long_is_no_frame() -> None:
    with pytest.raises(FrameError, match="kind 99"):
        Frames().feed(b"\0\0\0\0\x63")
    with pytest.raises(FrameError, match="bytes"):
        Frames().feed((MOST_BYTES + 1).to_bytes(4, "big") + b"\x03")


class End:
    """One end, with what it heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[Kind, bytes]] = []
        self.gone = False
        self.refuses = False
        self.link = Link(self._receive, self._lost)

    def _receive(self, kind: Kind, payload: bytes) -> None:
        if self.refuses:
            raise ValueError("not for me")
        self.heard.append((kind, payload))

    def _lost(self) -> None:
        self.gone = True


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[End, End]]:
    ends = End(), End()
    for end, own in zip(ends, socket.socketpair(), strict=True):
        own.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda end=end: end.link, sock=own)  # type: ignore[misc]
    try:
        yield ends
    finally:
        for end in ends:
            end.link.cut()
        await eventually(lambda: all(end.gone for end in ends), "both ends are closed")


async def test_what_is_said_is_heard_and_an_end_that_goes_is_noticed() -> None:
    async with linked() as (one, other):
        one.link.send(Kind.SHARED, b"x" * 1_000_000)
        one.link.send(Kind.STOP)
        await eventually(lambda: len(other.heard) == 2, "both frames are there")
        assert other.heard == [(Kind.SHARED, b"x" * 1_000_000), (Kind.STOP, b"")]
        other.link.send(Kind.HELLO, b"{}")
        other.link.close()
        await eventually(lambda: one.gone, "it is noticed")
        assert one.heard == [(Kind.HELLO, b"{}")]
        one.link.send(Kind.STOP)  # to nobody: no error


async def test_who_says_what_cannot_be_understood_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async with linked() as (one, other):
        other.refuses = True
        one.link.send(Kind.SHARED, b"x")
        await eventually(lambda: one.gone and other.gone, "the connection is cut")
    assert "cannot be understood" in caplog.text


async def test_who_does_not_listen_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits for it is bounded."""
    monkeypatch.setattr(link_module, "UNSENT_BYTES", 100_000)
    ours, theirs = socket.socketpair()
    with theirs, caplog.at_level(logging.ERROR):
        ours.setblocking(False)
        end = End()
        await asyncio.get_running_loop().create_unix_connection(lambda: end.link, sock=ours)
        for _ in range(100):
            end.link.send(Kind.SHARED, b"x" * 100_000)
            if not end.link.open:
                break
        await eventually(lambda: end.gone, "it is given up")
    assert "does not listen" in caplog.text
