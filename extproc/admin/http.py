"""The admin HTTP server: /metrics, /healthz, /readyz, /status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

INDEX = """extproc admin
  /status    what the service knows and does, as JSON
  /metrics   for Prometheus
  /healthz   200 while the process runs
  /readyz    200 while Envoy may send requests here, else 503
"""


def application(
    registry: CollectorRegistry, ready: Callable[[], bool], status: Callable[[], dict[str, Any]]
) -> web.Application:
    """The routes over three questions. It changes nothing, so it needs no login; it listens on loopback by default."""

    async def index(_request: web.Request) -> web.Response:
        return web.Response(text=INDEX)

    async def metrics(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(text="ready\n") if ready() else web.Response(status=503, text="not ready\n")

    async def show_status(_request: web.Request) -> web.Response:
        return web.json_response(status())

    app = web.Application()
    app.add_routes(
        [
            web.get("/", index),
            web.get("/metrics", metrics),
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/status", show_status),
        ]
    )
    return app
