"""Frames of HTTP/2 to feed to a connection, and to read back what it says."""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc.rpc import framing
from extproc.rpc.framing import Header, frame, literal
from extproc.rpc.http2 import Connection

SETTINGS = frame(framing.SETTINGS, 0, 0)
PATH = b"/p.Service/Method"
REQUEST = b"".join(
    literal(name, value)
    for name, value in [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", PATH),
        (b":authority", b"test"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ]
)


@dataclass
class Recorder:
    """The `Streams` of a connection: a log of what it was told."""

    told: list[tuple[object, ...]] = field(default_factory=list)

    def opened(self, stream: int, headers: list[Header], ended: bool) -> None:
        self.told.append(("opened", stream, dict(headers).get(b":path"), ended))

    def data(self, stream: int, data: bytes, ended: bool) -> None:
        self.told.append(("data", stream, data, ended))

    def reset(self, stream: int) -> None:
        self.told.append(("reset", stream))

    def sent(self, stream: int) -> None:
        self.told.append(("sent", stream))


def connection(*, settings: bytes = SETTINGS) -> tuple[Connection, Recorder]:
    """One whose peer has said its preface."""
    recorder = Recorder()
    made = Connection(recorder)
    made.receive(framing.PREFACE + settings)
    made.take()
    return made, recorder


def open_stream(stream: int, *, ended: bool = False) -> bytes:
    return frame(framing.HEADERS, framing.END_HEADERS | (framing.END_STREAM if ended else 0), stream, REQUEST)


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of each."""
    found, at = [], 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 3])
        kind, flags, stream = data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9])
        found.append((kind, flags, stream, data[at + 9 : at + 9 + length]))
        at += 9 + length
    assert at == len(data)
    return found
