"""The short way of shape BODY_FIRST says to Envoy exactly what the state machine would say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from extproc.pb.ext_proc_pb2 import BUFFERED, BUFFERED_PARTIAL, ProcessingRequest
from extproc.rpc.call import EOF
from extproc.server import decode
from extproc.server.processor import Processor
from tests.support.fleet import pool, router, sampled_router

BODY = b'{"model": "m", "prompt": "hi"}'


class Scripted:
    """A stream of given messages, which keeps what is written to it."""

    def __init__(self, messages: Sequence[ProcessingRequest]) -> None:
        self._incoming = [message.SerializeToString() for message in messages]
        self.written: list[bytes] = []

    async def read(self) -> object:
        return self._incoming.pop(0) if self._incoming else EOF

    async def write(self, reply: bytes) -> None:
        self.written.append(reply)

    def metadata(self, _name: bytes) -> None:
        return None

    def keep(self, _size: int) -> None:
        pass


def body_first(mode: int = BUFFERED) -> ProcessingRequest:
    message = ProcessingRequest()
    message.request_body.body = BODY
    message.request_body.end_of_stream = True
    message.protocol_config.request_body_mode = mode  # type: ignore[assignment]
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.path"].string_value = "/v1/completions?x=1"
    fields["request.headers['x-session-id']"].string_value = "s"
    return message


def with_subset(*addresses: str) -> ProcessingRequest:
    message = body_first()
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.fields["x-gateway-destination-endpoint-subset"].string_value = ",".join(addresses)
    return message


def response_trailers() -> ProcessingRequest:
    message = ProcessingRequest()
    message.response_trailers.SetInParent()
    return message


async def said(messages: Sequence[ProcessingRequest], *, empty: bool, in_flight_after: int) -> list[bytes]:
    served = router(pool(0)) if empty else sampled_router(4)
    stream = Scripted(messages)
    await Processor(served, max_body_bytes=1 << 20, close_early=lambda: False, clock=lambda: 0.5).process(stream)
    assert sum(member.in_flight for member in served.pools[0].members) == in_flight_after
    return stream.written


@pytest.mark.parametrize("empty", [False, True], ids=["a pick", "a rejection"])
@pytest.mark.parametrize(
    "messages",
    [
        [body_first()],
        [body_first(BUFFERED_PARTIAL)],
        [body_first(), response_trailers()],
        [with_subset("10.0.0.3:8000")],
        [with_subset("192.0.2.1:1")],
    ],
    ids=["a body", "part of a body", "with response trailers", "within a subset", "nobody in the subset"],
)
async def test_both_ways_say_the_same(
    messages: list[ProcessingRequest], empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decode.is_whole_body(messages[0])
    short = await said(messages, empty=empty, in_flight_after=0)
    monkeypatch.setattr(decode, "is_whole_body", lambda message: False)
    long = await said(messages, empty=empty, in_flight_after=0)
    assert short == long
    assert short


def test_only_a_first_body_that_wants_one_answer_goes_the_short_way() -> None:
    observed = body_first()
    observed.observability_mode = True
    headers = ProcessingRequest()
    headers.request_headers.SetInParent()
    shown = body_first()
    shown.protocol_config.response_body_mode = BUFFERED
    for other in (observed, headers, response_trailers(), body_first(1), body_first(4), shown):
        assert not decode.is_whole_body(other)
