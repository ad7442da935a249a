"""What is HTTP/2 made of? Kinds of frames, their flags, error codes (RFC 9113), and how a frame is written."""

from __future__ import annotations

from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 3
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 5, 6, 7, 8, 9, 11

MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 3, 4, 5, 6

HEAD = Struct(">HBBBI")
U32 = Struct(">I")
SETTING = Struct(">HI")

Header = tuple[bytes, bytes]


class ProtocolError(Exception):
    """The peer broke the protocol: the connection cannot go on."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """One header field that leaves no trace in the peer's table: without indexing, new name (RFC 7541, 6.2.2)."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    head, rest = bytearray((127,)), length - 127
    while rest >= 128:
        head.append(rest & 127 | 128)
        rest >>= 7
    head.append(rest)
    return bytes(head) + text


def unpadded(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ProtocolError(PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]
