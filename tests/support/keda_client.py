"""A trigger of a ScaledObject, as KEDA 2.21 drives an external scaler, over a real gRPC channel.

After KEDA's `external_scaler.go`, `scalers_cache.go` and the HPA's `replica_calculator.go`: no deadlines; IsActive
after each GetMetrics; what fails is asked once more; a push stream that breaks is opened again after a pause that
doubles up to a minute, and that only an orderly end of a stream makes short again. Times are a hundredth of KEDA's.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass, field

import grpc

from extproc.pb import externalscaler_pb2 as pb

SERVICE = "/externalscaler.ExternalScaler"
RETRY_S, LONGEST_RETRY_S = 0.02, 0.6
_CHANNEL = [
    ("grpc.service_config", json.dumps({"loadBalancingConfig": [{"round_robin": {}}]})),
    ("grpc.use_local_subchannel_pool", 1),
    # The pauses of the channel itself, which Go's has too.
    ("grpc.initial_reconnect_backoff_ms", 10),
    ("grpc.max_reconnect_backoff_ms", 100),
]


def connect(target: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """One connection, which all ScaledObjects with the same address and certificates share."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, _CHANNEL)
    return grpc.aio.secure_channel(target, credentials, _CHANNEL)


@dataclass(frozen=True)
class Spec:
    """A metric of the HPA. Targets and values are thousandths there."""

    name: str
    target: int


class Trigger:
    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: dict[str, str] | None = None,
        *,
        name: str = "vllm",
        index: int = 0,
        floats: bool = True,
    ) -> None:
        """`floats`: False is a KEDA up to 2.16, which does not know these fields."""
        self._prefix = f"s{index}-"
        self._floats = floats
        self._ref = pb.ScaledObjectRef(name=name, namespace="llm", scalerMetadata=metadata or {})
        self._spec = channel.unary_unary(
            f"{SERVICE}/GetMetricSpec", pb.ScaledObjectRef.SerializeToString, pb.GetMetricSpecResponse.FromString
        )
        self._metrics = channel.unary_unary(
            f"{SERVICE}/GetMetrics", pb.GetMetricsRequest.SerializeToString, pb.GetMetricsResponse.FromString
        )
        self._active = channel.unary_unary(
            f"{SERVICE}/IsActive", pb.ScaledObjectRef.SerializeToString, pb.IsActiveResponse.FromString
        )
        self._push = channel.unary_stream(
            f"{SERVICE}/StreamIsActive", pb.ScaledObjectRef.SerializeToString, pb.IsActiveResponse.FromString
        )
        self._push_spec = channel.unary_stream(
            f"{SERVICE}/StreamMetricSpec", pb.ScaledObjectRef.SerializeToString, pb.GetMetricSpecResponse.FromString
        )

    async def spec(self) -> list[Spec]:
        """The metrics that the HPA is given. Raises AioRpcError; KEDA then takes it for an empty list."""
        answer = await self._spec(self._ref)
        return [
            Spec(
                self._prefix + each.metricName,
                round(1000 * each.targetSizeFloat)
                if self._floats and each.targetSizeFloat > 0
                else 1000 * each.targetSize,
            )
            for each in answer.metricSpecs
        ]

    async def metrics_and_activity(self, name: str) -> tuple[list[int], bool]:
        """The values of a metric of the HPA. Raises AioRpcError."""
        request = pb.GetMetricsRequest(metricName=name.removeprefix(self._prefix), scaledObjectRef=self._ref)
        answer = await self._metrics(request)
        values = [
            round(1000 * each.metricValueFloat)
            if self._floats and each.metricValueFloat > 0
            else 1000 * each.metricValue
            for each in answer.metricValues
        ]
        return values, await self.is_active()

    async def is_active(self) -> bool:
        answer = await self._active(self._ref)
        return bool(answer.result)

    async def replicas(self, current: int, *, tolerance: float = 0.1) -> int:
        """What the HPA makes of it at one sync. Raises AioRpcError: there is no metric, and the HPA does nothing."""
        (spec,) = await self.spec()
        try:
            values, _ = await self.metrics_and_activity(spec.name)
        except grpc.aio.AioRpcError:
            values, _ = await self.metrics_and_activity(spec.name)
        usage = sum(values)
        if current and abs(usage / (spec.target * current) - 1.0) <= tolerance:
            return current
        return math.ceil(usage / spec.target)

    async def streams_its_specification(self) -> bool:
        """Whether the scaler has StreamMetricSpec; KEDA goes on without."""
        call = self._push_spec(self._ref)
        code: grpc.StatusCode = await call.code()
        return code is not grpc.StatusCode.UNIMPLEMENTED


@dataclass
class Pushes:
    """The push stream of a trigger, opened again and again."""

    trigger: Trigger
    heard: list[bool] = field(default_factory=list)
    ends: list[grpc.StatusCode] = field(default_factory=list)
    retries_s: list[float] = field(default_factory=list)

    async def run(self) -> None:
        retry_s = RETRY_S
        while True:
            call = self.trigger._push(self.trigger._ref)
            try:
                async for answer in call:
                    self.heard.append(answer.result)
            except grpc.aio.AioRpcError as error:
                self.ends.append(error.code())
            else:
                self.ends.append(grpc.StatusCode.OK)
                retry_s = RETRY_S
            self.retries_s.append(retry_s)
            pause_s, retry_s = retry_s, min(2 * retry_s, LONGEST_RETRY_S)
            await asyncio.sleep(pause_s)
