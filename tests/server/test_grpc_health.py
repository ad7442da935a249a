"""gRPC health: the names that Envoy and Kubernetes ask for."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from extproc.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse
from tests.support.ext_proc_client import Client, Service

SERVING, NOT_SERVING = HealthCheckResponse.SERVING, HealthCheckResponse.NOT_SERVING
READINESS = ["", "envoy.service.ext_proc.v3.ExternalProcessor", "readiness"]


def method(client: Client, kind: str, name: str) -> Any:
    return getattr(client.channel, kind)(
        f"/grpc.health.v1.Health/{name}",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )


async def check(client: Client, name: str) -> Any:
    answer = await method(client, "unary_unary", "Check")(HealthCheckRequest(service=name))
    return answer.status


@pytest.mark.parametrize("name", READINESS)
async def test_readiness_names_follow_readiness(service: Service, client: Client, name: str) -> None:
    assert await check(client, name) == SERVING
    service.ready = False
    assert await check(client, name) == NOT_SERVING


async def test_liveness_holds_while_the_process_runs(service: Service, client: Client) -> None:
    service.ready = False
    assert await check(client, "liveness") == SERVING


async def test_an_unknown_name_is_not_found(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await check(client, "nobody")
    assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_hears_the_state_and_each_change(service: Service, client: Client) -> None:
    call = method(client, "unary_stream", "Watch")(HealthCheckRequest(service=""))
    heard = [(await asyncio.wait_for(call.read(), 10)).status]
    for ready in (False, True):
        service.ready = ready
        heard.append((await asyncio.wait_for(call.read(), 10)).status)
    assert heard == [SERVING, NOT_SERVING, SERVING]
    call.cancel()


async def test_a_watcher_of_an_unknown_name_hears_that(client: Client) -> None:
    call = method(client, "unary_stream", "Watch")(HealthCheckRequest(service="nobody"))
    assert (await asyncio.wait_for(call.read(), 10)).status == HealthCheckResponse.SERVICE_UNKNOWN
    call.cancel()
