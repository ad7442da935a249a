"""What takes spans by OTLP over HTTP, as an OpenTelemetry Collector does."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from extproc.rpc.server import accept_no_more


@dataclass(frozen=True)
class Received:
    """A span with the words for who told it."""

    span: Span
    resource: dict[str, Any]

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def parent_id(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def attributes(self) -> dict[str, Any]:
        return {each.key: _value(each.value) for each in self.span.attributes}


@dataclass
class Receiver:
    """Set `status` to have it refuse."""

    url: str = ""
    status: int = 200
    raw: list[bytes] = field(default_factory=list)  # the messages, as they came
    headers: list[dict[str, str]] = field(default_factory=list)  # theirs, lower case
    spans: list[Received] = field(default_factory=list)
    refused: int = 0

    def named(self, name: str) -> list[Received]:
        return [each for each in self.spans if each.name == name]

    async def _take(self, request: web.Request) -> web.Response:
        if self.status != 200:
            self.refused += 1
            return web.Response(status=self.status, text="refused")
        body = await request.read()
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.raw.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {each.key: _value(each.value) for each in group.resource.attributes}
            self.spans += [Received(span, resource) for scope in group.scope_spans for span in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    @asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[Receiver]:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self
        finally:
            for site in runner.sites:
                await accept_no_more(site._server)  # type: ignore[attr-defined]
            await runner.cleanup()


def _value(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")
