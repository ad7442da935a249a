"""Do requests that are no POST of JSON get through, unchanged?"""

from __future__ import annotations

import base64
import os
from typing import Any

import pytest

from tests.support import envoy_config
from tests.support.envoy_h2 import request_with_trailers
from tests.support.envoy_stack import BODY, Stack, digest

SHAPES = pytest.mark.parametrize("shape", envoy_config.SHAPES)


@SHAPES
async def test_requests_without_a_body_get_an_answer_of_a_server(start: Any, shape: str) -> None:
    """Cases a15, a23. Shape A routes them without the service; in B and C the service picks."""
    stack = await start(shape=shape)
    for number, method in enumerate(("GET", "OPTIONS", "DELETE", "HEAD"), 1):
        answer = await stack.request(method, "/v1/models", body=None)
        assert answer.status == 200, method
        assert len(stack.seen()) == number
        assert await stack.picks() == (0 if shape == "A" else number)
    assert {seen.method for seen in stack.seen()} == {"GET", "OPTIONS", "DELETE", "HEAD"}
    await stack.nothing_in_flight()


@SHAPES
async def test_other_methods_with_a_body_are_picked_and_arrive(start: Any, shape: str) -> None:
    stack = await start(shape=shape)
    for number, method in enumerate(("PUT", "PATCH", "DELETE", "GET", "PROPFIND"), 1):
        answer = await stack.request(method, body=BODY)
        assert (answer.status, answer.json()["sha256"]) == (200, digest(BODY)), method
        assert await stack.picks() == number
    await stack.nothing_in_flight()


@SHAPES
async def test_paths_arrive_as_they_were_sent(start: Any, shape: str) -> None:
    """Queries, double slashes, percent bytes that are not UTF-8, dots, a very long one: none is rewritten."""
    stack = await start(shape=shape)
    paths = [
        "/v1/chat/completions?api-version=1&x=%00",
        "//v1//chat//completions/",
        "/v1/%ff%fe/%e9",
        "/v1/a%2Fb/%2e%2e/c",
        "/v1/models/org%2Fname:generate",
        "/v1/" + "x" * 8000,
    ]
    for number, path in enumerate(paths, 1):
        answer = await stack.request(path=path)
        assert answer.status == 200, path
        assert stack.by_port(answer.port).seen[-1].path == path
        assert await stack.picks() == number
    await stack.nothing_in_flight()
    assert (await stack.status())["streams"]["errors"] == 0


@SHAPES
async def test_header_bytes_that_are_not_utf8_are_no_trouble(start: Any, shape: str) -> None:
    """Case a17."""
    stack: Stack = await start(shape=shape)
    received = await stack.raw(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"x-session-id: \xe9t\xe9\xff\r\nx-empty:\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
        % (len(BODY), BODY)
    )
    assert received.startswith(b"HTTP/1.1 200 ")
    assert await stack.picks() == 1
    assert stack.seen()[0].headers["x-session-id"].encode("utf-8", "surrogateescape") == b"\xe9t\xe9\xff"
    await stack.nothing_in_flight()


@SHAPES
@pytest.mark.parametrize("path", ["/v1/realtime?model=m", "/elsewhere"])
async def test_a_websocket_is_connected_at_once_and_talks(start: Any, shape: str, path: str) -> None:
    """Case a13: an upgrade has no end of body to wait for. The service is not asked."""
    stack: Stack = await start(shape=shape)
    async with stack.client.ws_connect(stack.url + path) as socket:
        for word in ("one", "two"):
            await socket.send_str(word)
            assert (await socket.receive(timeout=10)).data == word
    assert len(stack.seen()) == 1
    assert await stack.picks() == 0


@SHAPES
async def test_a_client_that_only_pretends_to_upgrade_gets_an_answer(start: Any, shape: str) -> None:
    """Case a13: another protocol than websocket, or a POST that names one. Envoy decides; what counts: it ends."""
    stack: Stack = await start(shape=shape)
    key = base64.b64encode(os.urandom(16))
    for head, body in (
        (b"GET /v1/chat/completions HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade, close\r\n", b""),
        (b"POST /v1/chat/completions HTTP/1.1\r\nupgrade: foo\r\nconnection: upgrade, close\r\n", BODY),
        (
            b"GET /v1/realtime HTTP/1.1\r\nupgrade: websocket\r\nconnection: close\r\nsec-websocket-key: "
            + key
            + b"\r\n",
            b"",
        ),
    ):
        length = b"content-length: %d\r\n" % len(body) if body else b""
        received = await stack.raw(head + b"host: x\r\n" + length + b"\r\n" + body)
        assert received.startswith(b"HTTP/1.1 "), received
    await stack.nothing_in_flight()


@SHAPES
async def test_an_http2_request_with_trailers_is_answered(start: Any, shape: str) -> None:
    """Case a06: the end of the request is its trailers, not a body message.

    In shape C without retries: with a retry policy Envoy itself sends the body of such a request twice (1.36 to 1.40;
    envoyproxy/envoy pull request 46095). HTTP/1.1 requests do not reach this: Envoy drops their trailers.
    """

    def no_retries(config: Any) -> None:
        if shape == "C":
            del envoy_config.connection_manager(config)["route_config"]["virtual_hosts"][0]["retry_policy"]

    stack: Stack = await start(shape=shape, change=no_retries)
    body = BODY + b" " * 100_000
    status, received = await request_with_trailers(stack.port, "/v1/chat/completions", body)
    assert status == 200, received
    assert stack.seen()[0].sha256 == digest(body)
    assert await stack.picks() == 1
    await stack.nothing_in_flight()
