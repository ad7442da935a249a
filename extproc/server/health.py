"""gRPC health: may Envoy send requests to this process?

`liveness` is SERVING while the process runs. The others (`""`, the ext_proc service, `readiness`) are SERVING once
there is something to route by, until shutdown begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from extproc.pb import health_pb2 as pb
from extproc.server import processor

LIVENESS = "liveness"
READINESS = ("", processor.SERVICE, "readiness")
WATCH_INTERVAL_S = 0.5  # how soon a watcher hears of a change

Status = pb.HealthCheckResponse.ServingStatus


class Health:
    """Serves `grpc.health.v1.Health` from one question: are we ready?"""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def status(self, service: str) -> Status:
        if service == LIVENESS:
            return pb.HealthCheckResponse.SERVING
        if service not in READINESS:
            return pb.HealthCheckResponse.SERVICE_UNKNOWN
        return pb.HealthCheckResponse.SERVING if self._ready() else pb.HealthCheckResponse.NOT_SERVING

    async def check(self, request: pb.HealthCheckRequest, context: Any) -> pb.HealthCheckResponse:
        status = self.status(request.service)
        if status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f'no service "{request.service}" here')
        return pb.HealthCheckResponse(status=status)

    async def watch(self, request: pb.HealthCheckRequest, _context: object) -> AsyncIterator[pb.HealthCheckResponse]:
        said: Status | None = None
        while True:
            status = self.status(request.service)
            if status != said:
                said = status
                yield pb.HealthCheckResponse(status=status)
            await asyncio.sleep(WATCH_INTERVAL_S)


def handlers(health: Health) -> grpc.GenericRpcHandler:
    serialize, parse = pb.HealthCheckResponse.SerializeToString, pb.HealthCheckRequest.FromString
    return grpc.method_handlers_generic_handler(
        "grpc.health.v1.Health",
        {
            "Check": grpc.unary_unary_rpc_method_handler(health.check, parse, serialize),
            "Watch": grpc.unary_stream_rpc_method_handler(health.watch, parse, serialize),
        },
    )
