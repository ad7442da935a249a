"""ext_proc streams over a real gRPC channel: each shape, each way to end, each way to go wrong."""

from __future__ import annotations

import asyncio
import logging
from random import Random

import pytest

from extproc.request import RawRequest
from tests.support.ext_proc_client import (
    BUFFERED,
    DUPLEX,
    NONE,
    STREAMED,
    Client,
    Service,
    body,
    destination,
    headers,
    log_batch,
    message,
    pick_id,
    response,
)
from tests.support.fleet import in_flight, sampled_router
from tests.support.relay import relay
from tests.support.waiting import eventually

BODY = b'{"model": "m", "prompt": "hello"}'


async def settled(service: Service) -> None:
    """No stream, no charge."""
    await eventually(lambda: service.processor.open_streams == 0, "all streams ended")
    assert in_flight(service.router) == [0, 0, 0, 0]


async def test_body_first_is_one_message_each_way_and_charged_to_its_end(service: Service, client: Client) -> None:
    """R1"""
    stream = client.stream()
    reply = await stream.ask(body(BODY, first_with_mode=BUFFERED))
    assert reply is not None
    assert reply.WhichOneof("response") == "request_body"
    assert destination(reply).count(",") == 2
    assert sum(in_flight(service.router)) == 1
    assert await stream.end() == "OK"
    await settled(service)


async def test_headers_then_body(service: Service, client: Client) -> None:
    stream = client.stream()
    first = await stream.ask(headers(BUFFERED))
    assert first is not None
    assert first.WhichOneof("response") == "request_headers"
    assert sum(in_flight(service.router)) == 0
    second = await stream.ask(body(BODY))
    assert second is not None
    [option] = second.request_body.response.header_mutation.set_headers
    assert option.header.raw_value.decode() == destination(second)
    assert await stream.end() == "OK"
    await settled(service)


@pytest.mark.parametrize("mode", [NONE, STREAMED])
async def test_decided_at_the_headers(service: Service, client: Client, mode: int) -> None:
    stream = client.stream()
    assert destination(await stream.ask(headers(mode)))
    assert await stream.end() == "OK"
    await settled(service)


async def test_full_duplex_is_echoed_and_charged_until_the_response_has_ended(service: Service, client: Client) -> None:
    stream = client.stream()
    big = bytes(range(256)) * 600
    await stream.send(headers(DUPLEX, response_mode=DUPLEX), body(big[:70_000], end=False), body(big[70_000:]))
    assert destination(await stream.read())
    echoed = b""
    while True:
        reply = await stream.read()
        assert reply is not None
        piece = reply.request_body.response.body_mutation.streamed_response
        echoed += piece.body
        if piece.end_of_stream:
            break
    assert echoed == big
    reply = await stream.ask(response("headers"))
    assert reply is not None
    assert reply.WhichOneof("response") == "response_headers"
    reply = await stream.ask(response("body", content=b"data: x\n\n"))
    assert reply is not None
    assert reply.response_body.response.body_mutation.streamed_response.body == b"data: x\n\n"
    assert sum(in_flight(service.router)) == 1
    assert await stream.end() == "OK"
    await settled(service)


async def test_closing_early_ends_the_stream_and_the_access_log_ends_the_charge(
    service: Service, client: Client
) -> None:
    service.close_early = True
    stream = client.stream()
    reply = await stream.ask(headers(DUPLEX), body(BODY))
    assert (await stream.read()) is not None
    assert (await stream.read()) is None
    assert await stream.code() == "OK"
    await eventually(lambda: service.processor.open_streams == 0, "our side ended")
    assert sum(in_flight(service.router)) == 1
    logs = client.logs()
    await logs.write(log_batch((pick_id(reply), destination(reply).split(",")[0], 200)))
    await eventually(lambda: service.access_log.entries == 1, "the entry arrived")
    assert in_flight(service.router) == [0, 0, 0, 0]
    assert service.access_log.connected == 1
    logs.cancel()
    await eventually(lambda: service.access_log.connected == 0, "the access log call ended")


async def test_an_observing_stream_hears_nothing(service: Service, client: Client) -> None:
    first = headers(NONE)
    first.observability_mode = True
    stream = client.stream()
    await stream.send(first, response("headers"))
    assert await stream.end() == "OK"
    assert service.router.ledger.picks.total() == 0


async def test_a_rejection_is_an_immediate_response_and_the_stream_may_end_as_it_likes(client: Client) -> None:
    async with Service(sampled_router(0)).serve() as empty, empty.client() as other:
        stream = other.stream()
        reply = await stream.ask(headers(BUFFERED), body(BODY))
        assert reply is not None  # to the headers
        reply = await stream.read()
        assert reply is not None
        assert reply.immediate_response.status.code == 503
        assert await stream.end() == "OK"


async def test_a_body_over_the_limit_is_a_413_that_is_counted(service: Service, client: Client) -> None:
    """case g01"""
    stream = client.stream()
    reply = await stream.ask(headers(DUPLEX), *[body(b"a" * 300_000, end=False)] * 4)
    assert reply is not None
    assert reply.immediate_response.status.code == 413
    assert service.router.ledger.rejections == {"invalid": 1}
    stream.call.cancel()
    await settled(service)


