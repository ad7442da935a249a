"""What is the next legal answer on one ext_proc stream?

Theory. Envoy sends one message per part of the exchange and wants exactly one reply of the same kind to each, in
order. Which parts come is the operator's choice (the processing mode), told in the first message. Five shapes follow:

    BODY_FIRST          request body only, whole (headers skipped; a buffer filter behind us holds them back)
    HEADERS_THEN_BODY   headers, answered at once (Envoy may hold the body back until then); then the whole body
    FULL_DUPLEX         headers, n body chunks, perhaps trailers: nothing is answered before the end of the request,
                        then the headers, the body in chunks, the trailers
    HEADERS_ONLY        headers, no body
    STREAMED            headers, then body chunks that are answered one by one: decided at the headers

A request moves through four states:

    OPEN      -> nothing decided, nothing seen
    COLLECTING-> headers seen, body awaited
    DECIDED   -> the destination is sent; what still comes is answered politely and changes nothing
    ENDED     -> rejected, or closed by us: nothing may be sent

`_TABLE` names what happens for (shape, state, part). What it does not name is answered with a plain Continue, so a
message that should not come never gets silence (Envoy would wait for its timeout) nor two replies (Envoy would count a
spurious message and stop listening).

A request for a protocol upgrade or a bidirectional call has no end of body to wait for: it is decided at its headers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum, auto

from extproc.decision import Decision, Pick, Rejection, RejectionReason
from extproc.exchange.actions import (
    Action,
    Answered,
    Close,
    Continue,
    EchoBody,
    RequestPick,
    ResponseBegan,
    SendPick,
    SendRejection,
)
from extproc.exchange.events import BodyMode, Event, Opening, Part
from extproc.request import RawRequest

HEAD_BYTES = 4096  # of a response's body, where its id stands
MANY_CHUNKS, SMALL_BYTES = 256, 4096  # of a request's body; of more than so many, short ones are put together
CHUNK_BYTES = 62_000  # Envoy's bound for one streamed body reply is 64 KiB with its framing


class Shape(IntEnum):
    """How Envoy talks to us on this stream."""

    BODY_FIRST = auto()
    HEADERS_THEN_BODY = auto()
    FULL_DUPLEX = auto()
    HEADERS_ONLY = auto()
    STREAMED = auto()


class State(IntEnum):
    """How far the request is."""

    OPEN = auto()
    COLLECTING = auto()
    DECIDED = auto()
    ENDED = auto()


_SHAPE_OF_MODE: Mapping[BodyMode, Shape] = {
    BodyMode.NONE: Shape.HEADERS_ONLY,
    BodyMode.STREAMED: Shape.STREAMED,
    BodyMode.BUFFERED: Shape.HEADERS_THEN_BODY,
    BodyMode.BUFFERED_PARTIAL: Shape.HEADERS_THEN_BODY,
    BodyMode.FULL_DUPLEX_STREAMED: Shape.FULL_DUPLEX,
}


def shape_of(first: Part, request_body: BodyMode) -> Shape:
    """The shape of a stream, from its first message."""
    if first is Part.REQUEST_BODY:
        return Shape.BODY_FIRST
    return _SHAPE_OF_MODE[request_body]


def body_never_ends(headers: Mapping[str, str]) -> bool:
    """Whether waiting for the end of the body could wait for ever: upgrades, CONNECT, gRPC calls."""
    return (
        "upgrade" in headers
        or headers.get(":method") == "CONNECT"
        or headers.get("content-type", "").startswith("application/grpc")
    )


class Exchange:
    """The state machine of one stream. Call `receive` for each message, `decided` after each `RequestPick`."""

    __slots__ = (
        "_chunks",
        "_decision_part",
        "_head",
        "_headers",
        "_max_body",
        "_may_close_early",
        "_opening",
        "_size",
        "_state",
        "shape",
    )

    def __init__(self, opening: Opening, first: Part, *, max_body_bytes: int, close_early: bool) -> None:
        """`close_early`: in full duplex, end the stream once the request is answered; else stay to its end.

        It is not done where Envoy sends us the response's body: what it has sent before it hears of our end would be
        lost to the client (tried: 2 of 100 answers of a server that answers at once).
        """
        self.shape = shape_of(first, opening.request_body)
        self._opening = opening
        self._max_body = max_body_bytes
        self._may_close_early = close_early and opening.response_body is BodyMode.NONE
        self._state = State.OPEN
        self._headers: Mapping[str, str] = opening.headers
        self._chunks: list[bytes] = []
        self._size = 0
        self._head: bytes | None = None  # of the response's body; None: nobody wants to know, or it is long enough
        self._decision_part = first  # the part whose reply will carry the decision

    @property
    def state(self) -> State:
        return self._state

    @property
    def collected_bytes(self) -> int:
        """Of the request's body, those that are kept until its end."""
        return self._size if self._state is State.COLLECTING else 0

    @property
    def may_end(self) -> bool:
        """Whether Envoy can do without us from here on: what is still to come of the request and of the response does
        not pass through us, so an end with OK changes nothing for the client."""
        return (
            self._state is State.DECIDED
            and self._opening.response_body is BodyMode.NONE
            and self.shape is not Shape.STREAMED
            and not self._endless
        )

    def receive(self, event: Event) -> list[Action]:
        """The answers to one message."""
        if self._opening.observe_only or self._state is State.ENDED:
            return []
        handler = _TABLE.get((self.shape, self._state, event.part))
        return handler(self, event) if handler else self._polite(event)

    def decided(self, decision: Decision) -> list[Action]:
        """The answers that carry the decision."""
        if isinstance(decision, Rejection):
            self._state = State.ENDED
            self._chunks = []
            return [SendRejection(decision)]
        self._state = State.DECIDED
        self._head = b"" if decision.stores else None
        if self.shape is Shape.FULL_DUPLEX:
            actions = list(self._full_duplex_replies(decision))
            if self._may_close_early and not self._endless:
                actions.append(Close())
                self._state = State.ENDED
            return actions
        part = self._decision_part
        as_header = self.shape is not Shape.BODY_FIRST and part is not Part.REQUEST_TRAILERS
        return [SendPick(part, decision, as_header)]

    # What happens, one method per kind of row in the table.

    def _decide_at_headers(self, event: Event) -> list[Action]:
        self._headers = event.headers
        return self._request_pick(event.part)

    def _answer_headers_then_collect(self, event: Event) -> list[Action]:
        self._headers = event.headers
        if event.end_of_stream or self._endless:
            return self._request_pick(event.part)
        self._state = State.COLLECTING
        return [Continue(event.part, strip_destination=True)]

    def _hold_headers(self, event: Event) -> list[Action]:
        self._headers = event.headers
        if event.end_of_stream or self._endless:
            return self._request_pick(event.part)
        self._state = State.COLLECTING
        return []

    def _whole_body(self, event: Event) -> list[Action]:
        self._chunks = [event.body]
        return self._request_pick(event.part)

    def _collect_chunk(self, event: Event) -> list[Action]:
        self._size += len(event.body)
        if self._size > self._max_body:
            message = f"The request body is larger than {self._max_body} bytes."
            return self.decided(Rejection(RejectionReason.INVALID, 413, message))
        if len(self._chunks) >= MANY_CHUNKS and len(self._chunks[-1]) + len(event.body) <= SMALL_BYTES:
            self._chunks[-1] += event.body  # of two bytes each they would take twenty times their size
        else:
            self._chunks.append(event.body)
        return self._request_pick(event.part) if event.end_of_stream else []

    def _decide_at_trailers(self, event: Event) -> list[Action]:
        return self._request_pick(event.part)

    def _after_full_duplex_body(self, event: Event) -> list[Action]:
        # Envoy 1.35 and newer send one more, empty, chunk after the end of the body: it wants no reply.
        return self._echo(event) if self._endless else []

    def _polite(self, event: Event) -> list[Action]:
        if event.part is Part.RESPONSE_HEADERS and self._state is State.DECIDED:
            return [Continue(event.part), Answered(event.served, event.status)]
        if event.part is not Part.RESPONSE_BODY:
            return [Continue(event.part)]
        duplex = self._opening.response_body is BodyMode.FULL_DUPLEX_STREAMED
        answers: list[Action] = self._echo(event) if duplex else [Continue(event.part)]
        if self._head is not None:  # looked at when Envoy has its answer: the response does not wait for us
            head = self._head + event.body[: HEAD_BYTES - len(self._head)]
            answers.append(ResponseBegan(head))
            self._head = head if len(head) < HEAD_BYTES else None
        return answers

    # Helpers.

    @staticmethod
    def _echo(event: Event) -> list[Action]:
        return [EchoBody(event.part, body, event.end_of_stream and last) for body, last in _pieces((event.body,))]

    @property
    def _endless(self) -> bool:
        return body_never_ends(self._headers)

    def _request_pick(self, part: Part) -> list[Action]:
        self._decision_part = part
        opening, headers = self._opening, self._headers
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        raw = RawRequest(
            method=opening.method or headers.get(":method", ""),
            path=opening.path or headers.get(":path", ""),
            headers=headers,
            body=body,
            route=opening.route,
            subset=opening.subset,
        )
        return [RequestPick(raw)]

    def _full_duplex_replies(self, pick: Pick) -> Iterator[Action]:
        yield SendPick(Part.REQUEST_HEADERS, pick, as_header=True)
        if self._decision_part is Part.REQUEST_HEADERS:
            return
        ends_with_body = self._decision_part is Part.REQUEST_BODY
        chunks, self._chunks = self._chunks, []
        for body, last in _pieces(chunks) if chunks else ():  # trailers may come without a body
            yield EchoBody(Part.REQUEST_BODY, body, end_of_stream=last and ends_with_body)
        if not ends_with_body:
            yield Continue(Part.REQUEST_TRAILERS)


