"""Events in, actions out: an exchange with a decision that is made at once."""

from __future__ import annotations

from collections.abc import Iterable

from extproc.decision import Decision, Pick, Rejection, RejectionReason
from extproc.endpoint import Address
from extproc.exchange.actions import Action, Answered, RequestPick, ResponseBegan
from extproc.exchange.events import BodyMode, Event, Opening, Part
from extproc.exchange.exchange import Exchange
from extproc.request import RawRequest

PICK = Pick("p1", Address.of("10.0.0.1", 8000), (Address.of("10.0.0.2", 8000),), "10.0.0.1:8000,10.0.0.2:8000")
REJECTION = Rejection(RejectionReason.NO_ENDPOINTS, 503, "No server is available for this request.", 1)
POST = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
MAX_BODY_BYTES = 1_000_000


def request_headers(*, end: bool = False, headers: dict[str, str] = POST) -> Event:
    return Event(Part.REQUEST_HEADERS, end, headers=headers)


def request_body(body: bytes = b"", *, end: bool = False) -> Event:
    return Event(Part.REQUEST_BODY, end, body)


REQUEST_TRAILERS = Event(Part.REQUEST_TRAILERS, True)


class Playbook:
    """Plays events and keeps what was asked of the router."""

    def __init__(
        self,
        opening: Opening | BodyMode,
        first: Part,
        *,
        decision: Decision = PICK,
        close_early: bool = False,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        if isinstance(opening, BodyMode):
            opening = Opening(request_body=opening)
        self.asked: list[RawRequest] = []
        self.heads: list[bytes] = []  # of the response
        self.answered: list[Answered] = []
        self.exchange = Exchange(opening, first, max_body_bytes=max_body_bytes, close_early=close_early)
        self._decision = decision

    def play(self, event: Event) -> list[Action]:
        """What is sent in answer to one message."""
        sent: list[Action] = []
        for action in self.exchange.receive(event):
            if isinstance(action, RequestPick):
                self.asked.append(action.raw)
                sent += self.exchange.decided(self._decision)
            elif isinstance(action, ResponseBegan):
                assert sent, "Envoy's answer comes first"
                self.heads.append(action.head)
            elif isinstance(action, Answered):
                assert sent, "Envoy's answer comes first"
                self.answered.append(action)
            else:
                sent.append(action)
        return sent

    def play_all(self, events: Iterable[Event]) -> list[list[Action]]:
        return [self.play(event) for event in events]
