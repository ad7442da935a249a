"""Does the service keep the Endpoint Picker Protocol? Over gRPC, clause by clause.

The protocol is that of the Gateway API Inference Extension, proposal 004, version 1.0.0. A heading of this file names
the section that a test is about; MUST is the protocol's word.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from google.protobuf.struct_pb2 import ListValue, Value

from extproc.decision import RejectionReason
from extproc.endpoint import Address, Endpoint
from extproc.pb import health_pb2
from extproc.pb.core_pb2 import HeaderValueOption
from extproc.pb.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from extproc.pool.pool import Pool
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.scheduling.shedding import ShedRule
from tests.support.ext_proc_client import (
    BUFFERED,
    DUPLEX,
    NONE,
    Client,
    Service,
    Stream,
    body,
    destination,
    headers,
    response,
)
from tests.support.fleet import STALE_AFTER_S, observe_all
from tests.support.waiting import eventually

DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
# As gateways ask for it: request and response, bodies and trailers.
FIRST = headers(DUPLEX, response_mode=DUPLEX)


def router(*ips: str, hosts: int = 3, shed: Sequence[ShedRule] = ()) -> Router:
    """Over servers at these IPs, port 8000, that all said a moment ago that they are idle."""
    pool = Pool("vllm", stale_after_s=STALE_AFTER_S)
    pool.set_endpoints(Endpoint(Address.of(ip, 8000)) for ip in ips)
    made = Router([PoolPlan(pool, PROFILES["least-loaded"], hosts, shed=tuple(shed))], rng=Random(1))
    observe_all(made, 0.0)
    return made


FOUR = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
ALL = frozenset(f"{ip}:8000" for ip in FOUR)


@asynccontextmanager
async def picker(served: Router | None = None) -> AsyncIterator[tuple[Service, Client]]:
    async with Service(served or router(*FOUR), clock=lambda: 0.0).serve() as service, service.client() as client:
        yield service, client


def with_metadata(message: ProcessingRequest, namespace: str, key: str, value: Value) -> ProcessingRequest:
    made = ProcessingRequest()
    made.CopyFrom(message)
    made.metadata_context.filter_metadata[namespace].fields[key].CopyFrom(value)
    return made


def within(*addresses: str) -> ProcessingRequest:
    """The first message of a request that may only go to these."""
    value = Value(list_value=ListValue(values=[Value(string_value=address) for address in addresses]))
    return with_metadata(FIRST, "envoy.lb.subset_hint", SUBSET, value)


async def asked(client: Client, first: ProcessingRequest = FIRST, content: bytes = BODY) -> ProcessingResponse:
    """The answer that carries the decision."""
    stream = client.stream()
    await stream.send(first, body(content))
    reply = await stream.read()
    assert reply is not None
    return reply


def header_of(reply: ProcessingResponse) -> str:
    options = reply.request_headers.response.header_mutation.set_headers
    (found,) = [option for option in options if option.header.key == DESTINATION]
    assert not found.header.value, "with both set Envoy refuses the mutation"
    assert found.append_action == HeaderValueOption.HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD
    return found.header.raw_value.decode()


def status_of(reply: ProcessingResponse) -> int:
    assert reply.WhichOneof("response") == "immediate_response", reply
    return reply.immediate_response.status.code


def error_of(reply: ProcessingResponse) -> dict[str, Any]:
    fields = {option.header.key: option.header.raw_value for option in reply.immediate_response.headers.set_headers}
    assert fields["content-type"] == b"application/json"
    found: dict[str, Any] = json.loads(reply.immediate_response.body)["error"]
    return found


# Destination Endpoint: header and dynamic metadata, the same value in both.


async def test_the_destination_stands_in_the_header_and_in_the_metadata() -> None:
    async with picker() as (_, client):
        reply = await asked(client)
    assert reply.WhichOneof("response") == "request_headers"
    assert header_of(reply) == destination(reply)
    assert list(reply.dynamic_metadata) == ["envoy.lb"]


@pytest.mark.parametrize("hosts", [1, 2, 3, 4, 9])
async def test_it_is_a_list_of_endpoints_the_first_choice_first(hosts: int) -> None:
    """<ip:port>, or several with commas between: different ones, no blanks."""
    async with picker(router(*FOUR, hosts=hosts)) as (service, client):
        named = destination(await asked(client)).split(",")
        assert len(named) == len(set(named)) == min(hosts, 4)
        assert set(named) <= ALL
        assert str(service.router.ledger.recent[-1].member.address) == named[0]


async def test_an_ipv6_endpoint_stands_in_brackets() -> None:
    """case b03"""
    async with picker(router("fd00::10", hosts=1)) as (_, client):
        assert destination(await asked(client)) == header_of(await asked(client)) == "[fd00::10]:8000"


async def test_a_destination_that_the_client_has_sent_is_overwritten() -> None:
    """case b01"""
    forged = headers(DUPLEX, response_mode=DUPLEX, fields={":method": "POST", DESTINATION: "169.254.169.254:80"})
    async with picker() as (_, client):
        assert header_of(await asked(client, forged)).split(",")[0] in ALL


# Endpoint Subset: filter metadata envoy.lb.subset_hint.


@pytest.mark.parametrize("allowed", [["10.0.0.3:8000"], ["10.0.0.4:8000", "10.0.0.2:8000"], sorted(ALL)])
async def test_only_endpoints_of_the_subset_are_picked(allowed: list[str]) -> None:
    """The EPP MUST only select from the list: the fallbacks too."""
    async with picker(router(*FOUR, hosts=4)) as (_, client):
        for _attempt in range(8):
            reply = await asked(client, within(*allowed))
            assert set(destination(reply).split(",")) == set(allowed)
            assert header_of(reply) == destination(reply)


async def test_of_a_subset_those_that_are_no_endpoints_of_the_pool_are_passed_over() -> None:
    async with picker() as (_, client):
        reply = await asked(client, within("192.0.2.7:8000", "10.0.0.2:8000", "10.0.0.3:9999", "nonsense"))
        assert destination(reply) == "10.0.0.2:8000"


@pytest.mark.parametrize(
    "subset", [(), ("192.0.2.7:8000",), ("10.0.0.1:9999",), ("",)], ids=["empty", "unknown", "another port", "nothing"]
)
async def test_a_subset_without_an_eligible_endpoint_is_a_503_at_once(subset: Sequence[str]) -> None:
    """Case b08: nobody waits for such an endpoint to come."""
    async with picker() as (service, client):
        reply = await asked(client, within(*subset))
        assert status_of(reply) == 503
        assert error_of(reply)["code"] == "no_endpoints"
        assert service.router.ledger.rejections[RejectionReason.NO_ENDPOINTS] == 1
        assert service.router.ledger.picks.total() == 0


async def test_an_endpoint_of_the_subset_that_is_drained_is_not_eligible() -> None:
    served = router("10.0.0.1", "10.0.0.2")
    pool = served.pools[0]
    pool.set_endpoints([Endpoint(Address.of("10.0.0.1", 8000), drained=True), Endpoint(Address.of("10.0.0.2", 8000))])
    async with picker(served) as (_, client):
        assert status_of(await asked(client, within("10.0.0.1:8000"))) == 503
        assert destination(await asked(client, within("10.0.0.1:8000", "10.0.0.2:8000"))) == "10.0.0.2:8000"


@pytest.mark.parametrize(
    ("namespace", "key"),
    [("envoy.lb", SUBSET), ("envoy.lb.subset_hint", "another"), ("envoy.filters.http.jwt_authn", SUBSET)],
)
async def test_without_the_key_the_whole_pool_counts(namespace: str, key: str) -> None:
    value = Value(list_value=ListValue(values=[Value(string_value="10.0.0.1:8000")]))
    async with picker(router(*FOUR, hosts=4)) as (_, client):
        reply = await asked(client, with_metadata(FIRST, namespace, key, value))
        assert set(destination(reply).split(",")) == ALL


@pytest.mark.parametrize("name", [SUBSET, "test-epp-endpoint-selection", "x-envoy-lb-subset-hint", SERVED, DESTINATION])
async def test_a_header_of_the_client_is_no_hint(name: str) -> None:
    """Case b08: only the gateway's metadata counts, and no name that tests of others use."""
    spoofed = headers(DUPLEX, response_mode=DUPLEX, fields={":method": "POST", name: "10.0.0.1:8000"})
    async with picker(router(*FOUR, hosts=4)) as (_, client):
        assert set(destination(await asked(client, spoofed)).split(",")) == ALL


