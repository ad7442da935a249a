"""What does a request of one message ask?"""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from extproc.rpc.call import EOF, Call
from extproc.rpc.status import AbortedError, Code

M = TypeVar("M", bound=Message)


async def only_message(call: Call, kind: type[M]) -> M:
    """The message that a call begins with. Raises AbortedError: there is none, or it does not decode."""
    message = await call.read()
    if message is EOF:
        raise AbortedError(Code.INTERNAL, "a request without its message")
    try:
        return kind.FromString(message)
    except DecodeError as error:
        raise AbortedError(Code.INTERNAL, "the request does not decode") from error
