"""How many servers is KEDA told to run? Its external scaler, answered from the last recommendation.

The value is the number of servers itself and its target is 1, so that the HPA which KEDA makes (of type `AverageValue`)
comes to that number. What is too old, or not known yet, is no number: the call fails with UNAVAILABLE and the reason,
and KEDA leaves the servers as they are. The specification needs no recommendation: KEDA asks for it before all else,
and an HPA that is made while it cannot be had lacks our metric.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from extproc.autoscale.latest import Latest
from extproc.pb import externalscaler_pb2 as pb
from extproc.rpc.call import Call, Handler
from extproc.rpc.status import AbortedError, Code
from extproc.server.unary import only_message

log = logging.getLogger(__name__)

SERVICE = "externalscaler.ExternalScaler"
METRIC = "desired-replicas"
TARGET = 1  # of the metric, per server
POOL_KEY = "pool"  # in the trigger's metadata
LOOK_S = 0.5  # how soon a push stream hears of a change
_MOST_LOGGED = 100  # refusals that are logged; those who write ScaledObjects choose them
_MOST_NAMED = 100  # characters of a name that is none


class KedaScaler:
    """Serves `externalscaler.ExternalScaler`. One instance serves all ScaledObjects."""

    def __init__(self, latest: Latest, *, look_s: float = LOOK_S) -> None:
        self._latest = latest
        self._look_s = look_s
        self._leaving = asyncio.Event()
        self._logged: set[str] = set()

    def let_go(self) -> None:
        """End the push streams in order, before the connections end: KEDA then comes back within seconds. After a
        stream that broke it waits twice as long as the time before, up to a minute."""
        self._leaving.set()

    async def get_metric_spec(self, call: Call) -> None:
        self._pool(await only_message(call, pb.ScaledObjectRef))
        answer = pb.GetMetricSpecResponse()
        answer.metricSpecs.add(metricName=METRIC, targetSize=TARGET, targetSizeFloat=TARGET)
        await call.write(answer.SerializeToString())

    async def get_metrics(self, call: Call) -> None:
        request = await only_message(call, pb.GetMetricsRequest)
        pool = self._pool(request.scaledObjectRef)
        if request.metricName not in ("", METRIC):
            details = f'there is no metric {request.metricName[:_MOST_NAMED]!r} here, only "{METRIC}"'
            raise AbortedError(Code.INVALID_ARGUMENT, details)
        desired = self._desired(pool)
        answer = pb.GetMetricsResponse()
        answer.metricValues.add(metricName=METRIC, metricValue=desired, metricValueFloat=desired)
        await call.write(answer.SerializeToString())

    async def is_active(self, call: Call) -> None:
        pool = self._pool(await only_message(call, pb.ScaledObjectRef))
        await call.write(pb.IsActiveResponse(result=self._desired(pool) > 0).SerializeToString())

    async def stream_is_active(self, call: Call) -> None:
        """Says whether servers are wanted, at once and at each change. While that is not known it says nothing."""
        pool = self._pool(await only_message(call, pb.ScaledObjectRef))
        said: bool | None = None
        while not self._leaving.is_set():
            desired = self._look(pool)
            if isinstance(desired, int) and (desired > 0) is not said:
                said = desired > 0
                await call.write(pb.IsActiveResponse(result=said).SerializeToString())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._leaving.wait()

    def _pool(self, ref: pb.ScaledObjectRef) -> str:
        """Which one is asked for."""
        names = sorted(self._latest.names)
        asked = ref.scalerMetadata.get(POOL_KEY, "")
        if asked in names:
            return asked
        if not asked and len(names) == 1:
            return names[0]
        if not names:
            details = 'no pool gets recommendations here: give one the section "autoscale" in the settings'
        elif asked:
            details = f"no pool {asked[:_MOST_NAMED]!r} gets recommendations here; those that do: {', '.join(names)}"
        else:
            details = f'say in the trigger\'s metadata which "{POOL_KEY}" is meant: {", ".join(names)}'
        name = f"{ref.namespace}/{ref.name}"[:_MOST_NAMED]
        line = f"ScaledObject {name!r}: {details}"
        if line not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(line)
            log.warning("KEDA: %s", line)
        raise AbortedError(Code.INVALID_ARGUMENT, details)

    def _desired(self, pool: str) -> int:
        found = self._look(pool)
        if isinstance(found, str):
            raise AbortedError(Code.UNAVAILABLE, f"pool {pool}: {found}")
        return found

    def _look(self, pool: str) -> int | str:
        """How many servers are recommended, or why there is no number to go by."""
        found = self._latest.get(pool)
        if found is None:
            return "it was not looked at yet"
        doubt = found.doubt
        if doubt is not None:
            return doubt
        assert found.desired is not None  # else there is a doubt
        return found.desired


def handlers(scaler: KedaScaler) -> dict[str, Handler]:
    return {
        f"/{SERVICE}/GetMetricSpec": scaler.get_metric_spec,
        f"/{SERVICE}/GetMetrics": scaler.get_metrics,
        f"/{SERVICE}/IsActive": scaler.is_active,
        f"/{SERVICE}/StreamIsActive": scaler.stream_is_active,
    }
