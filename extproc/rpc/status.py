"""How did a gRPC call end? The codes that a server of ours says."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class AbortedError(Exception):
    """Ends the call with a status other than OK."""

    def __init__(self, code: Code, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details
