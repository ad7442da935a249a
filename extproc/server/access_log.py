"""Envoy's access log, received over gRPC: how each request ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import lru_cache

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from extproc.decision import Completion
from extproc.endpoint import Address
from extproc.pb import accesslog_pb2 as pb
from extproc.router import Router
from extproc.rpc.call import Call, Handler

log = logging.getLogger(__name__)

SERVICE = "envoy.service.accesslog.v3.AccessLogService"
PICK_ID_TAG = "pick_id"  # custom tag of the shipped configuration, from our metadata

_NO_RESPONSE = pb.StreamAccessLogsResponse().SerializeToString()
_NOT_THE_END = frozenset(
    {pb.UpstreamPoolReady, pb.UpstreamPeriodic, pb.UpstreamEnd, pb.DownstreamPeriodic, pb.DownstreamStart}
)


class AccessLogReceiver:
    """Serves `AccessLogService.StreamAccessLogs` and turns entries into completions."""

    def __init__(self, router: Router, clock: Callable[[], float] = time.monotonic) -> None:
        self.connected = 0  # Envoys (more exactly their workers) that stream to us now
        self.entries = 0
        self.undecodable = 0
        self._router = router
        self._clock = clock

    async def stream(self, call: Call) -> None:
        """One Envoy worker's stream of batches. It ends when that Envoy goes away."""
        self.connected += 1
        try:
            async for raw in call:
                try:
                    batch = pb.StreamAccessLogsMessage.FromString(raw)
                except DecodeError:
                    self.undecodable += 1
                    continue
                now = self._clock()
                for entry in batch.http_logs.log_entry:
                    self.entries += 1
                    self._router.complete(completion(entry), now)
        finally:
            self.connected -= 1
        await call.write(_NO_RESPONSE)


def completion(entry: pb.HTTPAccessLogEntry) -> Completion:
    """One log entry as a value."""
    common, response = entry.common_properties, entry.response
    socket = common.upstream_remote_address.socket_address
    return Completion(
        pick_id=common.custom_tags.get(PICK_ID_TAG) or None,
        served=_address(socket.address, socket.port_value),
        final=common.access_log_type not in _NOT_THE_END,
        status=response.response_code.value or None,
        flags=_flags(common.response_flags) if common.HasField("response_flags") else (),
        details=response.response_code_details,
        attempts=max(common.upstream_request_attempt_count, 1),
        duration_s=_seconds(common.duration) if common.HasField("duration") else None,
        first_byte_s=(
            _seconds(common.time_to_first_upstream_rx_byte)
            if common.HasField("time_to_first_upstream_rx_byte")
            else None
        ),
        cluster=common.upstream_cluster,
        attempt_ended=common.access_log_type == pb.UpstreamEnd,
    )


def _flags(flags: pb.ResponseFlags) -> tuple[str, ...]:
    return tuple(field.name for field, _ in flags.ListFields())  # a false flag is not listed


@lru_cache(maxsize=4096)  # a fleet's few addresses come with every entry
def _address(ip: str, port: int) -> Address | None:
    try:
        return Address.of(ip, port)
    except ValueError:  # no upstream was reached, or it is not an IP (a pipe)
        return None


def _seconds(duration: Duration) -> float:
    return float(duration.seconds) + duration.nanos / 1e9


def handlers(receiver: AccessLogReceiver) -> dict[str, Handler]:
    return {f"/{SERVICE}/StreamAccessLogs": receiver.stream}
