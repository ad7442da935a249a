"""What do clients notice when the service, or Envoy, fails?"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import aiohttp
import pytest

from tests.support import envoy_config
from tests.support.envoy_stack import BODY, DESTINATION, Answer, Stack, eventually, pause, resume
from tests.support.envoy_upstream import Held, answer

SHAPES = pytest.mark.parametrize("shape", envoy_config.SHAPES)


async def _stream(stack: Stack) -> bytes:
    async with stack.client.post(stack.url + "/v1/chat/completions", data=BODY) as response:
        assert response.status == 200
        return await response.content.read()


def _answer_at_once(stack: Stack) -> None:
    for upstream in stack.upstreams:
        upstream.respond = answer


async def _picked_again(stack: Stack) -> None:
    """A pick reaches a server (in shape A a request with a body; its header is written from the pick)."""

    async def picked() -> bool:
        response = await stack.request()
        return response.status == 200 and DESTINATION in stack.by_port(response.port).seen[-1].headers

    await eventually(picked, "requests are picked again")


@SHAPES
async def test_a_killed_service_cuts_no_stream_and_new_requests_flow(start: Any, shape: str) -> None:
    """R1. SIGKILL while streams run; then requests by Envoy's fallback policy; then a new process takes over.

    In A and B every new request is served at once. In C the body is already under way to the service when its stream
    fails, and Envoy answers 500: to three requests at most, then outlier detection has taken the service out.
    """
    stack: Stack = await start(shape=shape, service="process")
    await stack.until_access_log_is_connected()
    # In C a response must not begin before the service has ended its stream of the request.
    held = Held(head_first=shape != "C")
    for upstream in stack.upstreams:
        upstream.respond = held
    streams = [asyncio.create_task(_stream(stack)) for _ in range(8)]
    await eventually(lambda: held.waiting == 8, "eight streams run")

    async def streams_of_the_service() -> bool:
        return (await stack.status())["streams"]["open"] == (0 if shape == "C" else 8)

    await eventually(streams_of_the_service, "the service holds its streams, or in C has ended them")
    await stack.process.kill()
    _answer_at_once(stack)
    statuses = [(await stack.request()).status for _ in range(20)]
    failed = statuses.count(500) if shape == "C" else 0
    assert failed <= 3
    assert statuses == [500] * failed + [200] * (20 - failed)
    await eventually(lambda: stack.healthy("extproc", hosts=0), "Envoy noticed")
    assert Counter([(await stack.request()).status for _ in range(10)]) == {200: 10}
    held.release()
    for whole in await asyncio.gather(*streams):
        assert json.loads(whole)["size"] == len(BODY) if shape == "C" else whole == b"data: first\n\ndata: [DONE]\n\n"
    await stack.start_service()
    await stack.until_service_is_used()
    await _picked_again(stack)
    await stack.nothing_in_flight()


@SHAPES
@pytest.mark.newest_only
async def test_a_service_told_to_end_is_not_noticed_by_clients(start: Any, shape: str) -> None:
    """Cases f03, g09: SIGTERM under load; a stream of before goes on; exit code 0.

    The notice is longer than two of Envoy's health checks (here 0.5 s apart): only then has it surely stopped asking.
    """

    def notice(config: Any) -> None:
        envoy_config.settings_of(config)["shutdown_notice_s"] = 1.5

    stack: Stack = await start(shape=shape, service="process", change=notice)
    await stack.until_access_log_is_connected()
    held = Held(head_first=True)

    async def hold_chats(request: Any, body: bytes) -> Any:
        return await (held if request.path.startswith("/v1/chat") else answer)(request, body)

    for upstream in stack.upstreams:
        upstream.respond = hold_chats
    stream = asyncio.create_task(_stream(stack))
    await eventually(lambda: held.waiting == 1, "a stream runs")
    process = stack.process.process
    assert process is not None
    process.terminate()
    ended = asyncio.create_task(process.wait())
    statuses: Counter[int] = Counter()
    async with asyncio.timeout(20):
        while not ended.done():
            statuses[(await stack.request(path="/v1/embeddings")).status] += 1
    assert await ended == 0
    assert set(statuses) == {200}, statuses
    assert statuses[200] > 100
    held.release()
    assert await stream == b"data: first\n\ndata: [DONE]\n\n"


@SHAPES
@pytest.mark.newest_only
async def test_a_hung_service_costs_a_request_the_message_timeout_at_most(start: Any, shape: str) -> None:
    """The service is stopped with SIGSTOP, as if overloaded beyond measure; then it goes on.

    A and B: every request is served by the fallback policy after the message timeout (1 s). In C that timeout does not
    run: such a request waits until the HTTP/2 keepalive finds the connection dead (shipped: up to 35 s; here
    2 s), and gets 500. Once the health check has noticed, new requests flow in every shape.
    """

    def short_keepalive(config: Any) -> None:
        options = envoy_config.cluster(config, "extproc")["typed_extension_protocol_options"]
        http2 = next(iter(options.values()))["explicit_http_config"]["http2_protocol_options"]
        http2["connection_keepalive"] = {"interval": "1s", "timeout": "1s"}

    stack: Stack = await start(shape=shape, service="process", change=short_keepalive)
    await stack.until_access_log_is_connected()
    pause(stack.process.pid)
    try:
        async with asyncio.timeout(15):
            answers = await asyncio.gather(*(stack.request() for _ in range(10)))
        assert {a.status for a in answers} <= ({500} if shape == "C" else {200})
        await eventually(lambda: stack.healthy("extproc", hosts=0), "Envoy noticed")
        assert [(await stack.request()).status for _ in range(5)] == [200] * 5
    finally:
        resume(stack.process.pid)
    await stack.until_service_is_used()
    await _picked_again(stack)
    await stack.nothing_in_flight()


@SHAPES
async def test_a_killed_envoy_leaves_nothing_in_flight(start: Any, shape: str) -> None:
    """Its streams break, and in C, where they had ended, a page of the server tells that nothing runs any more."""
    stack: Stack = await start(shape=shape)
    await stack.until_access_log_is_connected()
    held = Held(head_first=True)
    for upstream in stack.upstreams:
        upstream.respond = held
    clients = [asyncio.create_task(_stream(stack)) for _ in range(12)]
    await eventually(lambda: held.waiting == 12, "the requests run")
    assert await stack.in_flight() == 12
    await stack.envoy.stop(kill=True)
    ends = await asyncio.gather(*clients, return_exceptions=True)
    assert all(isinstance(end, aiohttp.ClientError) for end in ends)
    held.release()
    await stack.nothing_in_flight()
    assert (await stack.status())["access_log"]["connected"] == 0


# Case a21: what failure_mode_allow means in shape A. docs/faults.md has this table.


def _is_gateway_error(response: Answer, status: int) -> bool:
    return response.status == status and response.json()["error"]["type"] == "server_error"


@pytest.mark.parametrize("allow", [True, False], ids=["allow", "deny"])
@pytest.mark.parametrize("fault", ["misspelt", "stopped", "killed mid-request"])
async def test_failure_mode_allow(start: Any, fault: str, allow: bool) -> None:
    """Case a21, shape A: with `true` the request is served by the fallback policy, with `false` it is refused."""

    def configure(config: Any) -> None:
        processor = envoy_config.http_filter(config, "ext_proc")
        processor["failure_mode_allow"] = allow
        processor["message_timeout"] = "20s"  # so that the kill, and no timeout, ends the wait
        if fault == "misspelt":
            processor["grpc_service"]["envoy_grpc"]["cluster_name"] = "extprok"

    stack: Stack = await start(service="process", change=configure)
    if fault == "stopped":
        await stack.process.kill()
    if fault == "killed mid-request":
        pause(stack.process.pid)
        request = asyncio.create_task(stack.request())

        async def sent() -> bool:
            return await stack.ext_proc_stat("stream_msgs_sent") == 1

        await eventually(sent, "Envoy has asked the service")
        assert not request.done()
        await stack.process.kill()
        response = await request
    else:
        response = await stack.request()
    if allow:
        assert response.status == 200
        assert DESTINATION not in stack.by_port(response.port).seen[0].headers
    else:
        assert _is_gateway_error(response, 500), response
        assert stack.seen() == []
    assert len(stack.seen()) == int(allow)
