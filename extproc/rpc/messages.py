"""Where does one gRPC message end and the next begin? Sans-io: bytes in, whole messages out.

A message is preceded by a flag (1: compressed) and its length in four bytes.
"""

from __future__ import annotations

from collections import deque

from extproc.rpc.status import AbortedError, Code

_PREFIX_BYTES = 5


def framed(message: bytes) -> bytes:
    """A message as it goes over the wire, not compressed."""
    return b"\x00" + len(message).to_bytes(4) + message


class Messages:
    """Those of one direction of a call."""

    __slots__ = ("_begun", "_max_bytes", "queued_bytes", "whole")

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: the longest message that is taken."""
        self.whole: deque[bytes] = deque()
        self.queued_bytes = 0  # in `whole`
        self._begun = bytearray()  # a message that is not whole yet
        self._max_bytes = max_bytes

    @property
    def held_bytes(self) -> int:
        """Those of whole messages that were not taken, and of the one that is not whole."""
        return self.queued_bytes + len(self._begun)

    def feed(self, data: bytes) -> None:
        """Raises AbortedError for a message that is too long or compressed."""
        if self._begun:
            self._begun += data
            if len(self._begun) < _PREFIX_BYTES or len(self._begun) < _PREFIX_BYTES + self._length(self._begun, 0):
                return
            data = bytes(self._begun)
            self._begun = bytearray()
        at, end = 0, len(data)
        while end - at >= _PREFIX_BYTES:
            stop = at + _PREFIX_BYTES + self._length(data, at)
            if stop > end:
                break
            self.whole.append(data[at + _PREFIX_BYTES : stop])
            self.queued_bytes += stop - at
            at = stop
        if at < end:
            self._begun += data[at:]

    def take(self) -> bytes:
        """The next one; IndexError: there is none."""
        message = self.whole.popleft()
        self.queued_bytes -= _PREFIX_BYTES + len(message)
        return message

    def end(self) -> None:
        """Raises AbortedError if the last one is cut short."""
        if self._begun:
            raise AbortedError(Code.INTERNAL, "the last message is cut short")

    def _length(self, data: bytes | bytearray, at: int) -> int:
        if data[at]:
            raise AbortedError(Code.UNIMPLEMENTED, "compressed messages are not taken here")
        length = int.from_bytes(data[at + 1 : at + _PREFIX_BYTES])
        if length > self._max_bytes:
            raise AbortedError(
                Code.RESOURCE_EXHAUSTED, f"a message of {length} bytes; at most {self._max_bytes} are taken"
            )
        return length
