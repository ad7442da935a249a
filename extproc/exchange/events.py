"""What can Envoy tell about one HTTP exchange?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, auto

from extproc.endpoint import Address
from extproc.request import ANY_ROUTE, Route


class BodyMode(IntEnum):
    """How Envoy sends a body; the numbers are the protocol's."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


@dataclass(frozen=True, slots=True)
class Opening:
    """What only the first message of a stream carries."""

    request_body: BodyMode = BodyMode.NONE
    response_body: BodyMode = BodyMode.NONE
    observe_only: bool = False  # Envoy wants no answers (observability mode)
    method: str = ""  # from request attributes; "" when not sent
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)  # single headers sent as request attributes
    route: Route = ANY_ROUTE
    subset: frozenset[str] | None = None


class Part(IntEnum):
    """The part of the exchange that a message is about, and that its one reply must be about."""

    REQUEST_HEADERS = auto()
    REQUEST_BODY = auto()
    REQUEST_TRAILERS = auto()
    RESPONSE_HEADERS = auto()
    RESPONSE_BODY = auto()
    RESPONSE_TRAILERS = auto()


@dataclass(frozen=True, slots=True)
class Event:
    """One message from Envoy."""

    part: Part
    end_of_stream: bool = False  # nothing follows on this side
    body: bytes = b""  # of a body part
    headers: Mapping[str, str] = field(default_factory=dict)  # of REQUEST_HEADERS; lower-case names, pseudo headers too
    status: int | None = None  # of RESPONSE_HEADERS
    served: Address | None = None  # of RESPONSE_HEADERS: the server that answers; None: the gateway does not say
