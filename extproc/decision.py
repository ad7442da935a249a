"""What can the answer to "where does this request go?" be?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from extproc.endpoint import Address
from extproc.value import value


class RejectionReason(StrEnum):
    """Why we answer instead of routing."""

    NO_ENDPOINTS = "no_endpoints"
    INVALID = "invalid"
    OVERLOADED = "overloaded"
    MODEL_NOT_FOUND = "model_not_found"


@dataclass(frozen=True, slots=True)
class Rejection:
    """We answer the client ourselves, with an OpenAI-shaped error."""

    reason: RejectionReason
    status: int  # HTTP
    message: str  # for the client; of the request it contains at most a model's name, cut and printable
    retry_after_s: int | None = None
    # The pool that is to be looked at again before this is sent: its servers asked for their models, or, where its
    # members are not known yet, waited for; None: it can be sent.
    doubtful: str | None = None


@value
class Pick:
    """Where a request goes: the first choice, then what Envoy's retries use, in order."""

    pick_id: str  # unique over processes; comes back in the access log
    address: Address
    fallbacks: tuple[Address, ...]
    destination: str  # what Envoy reads: `ip:port[,ip:port...]`
    stores: bool = False  # the server may keep its response, under an id that its body begins with


Decision = Pick | Rejection


class Outcome(StrEnum):
    """How a picked request ended."""

    OK = "ok"  # answered, the client's own mistakes (4xx) included
    BACKPRESSURE = "backpressure"  # 429 or 503 from the server: it is full, not broken
    FAILED = "failed"  # other 5xx, connection refused, reset
    CANCELLED = "cancelled"  # the client went away
    UNKNOWN = "unknown"  # the stream ended and no access log entry told more


@value
class Completion:
    """What Envoy's access log tells of a request, once it has ended (`final`) or has reached a server.

    With `attempt_ended` it is not about the request but about one attempt of it, which is over: `served`, `status` and
    `flags` are the attempt's.
    """

    pick_id: str | None  # None: the request was routed without us
    served: Address | None  # None: no server was reached
    final: bool = True
    status: int | None = None  # HTTP; None: there was no response
    flags: tuple[str, ...] = ()  # Envoy's response flags by their protobuf names
    details: str = ""  # Envoy's response code details
    attempts: int = 1
    duration_s: float | None = None  # whole request, as Envoy saw it
    first_byte_s: float | None = None  # to the first byte from the server; its headers, so not TTFT
    cluster: str = ""
    attempt_ended: bool = False  # only where not final
