"""Do decisions become part of the client's trace, through real Envoy, in each shape and where Envoy traces itself?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from tests.support import envoy_config
from tests.support.envoy_docs import yaml_under
from tests.support.envoy_stack import Stack, eventually
from tests.support.otlp_receiver import Receiver
from tests.telemetry.test_tracing import NOT_SAMPLED, SAMPLED, SPAN, TRACE

pytestmark = pytest.mark.newest_only

JSON = {"content-type": "application/json"}
OURS = "extproc pick"


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().serve() as made:
        yield made


def traced(url: str, **tracing: Any) -> Callable[[Any], None]:
    """With the attributes of docs/tracing.md, where no headers come."""

    def change(config: Any) -> None:
        envoy_config.settings_of(config)["tracing"] = {"endpoint": url} | tracing
        processor = envoy_config.http_filter(config, "ext_proc")
        if processor["processing_mode"]["request_header_mode"] == "SKIP":
            (shown,) = (
                each for each in yaml_under("tracing.md", "Which requests are traced") if "request_attributes" in each
            )
            processor["request_attributes"] += shown["request_attributes"][1:]

    return change


def envoy_traces(config: Any, url: str) -> None:
    """Envoy's own tracer sends to the same receiver, all of its spans."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    address = {"socket_address": {"address": host, "port_value": int(port)}}
    endpoint = {"lb_endpoints": [{"endpoint": {"address": address}}]}
    config["static_resources"]["clusters"].append(
        {
            "name": "otlp",
            "type": "STATIC",
            "load_assignment": {"cluster_name": "otlp", "endpoints": [endpoint]},
        }
    )
    envoy_config.connection_manager(config)["tracing"] = {
        "random_sampling": {"value": 100},
        "spawn_upstream_span": True,
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "service_name": "envoy",
                "http_service": {"http_uri": {"uri": f"{url}/v1/traces", "cluster": "otlp", "timeout": "5s"}},
            },
        },
    }


@pytest.mark.parametrize("shape", ["A", "B", "C"])
async def test_a_clients_trace_goes_on_in_the_decision_and_reaches_the_server(
    start: Callable[..., Any], receiver: Receiver, shape: str
) -> None:
    stack: Stack = await start(shape=shape, servers=2, change=traced(receiver.url, sample_ratio=0))
    told = {"traceparent": SAMPLED, "tracestate": "vendor=opaque"}
    assert (await stack.request(headers=JSON | {"traceparent": NOT_SAMPLED})).status == 200
    assert (await stack.request(headers=JSON)).status == 200
    answer = await stack.request(headers=JSON | told)
    assert answer.status == 200
    await eventually(lambda: receiver.spans, "a span has come")
    (span,) = receiver.spans
    assert (span.name, span.trace_id, span.parent_id) == (OURS, TRACE, SPAN)
    assert span.span.trace_state == "vendor=opaque"
    assert span.attributes["extproc.endpoint"] == f"127.0.0.1:{answer.port}"
    assert span.attributes["extproc.fallbacks"] == 1
    assert span.attributes["extproc.pool"] == "vllm"
    seen = [each for upstream in stack.upstreams for each in upstream.seen if "tracestate" in each.headers]
    assert [(each.headers["traceparent"], each.headers["tracestate"]) for each in seen] == [(SAMPLED, "vendor=opaque")]


async def test_where_envoy_traces_itself_its_span_is_the_parent(start: Callable[..., Any], receiver: Receiver) -> None:
    def change(config: Any) -> None:
        envoy_config.settings_of(config)["tracing"] = {"endpoint": receiver.url, "sample_ratio": 0}
        envoy_traces(config, receiver.url)

    stack: Stack = await start(servers=1, change=change)
    assert (await stack.request(headers=JSON | {"traceparent": SAMPLED})).status == 200

    def complete() -> bool:
        return (
            bool(receiver.named(OURS)) and len([s for s in receiver.spans if s.resource["service.name"] == "envoy"]) > 1
        )

    await eventually(complete, "spans of both have come")
    (ours,) = receiver.named(OURS)
    assert ours.trace_id == TRACE
    assert ours.parent_id != SPAN
    parents = {each.span.span_id.hex(): each for each in receiver.spans}
    assert parents[ours.parent_id].resource["service.name"] == "envoy"
    assert {each.trace_id for each in receiver.spans if each.span.span_id.hex() in (ours.parent_id,)} == {TRACE}
