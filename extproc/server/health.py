"""gRPC health: may Envoy send requests to this process?

`liveness` is SERVING while the process runs. The others (`""`, the ext_proc service, `readiness`) are SERVING once
there is something to route by, until shutdown begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from extproc.pb import health_pb2 as pb
from extproc.rpc.call import Call, Handler
from extproc.rpc.status import AbortedError, Code
from extproc.server import processor
from extproc.server.unary import only_message

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

    async def check(self, call: Call) -> None:
        service = (await only_message(call, pb.HealthCheckRequest)).service
        status = self.status(service)
        if status == pb.HealthCheckResponse.SERVICE_UNKNOWN:
            raise AbortedError(Code.NOT_FOUND, f'no service "{service}" here')
        await call.write(pb.HealthCheckResponse(status=status).SerializeToString())

    async def watch(self, call: Call) -> None:
        service = (await only_message(call, pb.HealthCheckRequest)).service
        said: Status | None = None
        while True:
            status = self.status(service)
            if status != said:
                said = status
                await call.write(pb.HealthCheckResponse(status=status).SerializeToString())
            await asyncio.sleep(WATCH_INTERVAL_S)


def handlers(health: Health) -> dict[str, Handler]:
    return {"/grpc.health.v1.Health/Check": health.check, "/grpc.health.v1.Health/Watch": health.watch}