# Errors: 503 without a ready endpoint, 429 for what is to be dropped.


@pytest.mark.parametrize("ips", [(), FOUR[:1]], ids=["no endpoint", "none that may be used"])
async def test_without_a_ready_endpoint_it_is_a_503(ips: Sequence[str]) -> None:
    served = router(*ips)
    served.pools[0].set_endpoints([Endpoint(Address.of(ip, 8000), drained=True) for ip in ips])
    async with picker(served) as (_, client):
        reply = await asked(client)
    assert status_of(reply) == 503
    assert error_of(reply)["message"]
    fields = {option.header.key for option in reply.immediate_response.headers.set_headers}
    assert "retry-after" in fields
    assert not reply.dynamic_metadata, "an error names no endpoint"


async def test_under_heavy_load_a_request_that_may_be_dropped_is_a_429_and_an_important_one_is_served() -> None:
    served = router(*FOUR, shed=[ShedRule(waiting=5, priority=1)])
    observe_all(served, 0.0, waiting=9.0)
    async with picker(served) as (service, client):
        dropped = await asked(client, content=b'{"model": "m", "prompt": "x", "priority": 1}')
        assert status_of(dropped) == 429
        assert error_of(dropped)["code"] == "rate_limit_exceeded"
        assert service.router.ledger.picks.total() == 0
        kept = await asked(client, content=b'{"model": "m", "prompt": "x", "priority": 0}')
        assert destination(kept).split(",")[0] in ALL


