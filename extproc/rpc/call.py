"""One gRPC call, as its handler sees it: messages to read, messages to write, an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from typing import Final, Protocol

from extproc.rpc.framing import Header
from extproc.rpc.messages import Messages


class End(Enum):
    """What `read` gives after the peer's last message."""

    OF_MESSAGES = "end of messages"


EOF: Final = End.OF_MESSAGES


class Carrier(Protocol):
    """What carries a call's messages."""

    def send(self, call: Call, message: bytes) -> bool:
        """False: the peer is slow; wait for `room`."""

    async def room(self, call: Call) -> None: ...

    def took(self, call: Call) -> None:
        """A message was taken from the call's queue, or its handler keeps more or less than before."""


class Call:
    """Its handler runs in one task, which is cancelled when the peer gives the call up; others may help it."""

    __slots__ = (
        "_carrier",
        "_futures",
        "_headers",
        "counted",
        "ended",
        "kept",
        "messages",
        "replied",
        "stream",
        "unacknowledged",
    )

    def __init__(self, carrier: Carrier, stream: int, headers: list[Header], max_message_bytes: int) -> None:
        self.stream = stream
        self.messages = Messages(max_message_bytes)
        self.ended = False  # the peer sends no more
        self.replied = False  # our headers are out
        self.unacknowledged = 0  # bytes received that the peer may not replace yet
        self.kept = 0  # bytes of messages that were taken, and are kept by the handler
        self.counted = 0  # bytes that its carrier counts as held for it
        self._carrier = carrier
        self._headers = headers
        self._futures: list[asyncio.Future[None]] = []  # of those that wait

    def metadata(self, name: bytes) -> bytes | None:
        """What the peer sent beside the messages under this name (lower case); None: nothing."""
        for key, value in self._headers:
            if key == name:
                return value
        return None

    async def read(self) -> bytes | End:
        """The next message, or EOF."""
        messages = self.messages
        while not messages.whole:
            if self.ended:
                return EOF
            await self.wait()
        message = messages.take()
        self._carrier.took(self)
        return message

    def keep(self, size: int) -> None:
        """Tell how many bytes of what was read are kept until more comes: they count as held."""
        if size != self.kept:
            self.kept = size
            self._carrier.took(self)

    async def write(self, message: bytes) -> None:
        """Send one message; waits where the peer is slow to take it."""
        if not self._carrier.send(self, message):
            await self._carrier.room(self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.read()) is not EOF:
            yield message

    def end_of_messages(self) -> None:
        """Wait for no more of them: `read` gives EOF after those that are here."""
        self.ended = True
        self.wake()

    async def wait(self) -> None:
        """Until `wake`."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        try:
            await future
        finally:
            self._futures.remove(future)

    def wake(self) -> None:
        for future in self._futures:
            if not future.done():
                future.set_result(None)


Handler = Callable[[Call], Awaitable[None]]  # returns: OK; raises AbortedError: another status
