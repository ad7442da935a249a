"""The admin HTTP server: /metrics, /healthz, /readyz, /status, /explain, /decisions, drains and recommendations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from extproc.admin import autoscale_pages, drain_pages, port, status_pages
from extproc.admin.drains import DrainDesk
from extproc.admin.explain import UnknownNameError, request_of
from extproc.admin.guard import LOCAL, Guard
from extproc.admin.metrics import page
from extproc.autoscale.latest import Explained
from extproc.request import RawRequest

INDEX = f"""extproc admin
{status_pages.INDEX}  /status     what the service knows and does, as JSON
  /explain    POST a request's body: where it would go now, and why; ?path=/v1/chat/completions&pool=...
  /decisions  a sample of the last picks, why they were made and how they ended; ?limit=20
  /metrics    for Prometheus
  /healthz    200 while the process runs
  /readyz     200 while Envoy may send requests here, else 503
{drain_pages.INDEX}{autoscale_pages.INDEX}"""
DECISIONS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Answers:
    """What the pages ask of the service."""

    ready: Callable[[], bool]
    status: Callable[[], Mapping[str, Any]]
    explain: Callable[[RawRequest], Mapping[str, Any]]  # raises UnknownNameError
    decisions: Callable[[int], list[dict[str, Any]]]  # the newest so many
    drains: DrainDesk | None = None  # None: they are not served
    autoscale: Explained | None = None  # None: recommendations are not served
    offered: Callable[[], Mapping[str, Any]] = dict  # for peers; see `telemetry.peers`
    view: Callable[[float | None], Mapping[str, Any]] | None = None  # what the status page shows; None: there is none


def application(
    registry: CollectorRegistry, answers: Answers, *, max_body_bytes: int, guard: Guard = LOCAL
) -> web.Application:
    """The routes, behind a guard. Only drains change anything."""

    async def index(_request: web.Request) -> web.Response:
        return web.Response(text=INDEX)

    async def metrics(request: web.Request) -> web.Response:
        body, content_type = await page(registry, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        return web.Response(text="ready\n") if answers.ready() else web.Response(status=503, text="not ready\n")

    async def show_status(_request: web.Request) -> web.Response:
        return web.json_response(answers.status())

    async def explain(request: web.Request) -> web.Response:
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return _mistake(413, f"the body is larger than max_body_bytes, {max_body_bytes:,}")
        try:
            return web.json_response(answers.explain(request_of(request.headers, request.query, body)))
        except UnknownNameError as error:
            return _mistake(404, str(error))

    async def decisions(request: web.Request) -> web.Response:
        limit = request.query.get("limit", str(DECISIONS_SHOWN))
        if not (limit.isascii() and limit.isdigit()) or len(limit) > 6:
            return _mistake(400, "limit must be a whole number, as in /decisions?limit=20")
        return web.json_response(answers.decisions(int(limit)))

    app = web.Application(
        client_max_size=max_body_bytes, middlewares=[port.guarded(guard, drain_pages.asked_by_the_server_itself)]
    )
    app.add_routes(
        [
            *([web.get("/", index)] if answers.view is None else status_pages.routes(answers.view, INDEX)),
            web.get("/metrics", metrics),
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/status", show_status),
            web.post("/explain", explain),
            web.get("/decisions", decisions),
            *(drain_pages.routes(answers.drains) if answers.drains is not None else ()),
            *(() if answers.autoscale is None else autoscale_pages.routes(answers.autoscale, answers.offered)),
        ]
    )
    return app


def _mistake(status: int, message: str) -> web.Response:
    """The asker's."""
    return web.json_response({"error": message}, status=status)