async def test_after_an_error_nothing_more_is_said() -> None:
    async with picker(router()) as (_, client):
        stream = client.stream()
        assert status_of(await decision(stream)) == 503
        await stream.send(response("headers"))
        assert await stream.end() == "OK"
        assert await stream.read() is None


async def decision(stream: Stream, first: ProcessingRequest = FIRST) -> ProcessingResponse:
    await stream.send(first, body(BODY))
    reply = await stream.read()
    assert reply is not None
    return reply


# Streaming in both directions: each message has its answer, no byte is changed.


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


async def streamed(stream: Stream, kind: str) -> bytes:
    """What comes back of a body, up to its end."""
    found = b""
    while True:
        reply = await stream.read()
        assert reply is not None
        assert reply.WhichOneof("response") == kind
        piece = getattr(reply, kind).response.body_mutation.streamed_response
        assert len(piece.body) <= 62_000  # what gateways take in one message
        found += piece.body
        if piece.end_of_stream:
            return found


@pytest.mark.parametrize("size", [1, 7, 62_000, 65_536, 200_000])
async def test_a_request_body_comes_back_as_it_was_sent(size: int) -> None:
    data = bytes(range(256)) * min(4 * size, 1000)
    async with picker() as (_, client):
        stream = client.stream()
        parts = pieces(data, size)
        await stream.send(FIRST, *(body(part, end=number == len(parts)) for number, part in enumerate(parts, 1)))
        assert destination(await stream.read())
        assert await streamed(stream, "request_body") == data
        assert await stream.end() == "OK"


async def test_a_response_passes_through_event_by_event() -> None:
    """Tokens are not held back: each piece is answered before the next one comes."""
    async with picker() as (_, client):
        stream = client.stream()
        await decision(stream)
        await streamed(stream, "request_body")
        reply = await stream.ask(response("headers"))
        assert reply is not None
        assert reply.WhichOneof("response") == "response_headers"
        for event in (b"data: 1\n\n", b"data: \xf0\x9f", b"\x98\x80\n\n", b"", b"data: [DONE]\n\n"):
            reply = await stream.ask(response("body", content=event))
            assert reply is not None
            piece = reply.response_body.response.body_mutation.streamed_response
            assert (piece.body, piece.end_of_stream) == (event, False)
        await stream.send(response("body", end=True))
        assert await streamed(stream, "response_body") == b""
        assert await stream.end() == "OK"


async def test_trailers_are_answered() -> None:
    """Of the request, where they end it, and of the response (case a06)."""
    async with picker() as (_, client):
        stream = client.stream()
        trailers = ProcessingRequest()
        trailers.request_trailers.SetInParent()
        await stream.send(FIRST, body(BODY, end=False), trailers)
        kinds = []
        for _part in range(3):
            reply = await stream.read()
            assert reply is not None
            kinds.append(reply.WhichOneof("response"))
        assert kinds == ["request_headers", "request_body", "request_trailers"]
        await stream.send(response("headers"), response("body", content=b"x"), response("trailers"))
        kinds = []
        for _part in range(3):
            reply = await stream.read()
            assert reply is not None
            kinds.append(reply.WhichOneof("response"))
        assert kinds == ["response_headers", "response_body", "response_trailers"]
        assert await stream.end() == "OK"


