"""Can a client choose the server, or make the service believe something?

Case b01: a client's destination header has no effect on any of the six paths a request can take, in any shape: not
followed, not seen by a server, and nobody connects to the address it names.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import envoy_config
from tests.support.envoy_stack import BODY, DESTINATION, Stack, eventually

SUBSET = "x-gateway-destination-endpoint-subset"
PICK_ID = "x-gateway-pick-id"
FORGED_ID = "forged-1"
SHAPES = pytest.mark.parametrize("shape", envoy_config.SHAPES)


@dataclass
class Decoy:
    """A listener that nobody has a reason to connect to."""

    address: str = ""
    connections: int = 0


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Decoy]:
    decoy = Decoy()

    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoy.connections += 1
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    decoy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield decoy
    finally:
        server.close()
        await server.wait_closed()


def forged(address: str) -> dict[str, str]:
    return {"content-type": "application/json", DESTINATION: address, SUBSET: address, PICK_ID: FORGED_ID}


async def _send_and_check(stack: Stack, decoy: Decoy, method: str, path: str, *statuses: int) -> None:
    """A dozen requests that name the decoy, a dozen that name a server which no rule would choose each time."""
    busy = stack.upstreams[-1].address
    for address in (decoy.address, busy):
        ports = set()
        for _ in range(12):
            body = BODY if method == "POST" else None
            answer = await stack.request(method, path, body=body, headers=forged(address))
            assert answer.status in (statuses or (200,))
            if answer.status == 200:
                served = next(u for u in stack.upstreams if u.seen)
                ports.add(served.port)
                headers = served.seen.pop().headers
                assert decoy.address not in headers.get(DESTINATION, "")
                assert headers.get(DESTINATION) != busy
                assert SUBSET not in headers
                assert headers.get(PICK_ID) != FORGED_ID
        # By chance alone all twelve land on one of three servers once in 177,000 runs.
        assert ports != {stack.upstreams[-1].port}, f"{method} {path}: the client chose the server"
    assert decoy.connections == 0


@SHAPES
async def test_not_with_the_service_up(start: Any, shape: str) -> None:
    """Case b01, paths 1 to 3 and 6: POST, GET, OPTIONS, and a route that does not ask the service."""
    stack = await start(shape=shape)
    stack.upstreams[-1].waiting = 50
    await stack.until_waiting_is_known()
    async with listening() as decoy:
        await _send_and_check(stack, decoy, "POST", "/v1/chat/completions")
        await _send_and_check(stack, decoy, "GET", "/v1/models")
        await _send_and_check(stack, decoy, "OPTIONS", "/v1/chat/completions")
        await _send_and_check(stack, decoy, "POST", "/v1/realtime/sessions")
        await _send_and_check(stack, decoy, "GET", "/v1/realtime/sessions")
    await stack.nothing_in_flight()


@SHAPES
async def test_not_with_the_service_down(start: Any, shape: str) -> None:
    """Case b01, path 4: failing open; while Envoy still thinks the service is there, and when it knows better."""
    stack = await start(shape=shape)
    await stack.service.stop()
    async with listening() as decoy:
        # In full duplex the body is on its way to the service by then, and Envoy cannot get it back.
        await _send_and_check(stack, decoy, "POST", "/v1/chat/completions", 200, *((500,) if shape == "C" else ()))
        await eventually(lambda: stack.healthy("extproc", hosts=0), "Envoy noticed that the service is down")
        await _send_and_check(stack, decoy, "POST", "/v1/chat/completions")
        await _send_and_check(stack, decoy, "GET", "/v1/models")


@SHAPES
async def test_not_when_the_service_refuses(start: Any, shape: str) -> None:
    """Case b01, path 5: an answer of the service itself. Every server is drained, and none is reached."""

    def drained(config: Any) -> None:
        for group in envoy_config.cluster(config, "vllm")["load_assignment"]["endpoints"]:
            for endpoint in group["lb_endpoints"]:
                endpoint["metadata"] = {"filter_metadata": {"extproc": {"drained": True}}}

    stack = await start(shape=shape, change=drained, await_ready=False)
    async with listening() as decoy:
        await _send_and_check(stack, decoy, "POST", "/v1/chat/completions", 503)
    assert stack.seen() == []
    answer = await stack.request()
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["code"] == "no_endpoints"


@SHAPES
async def test_a_gateways_subset_is_honoured_and_a_clients_is_not(start: Any, shape: str) -> None:
    """Case b08: only filter metadata counts. Here Envoy's set_metadata filter stands for the gateway."""
    hinted = ""

    def hint(config: Any) -> None:
        nonlocal hinted
        endpoints = envoy_config.cluster(config, "vllm")["load_assignment"]["endpoints"][0]["lb_endpoints"]
        hinted = f"127.0.0.1:{endpoints[1]['endpoint']['address']['socket_address']['port_value']}"
        kind = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config"
        filters = envoy_config.connection_manager(config)["http_filters"]
        metadata = {"metadata_namespace": "envoy.lb.subset_hint", "value": {SUBSET: [hinted, "10.9.9.9:1"]}}
        filters.insert(0, {"name": "gateway", "typed_config": {"@type": kind, "metadata": [metadata]}})
        processor = envoy_config.http_filter(config, "ext_proc")
        processor["metadata_options"]["forwarding_namespaces"] = {"untyped": ["envoy.lb.subset_hint"]}

    stack = await start(shape=shape, change=hint)
    stack.upstreams[1].waiting = 50
    await stack.until_waiting_is_known()
    for _ in range(5):
        answer = await stack.request(headers={SUBSET: stack.upstreams[0].address})
        assert answer.port == stack.upstreams[1].port
        assert stack.upstreams[1].seen[-1].headers[DESTINATION] == hinted
    await stack.nothing_in_flight()