# Ends


POINTS = {
    "before a message": [],
    "after the headers": [headers(BUFFERED)],
    "after the pick": [headers(BUFFERED), body(BODY)],
    "at once with the pick": [body(BODY, first_with_mode=BUFFERED)],
    "in a body": [headers(DUPLEX), body(BODY, end=False)],
    "in a response": [headers(NONE), response("headers"), response("body", content=b"x")],
}


@pytest.mark.parametrize("messages", POINTS.values(), ids=POINTS)
@pytest.mark.parametrize("wait_for_a_reply", [True, False])
async def test_a_client_that_leaves_at_any_point_leaves_no_charge(
    service: Service,
    client: Client,
    caplog: pytest.LogCaptureFixture,
    messages: list[object],
    wait_for_a_reply: bool,
) -> None:
    """case a14"""
    streams = [client.stream() for _ in range(20)]
    for stream in streams:
        await stream.send(*messages)  # type: ignore[arg-type]
        if wait_for_a_reply and messages and not (len(messages) == 2 and messages[1] is POINTS["in a body"][1]):
            await stream.read()
        stream.call.cancel()
    await settled(service)
    assert service.processor.failures == 0
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("extproc")]


async def test_a_thousand_cancelled_streams_leave_no_task_and_no_charge(
    service: Service, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """cases a14, g05: each at a random point of its life"""
    rng = Random(5)
    await asyncio.sleep(0)
    before = len(asyncio.all_tasks())

    async def one() -> None:
        stream = client.stream()
        script = [headers(BUFFERED), body(BODY), response("headers"), response("body", content=b"x")]
        for each in script[: rng.randrange(5)]:
            await stream.send(each)
            if rng.random() < 0.7:
                await stream.read()
        stream.call.cancel()

    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(100)))
    await settled(service)
    await eventually(lambda: len(asyncio.all_tasks()) <= before, "no task is left")
    assert service.processor.failures == 0
    assert service.router.ledger.open_count == 0
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith("extproc")]


async def test_a_connection_that_breaks_ends_all_its_streams(service: Service) -> None:
    async with relay(service.target) as line, service.client(target=line.address) as client:
        for _ in range(20):
            await client.stream().ask(body(BODY, first_with_mode=BUFFERED))
        assert sum(in_flight(service.router)) == 20
        line.cut()
        await settled(service)


# What goes wrong


async def test_a_message_that_does_not_decode_ends_its_stream_and_is_counted(service: Service, client: Client) -> None:
    """The error lets `failure_mode_allow` decide what becomes of the request."""
    stream = client.stream()
    assert await stream.ask(b"\xff\xff\xff") is None
    assert await stream.code() == "INTERNAL"
    assert service.processor.undecodable == 1
    other = client.stream()
    await other.ask(body(BODY, first_with_mode=BUFFERED))
    assert await other.ask(b"\x0a\xff") is None
    await settled(service)
    assert service.processor.undecodable == 2
    assert service.processor.failures == 0


async def test_a_message_of_an_unknown_kind_is_passed_over(service: Service, client: Client) -> None:
    stream = client.stream()
    await stream.send(message(BUFFERED))
    assert destination(await stream.ask(headers(BUFFERED, end=True)))
    assert await stream.end() == "OK"


async def test_a_bug_in_the_router_ends_that_stream_and_no_other(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """case a15: an exception of ours is logged, counted, and told as an error: `failure_mode_allow` decides"""
    healthy = client.stream()
    await healthy.ask(headers(BUFFERED))

    def broken(request: RawRequest, now: float) -> None:
        raise ZeroDivisionError("bug")

    with monkeypatch.context() as patch:
        patch.setattr(service.router, "route", broken)
        stream = client.stream()
        assert await stream.ask(body(BODY, first_with_mode=BUFFERED)) is None
        assert await stream.code() == "INTERNAL"
    assert service.processor.failures == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert destination(await healthy.ask(body(BODY)))
    assert await healthy.end() == "OK"


async def test_a_message_over_the_limit_is_refused_and_the_server_lives(service: Service, client: Client) -> None:
    """case g01"""
    stream = client.stream()
    await stream.send(body(b"a" * (service.max_body_bytes + (1 << 20)), first_with_mode=BUFFERED))
    assert await stream.code() == "RESOURCE_EXHAUSTED"
    await settled(service)
    fits = client.stream()
    assert destination(await fits.ask(body(b"a" * service.max_body_bytes, first_with_mode=BUFFERED)))
    assert await fits.end() == "OK"
    assert service.processor.failures == 0


async def test_the_time_of_each_decision_is_counted(service: Service, client: Client) -> None:
    for _ in range(3):
        stream = client.stream()
        await stream.ask(body(BODY, first_with_mode=BUFFERED))
        await stream.end()
    pairs, _ = service.processor.decisions.cumulative()
    assert pairs[-1] == ("+Inf", 3.0)
    assert service.processor.streams == 3