# Destination Endpoint Served: response metadata envoy.lb.


def answered(by: str | None, status: int = 200) -> ProcessingRequest:
    """The response's headers, of an endpoint that the gateway names."""
    made = ProcessingRequest()
    made.response_headers.headers.headers.add(key=":status", raw_value=str(status).encode())
    if by is not None:
        made.metadata_context.filter_metadata["envoy.lb"].fields[SERVED].string_value = by
    return made


async def in_flight_after(served: str | None, status: int = 200) -> tuple[Service, list[str], dict[str, int]]:
    """The service, the endpoints named, and what is in flight by address once the response has begun."""
    async with picker() as (service, client):
        stream = client.stream()
        named = destination(await decision(stream)).split(",")
        await streamed(stream, "request_body")
        by = named[int(served)] if served is not None and served.isdigit() else served
        reply = await stream.ask(answered(by, status))
        assert reply is not None
        assert reply.WhichOneof("response") == "response_headers"
        members = service.router.pools[0].members
        counted = {str(member.address): member.in_flight for member in members}
        await stream.send(response("body", content=b"x", end=True))
        await streamed(stream, "response_body")
        assert await stream.end() == "OK"
        await eventually(lambda: not any(member.in_flight for member in members), "nothing is in flight")
    return service, named, counted


@pytest.mark.parametrize("index", [0, 1, 2])
async def test_the_charge_is_where_the_gateway_says_that_it_was_served(index: int) -> None:
    service, named, counted = await in_flight_after(str(index))
    assert {address for address, count in counted.items() if count} == {named[index]}
    completion = service.router.ledger.recent[-1].completion
    assert completion is not None
    assert (str(completion.served), completion.status) == (named[index], 200)
    assert service.router.ledger.moved == (index > 0)


@pytest.mark.parametrize("served", [None, "192.0.2.7:8000", "nonsense", "10.0.0.1", ""])
async def test_a_gateway_that_does_not_say_or_names_a_stranger_changes_nothing(served: str | None) -> None:
    _, named, counted = await in_flight_after(served)
    assert {address for address, count in counted.items() if count} == {named[0]}


@pytest.mark.parametrize("mode", [BUFFERED, NONE], ids=["body first", "headers only"])
async def test_it_is_heard_in_other_shapes_too(mode: int) -> None:
    async with picker() as (service, client):
        stream = client.stream()
        first = body(BODY, first_with_mode=mode) if mode == BUFFERED else headers(mode, response_mode=NONE)
        named = destination(await stream.ask(first)).split(",")
        reply = await stream.ask(answered(named[1]))
        assert reply is not None
        assert reply.WhichOneof("response") == "response_headers"
        assert await stream.end() == "OK"
        (reservation,) = service.router.ledger.recent
        assert str(reservation.member.address) == named[1]


@pytest.mark.parametrize("status", ["", "x", "20", "2000", "²00"])
async def test_a_status_that_is_none_is_not_known(status: str) -> None:
    async with picker() as (service, client):
        stream = client.stream()
        await decision(stream)
        await streamed(stream, "request_body")
        message = ProcessingRequest()
        message.response_headers.headers.headers.add(key=":status", raw_value=status.encode())
        assert await stream.ask(message) is not None
        completion = service.router.ledger.recent[-1].completion
        assert completion is not None
        assert completion.status is None
        assert await stream.end() == "OK"


# Health Checking.


@pytest.mark.parametrize("name", ["liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor", ""])
@pytest.mark.parametrize("ready", [True, False])
async def test_health_by_the_names_of_the_protocol(name: str, ready: bool) -> None:
    async with picker() as (service, client):
        service.ready = ready
        check = client.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = await check(health_pb2.HealthCheckRequest(service=name))
    serving = ready or name == "liveness"
    assert answer.status == (
        health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
    )


# What the load is after many requests at once, and in which order.


async def test_many_at_once_spread_over_the_subset() -> None:
    """Each pick sees those before it (case e02), also among few."""
    async with picker(router(*FOUR, hosts=1)) as (_, client):
        allowed = ["10.0.0.2:8000", "10.0.0.3:8000"]
        replies = [await asked(client, within(*allowed)) for _ in range(10)]
        counts = counted(destination(reply) for reply in replies)
        assert counts == dict.fromkeys(allowed, 5)


def counted(values: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found
