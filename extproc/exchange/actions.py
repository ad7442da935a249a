"""What must the shell do next for an exchange?"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.decision import Pick, Rejection
from extproc.endpoint import Address
from extproc.exchange.events import Part
from extproc.request import RawRequest


@dataclass(frozen=True, slots=True)
class RequestPick:
    """Decide where the request goes, then call `Exchange.decided`."""

    raw: RawRequest


@dataclass(frozen=True, slots=True)
class Continue:
    """Answer a message without changing anything.

    `strip_destination` also removes the destination header that the client may have set.
    """

    part: Part
    strip_destination: bool = False


@dataclass(frozen=True, slots=True)
class SendPick:
    """Answer with the destination: as metadata always, as a header where that can still reach the upstream."""

    part: Part
    pick: Pick
    as_header: bool


@dataclass(frozen=True, slots=True)
class EchoBody:
    """Full duplex: hand a piece of body back to Envoy."""

    part: Part
    body: bytes
    end_of_stream: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """Nothing to send: the response comes, from `served` (None: the gateway does not say), with this status."""

    served: Address | None
    status: int | None


@dataclass(frozen=True, slots=True)
class ResponseBegan:
    """Nothing to send: what is known of the response's body so far, which names what the server stores."""

    head: bytes


@dataclass(frozen=True, slots=True)
class SendRejection:
    """Answer the client ourselves. Nothing may be sent after it."""

    rejection: Rejection


@dataclass(frozen=True, slots=True)
class Close:
    """End our gRPC stream with OK: Envoy goes on without us."""


Action = RequestPick | Continue | SendPick | EchoBody | Answered | ResponseBegan | SendRejection | Close
