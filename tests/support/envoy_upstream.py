"""A server to route to, that remembers to the byte what reached it and misbehaves when told.

`python -m tests.support.envoy_upstream PORT` runs one as a process, which can be stopped and continued.

It is no model of vLLM: it serves a metrics page with the load it is told to show, and answers at once unless a test
holds it back.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self

from aiohttp import WSMsgType, web

from extproc.rpc.server import accept_no_more

Responder = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as the server got it."""

    method: str
    path: str  # with the query, as it came
    headers: dict[str, str]  # lower-case names
    size: int
    sha256: str


class Upstream:
    """One server on loopback. `respond` and `metrics` may be replaced at any time."""

    def __init__(self, port: int = 0, *, host: str = "127.0.0.1") -> None:
        self.port = port
        self.host = host
        self.seen: list[Seen] = []
        self.connections = 0  # TCP connections ever accepted, scrapes and health checks included
        self.waiting: float = 0.0  # shown on the metrics page
        self.open = 0  # requests being answered now; shown as running on the metrics page
        self.models: tuple[str, ...] | None = None  # what it tells the service that it serves; None: 404
        self.health = 200  # the status of /health
        self.respond: Responder = answer
        self.metrics: Responder = self.page
        self._runner: web.AppRunner | None = None
        self._known: set[object] = set()

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self) -> Self:
        app = web.Application(client_max_size=0)
        app.router.add_route("*", "/{rest:.*}", self._serve)
        # A gzip body must be seen as it came.
        self._runner = web.AppRunner(
            app, access_log=None, auto_decompress=False, handle_signals=False, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, self.port, backlog=1024)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """Close the listener and every connection: from now on connections are refused."""
        if self._runner is not None:
            for site in self._runner.sites:
                await accept_no_more(site._server)  # type: ignore[attr-defined]
            for protocol in list(self._runner.server.connections) if self._runner.server else []:
                if protocol.transport is not None:
                    protocol.transport.abort()
            await self._runner.cleanup()
            self._runner = None

    async def page(self, _request: web.Request, _body: bytes) -> web.Response:
        label = '{engine="0",model_name="m"}'
        return web.Response(
            text=f"vllm:num_requests_running{label} {self.open}\n"
            f"vllm:num_requests_waiting{label} {self.waiting}\n"
            f"vllm:kv_cache_usage_perc{label} 0\n"
        )

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None and request.transport not in self._known:
            self._known.add(request.transport)
            self.connections += 1
        if request.path == "/metrics":
            return await self.metrics(request, b"")
        if request.path == "/health":
            return web.Response(status=self.health)
        if request.path == "/v1/models" and request.headers.get("user-agent") == "extproc":  # else it is a client's
            if self.models is None:
                return web.Response(status=404)
            return web.json_response({"object": "list", "data": [{"id": name, "parent": None} for name in self.models]})
        if request.headers.get("upgrade", "").lower() == "websocket":
            self.seen.append(_seen(request, b""))
            return await _echo_websocket(request)
        self.open += 1
        try:
            body = await request.content.read()
            self.seen.append(_seen(request, body))
            return await self.respond(request, body)
        except ConnectionError:  # Envoy left; nobody reads what is returned
            return web.Response()
        finally:
            self.open -= 1


def _seen(request: web.Request, body: bytes) -> Seen:
    headers = {name.lower(): value for name, value in request.headers.items()}
    return Seen(request.method, request.raw_path, headers, len(body), hashlib.sha256(body).hexdigest())


async def _echo_websocket(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        if message.type == WSMsgType.TEXT:
            await socket.send_str(message.data)
    return socket


# Ways to answer.


async def answer(request: web.Request, body: bytes) -> web.StreamResponse:
    """200, with what was seen."""
    assert request.transport is not None
    port = request.transport.get_extra_info("sockname")[1]
    seen = {"port": port, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    return web.Response(text=json.dumps(seen), content_type="application/json")


def status(code: int, headers: dict[str, str] | None = None) -> Responder:
    async def respond(_request: web.Request, _body: bytes) -> web.StreamResponse:
        return web.Response(status=code, text='{"error": "told to"}', content_type="application/json", headers=headers)

    return respond


async def reset(request: web.Request, _body: bytes) -> web.StreamResponse:
    """Cut the connection without a byte of response."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class Held:
    """Answers wait until `release`; `head_first`: the response's headers and one event are sent before the wait."""

    def __init__(self, *, head_first: bool, ending: str = "end") -> None:
        """`ending`: `end` finishes the response, `reset` cuts the connection."""
        self.waiting = 0
        self.released = asyncio.Event()
        self._head_first = head_first
        self._ending = ending

    def release(self) -> None:
        self.released.set()

    async def __call__(self, request: web.Request, body: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if self._head_first:
            await response.prepare(request)
            await response.write(b"data: first\n\n")
        self.waiting += 1
        try:
            await self.released.wait()
        finally:
            self.waiting -= 1
        if self._ending == "reset":
            return await reset(request, body)
        if not self._head_first:
            return await answer(request, body)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _main(port: int) -> None:
    await Upstream(port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