def _pieces(chunks: list[bytes] | tuple[bytes, ...]) -> Iterator[tuple[bytes, bool]]:
    """Cut chunks to what one reply may carry; the flag marks the last piece. At least one piece, perhaps empty."""
    pending: bytes | None = None
    for chunk in chunks:
        for start in range(0, len(chunk), CHUNK_BYTES):
            if pending is not None:
                yield pending, False
            pending = chunk[start : start + CHUNK_BYTES] if len(chunk) > CHUNK_BYTES else chunk
    yield pending or b"", True


_Handler = Callable[[Exchange, Event], list[Action]]
_A, _B, _C, _D, _S = (
    Shape.BODY_FIRST,
    Shape.HEADERS_THEN_BODY,
    Shape.FULL_DUPLEX,
    Shape.HEADERS_ONLY,
    Shape.STREAMED,
)

_TABLE: Mapping[tuple[Shape, State, Part], _Handler] = {
    (_A, State.OPEN, Part.REQUEST_BODY): Exchange._whole_body,
    (_B, State.OPEN, Part.REQUEST_HEADERS): Exchange._answer_headers_then_collect,
    (_B, State.COLLECTING, Part.REQUEST_BODY): Exchange._whole_body,
    (_B, State.COLLECTING, Part.REQUEST_TRAILERS): Exchange._decide_at_trailers,
    (_C, State.OPEN, Part.REQUEST_HEADERS): Exchange._hold_headers,
    (_C, State.COLLECTING, Part.REQUEST_BODY): Exchange._collect_chunk,
    (_C, State.COLLECTING, Part.REQUEST_TRAILERS): Exchange._decide_at_trailers,
    (_C, State.DECIDED, Part.REQUEST_BODY): Exchange._after_full_duplex_body,
    (_D, State.OPEN, Part.REQUEST_HEADERS): Exchange._decide_at_headers,
    (_S, State.OPEN, Part.REQUEST_HEADERS): Exchange._decide_at_headers,
}
