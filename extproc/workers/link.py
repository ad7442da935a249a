"""How do the supervisor and a worker talk? In frames, over a Unix stream socket that the worker has inherited.

A frame is four bytes that tell the length of what follows (network order), one that tells its kind, and its payload.
Who does not listen, or writes what is no frame, is no peer any more: the connection is cut, nothing is dropped without
a word.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import cast

from extproc import __version__
from extproc.bug_log import log_bug

log = logging.getLogger(__name__)

# Both ends must be of one version: an upgrade in place, under a service that runs, is found out by it.
VERSION = f"{__version__}/1"

MOST_BYTES = 64 * 1024 * 1024  # of a frame
UNSENT_BYTES = 16 * 1024 * 1024  # that wait for a peer: some seconds of all that there is to tell

_HEAD = struct.Struct("!IB")


class Kind(IntEnum):
    """What is in a frame. But for the first two, what comes in each direction may come at any time."""

    START = 1  # to a worker: its settings and number. JSON
    HELLO = 2  # of a worker: its port is open; or why not. JSON
    SHARED = 3  # of requests, both ways; see `messages`
    FLEET = 4  # to a worker: of servers; see `fleet`. JSON
    COUNTS = 5  # of a worker: what it has counted; see `counts`. JSON
    LOOK_AGAIN = 6  # of a worker: have the servers of a pool asked for their models. JSON
    LOOKED = 7  # to a worker: that is done. JSON
    STOP = 8  # to a worker: end in order, in so long. JSON
    SYNC = 9  # to a worker: answer, with the same payload, when all before is taken in
    SYNCED = 10  # of a worker


class FrameError(Exception):
    """These bytes are no frames."""


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[Kind, bytes]]:
        """The frames that are complete with these bytes. Raises FrameError."""
        buffer = self._buffer
        buffer += data
        out: list[tuple[Kind, bytes]] = []
        at = 0
        while len(buffer) - at >= _HEAD.size:
            length, number = _HEAD.unpack_from(buffer, at)
            if length > MOST_BYTES:
                raise FrameError(f"a frame of {length:,} bytes")
            end = at + _HEAD.size + length
            if len(buffer) < end:
                break
            try:
                kind = Kind(number)
            except ValueError:
                raise FrameError(f"a frame of kind {number}") from None
            out.append((kind, bytes(buffer[at + _HEAD.size : end])))
            at = end
        del buffer[:at]
        return out


def frame(kind: Kind, payload: bytes = b"") -> bytes:
    """Raises FrameError for a payload that is too long."""
    if len(payload) > MOST_BYTES:
        raise FrameError(f"a frame of {len(payload):,} bytes")
    return _HEAD.pack(len(payload), kind) + payload


class Link(asyncio.Protocol):
    """One end. `receive` is called with each frame, `lost` once when there is no peer any more, both on the event loop.

    What `receive` raises is a bug or a peer of another make: it is logged, and the connection is cut.
    """

    def __init__(self, receive: Callable[[Kind, bytes], None], lost: Callable[[], None]) -> None:
        self._receive = receive
        self._lost = lost
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Never waits. To nobody it does nothing."""
        self.pass_on(frame(kind, payload))

    def pass_on(self, framed: bytes) -> None:
        """Send what is a frame, or several, already."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(framed)
        if self._transport.get_write_buffer_size() > UNSENT_BYTES:
            log.error("a process of this service does not listen to the others: its connection is cut")
            self._transport.abort()

    def close(self) -> None:
        """Once all that was sent is on its way."""
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()

    # Of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for kind, payload in self._frames.feed(data):
                self._receive(kind, payload)
        except Exception as error:
            log_bug(log, "a process of this service said what cannot be understood: its connection is cut", error)
            self.cut()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
