"""A response that passes the service tells its id, and the next turn goes to the server that gave it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from extproc.pb.ext_proc_pb2 import ProcessingRequest
from extproc.router import Router
from tests.placement.fleet import fleet, page, say
from tests.support.ext_proc_client import (
    BUFFERED,
    DUPLEX,
    STREAMED,
    Client,
    Service,
    body,
    destination,
    headers,
    response,
)
from tests.support.waiting import eventually

FIELDS = {":method": "POST", ":path": "/v1/responses", "content-type": "application/json"}
STREAM = [
    b'event: response.created\ndata: {"response":{"id":"re',
    b'sp_1","created_at":1700000000.0},"sequence_number":0,"type":"response.created"}\n\n',
    b'event: response.output_text.delta\ndata: {"delta":"\\"id\\":\\"resp_2\\""}\n\n',
]


@pytest.fixture
def router() -> Router:
    return fleet("cache-aware", 8)


@pytest.fixture
async def client(router: Router) -> AsyncIterator[Client]:
    async with Service(router, clock=lambda: 0.0).serve() as service, service.client() as connected:
        yield connected


def turn(previous: str | None = None) -> bytes:
    return json.dumps({"model": "m", "input": "hi", "previous_response_id": previous, "stream": True}).encode()


def home_of(chosen: str) -> int:
    return int(chosen.partition(":")[0].rpartition(".")[2])


@pytest.mark.parametrize("mode", [DUPLEX, STREAMED, BUFFERED])
async def test_the_next_turn_follows_a_streamed_answer(router: Router, client: Client, mode: int) -> None:
    """case c15; the answer passes as it came, whichever way Envoy hands it to us"""
    stream = client.stream()
    await stream.send(headers(DUPLEX, response_mode=mode, fields=FIELDS), body(turn()))
    chosen = destination(await stream.read()).split(",")[0]
    await stream.read()  # the request's body
    assert await stream.ask(response("headers")) is not None
    for content in STREAM:
        reply = await stream.ask(response("body", content=content))
        assert reply is not None
        mutation = reply.response_body.response.body_mutation
        assert mutation.streamed_response.body == (content if mode == DUPLEX else b"")
    assert await stream.end() == "OK"
    say(router, home_of(chosen), page(0.0, waiting=50.0))
    assert await next_choice(client, "resp_1") == chosen
    assert await next_choice(client, "resp_2") != chosen, "what the model wrote is no id"


async def test_the_shipped_shape_with_a_response_that_passes_us_is_looked_at_too(
    router: Router, client: Client
) -> None:
    stream = client.stream()
    first = whole(turn())
    first.protocol_config.response_body_mode = BUFFERED  # type: ignore[assignment]
    chosen = destination(await stream.ask(first)).split(",")[0]
    assert await stream.ask(response("body", content=b'{"id":"resp_1"}', end=True)) is not None
    assert await stream.end() == "OK"
    say(router, home_of(chosen), page(0.0, waiting=50.0))
    assert await next_choice(client, "resp_1") == chosen


async def test_answers_of_other_apis_are_not_looked_at(router: Router, client: Client) -> None:
    stream = client.stream()
    await stream.send(headers(DUPLEX, response_mode=DUPLEX), body(turn()))
    await stream.read()
    await stream.read()
    await stream.ask(response("body", content=b'{"id":"resp_1"}'))
    assert await stream.end() == "OK"
    await eventually(lambda: router.ledger.open_count == 0, "the stream ended")
    assert len(router.placements["vllm"].stored) == 0


def whole(content: bytes) -> ProcessingRequest:
    """Shape A."""
    made = body(content, first_with_mode=BUFFERED)
    made.attributes["envoy.filters.http.ext_proc"].fields["request.path"].string_value = "/v1/responses"
    return made


async def next_choice(client: Client, previous: str) -> str:
    stream = client.stream()
    chosen = destination(await stream.ask(whole(turn(previous)))).split(",")[0]
    assert await stream.end() == "OK"
    return chosen
