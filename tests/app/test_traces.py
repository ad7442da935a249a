"""Decisions as spans: of a whole service, taken by a real OTLP receiver."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from extproc import __version__
from extproc.app import App
from extproc.config.settings import Settings
from extproc.server.listener import ListenError
from tests.app.test_application import Running, settings, started
from tests.support.envoy_config import free_port
from tests.support.ext_proc_client import BUFFERED, HEADERS, body, destination, headers, pick_id
from tests.support.metrics_server import MetricsServer
from tests.support.otlp_receiver import Received, Receiver
from tests.support.waiting import eventually
from tests.telemetry.test_tracing import NOT_SAMPLED, SAMPLED, SPAN, TRACE

LONG_S = 60.0
SECRET = "correct-horse"
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": f"{SECRET} " * 500}],
    "user": f"{SECRET}-user",
    "cache_salt": f"{SECRET}-salt",
    "prompt_cache_key": f"{SECRET}-key",
}


@pytest.fixture
async def vllm() -> AsyncIterator[MetricsServer]:
    async with MetricsServer().serve() as server:
        yield server


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().serve() as made:
        yield made


def traced(vllm: MetricsServer, url: str, **tracing: Any) -> Settings:
    return settings({"vllm": [vllm.address]}, tracing={"endpoint": url} | tracing)


async def ask(running: Running, *, content: Any = CHAT, fields: dict[str, str] | None = None, **metadata: str) -> Any:
    """In shape B; the reply to the body."""
    stream = running.client.stream(tuple(metadata.items()))
    await stream.ask(headers(BUFFERED, fields=HEADERS | (fields or {})))
    return await stream.ask(body(json.dumps(content).encode()))


async def one(receiver: Receiver) -> Received:
    await eventually(lambda: receiver.spans, "a span has come", timeout_s=LONG_S)
    (span,) = receiver.spans
    return span


async def test_a_decision_is_a_child_of_the_clients_span_with_what_it_went_by(
    vllm: MetricsServer, receiver: Receiver
) -> None:
    vllm.waiting = 2
    async with started(traced(vllm, receiver.url, sample_ratio=0)) as running:
        await eventually(running.serving, "ready")
        told = {"traceparent": SAMPLED, "tracestate": "vendor=opaque", "x-session-id": f"{SECRET}-session"}
        await ask(running, fields=told | {"traceparent": NOT_SAMPLED})
        reply = await ask(running, fields=told)
        span = await one(receiver)
        assert (span.name, span.trace_id, span.parent_id) == ("extproc pick", TRACE, SPAN)
        assert span.span.trace_state == "vendor=opaque"
        assert span.span.kind == Span.SPAN_KIND_SERVER
        assert span.span.status.code == Status.STATUS_CODE_UNSET
        assert 0 < span.span.end_time_unix_nano - span.span.start_time_unix_nano < 60e9
        found = span.attributes
        tokens = found.pop("extproc.prompt_tokens")
        assert found.pop("extproc.expected_first_token_s") > 0
        assert found == {
            "extproc.pool": "vllm",
            "extproc.profile": "cache-aware",
            "extproc.api": "chat",
            "gen_ai.request.model": "m",
            "extproc.pick_id": pick_id(reply),
            "extproc.endpoint": destination(reply),
            "extproc.fallbacks": 0,
            "extproc.way": "first_token",
            "extproc.panic": False,
            "extproc.waiting": 2.0,
            "extproc.in_flight": 1,  # the one before
            "extproc.prompt_blocks": found["extproc.prompt_blocks"],
            "extproc.held_blocks": found["extproc.prompt_blocks"],
            "extproc.held_tokens": found["extproc.held_tokens"],
        }
        assert found["extproc.prompt_blocks"] > 1
        assert 0 < found["extproc.held_tokens"] <= tokens
        assert (span.resource["service.name"], span.resource["service.version"]) == ("extproc", __version__)
        assert span.resource["service.instance.id"]
        assert SECRET.encode() not in b"".join(receiver.raw)
        _, page = await running.get("/metrics")
        assert 'extproc_trace_spans_total{result="exported"} 1.0' in page


async def test_in_shape_a_the_trace_comes_as_an_attribute(vllm: MetricsServer, receiver: Receiver) -> None:
    async with started(traced(vllm, receiver.url, sample_ratio=0)) as running:
        message = body(json.dumps(CHAT).encode(), first_with_mode=BUFFERED)
        fields = message.attributes["envoy.filters.http.ext_proc"].fields
        fields["request.path"].string_value = "/v1/chat/completions"
        fields["request.headers['traceparent']"].string_value = SAMPLED
        await running.client.stream().ask(message)
        span = await one(receiver)
        assert (span.trace_id, span.parent_id) == (TRACE, SPAN)


async def test_envoys_own_span_is_the_parent_where_it_tells_one(vllm: MetricsServer, receiver: Receiver) -> None:
    async with started(traced(vllm, receiver.url)) as running:
        await ask(running, fields={"traceparent": SAMPLED}, traceparent=f"00-{TRACE}-{'a' * 16}-01", tracestate="e=1")
        span = await one(receiver)
        assert (span.trace_id, span.parent_id, span.span.trace_state) == (TRACE, "a" * 16, "e=1")


@pytest.mark.parametrize("parent", [None, "00-broken", "\udcff"])
async def test_a_request_without_a_trace_begins_one(
    vllm: MetricsServer, receiver: Receiver, parent: str | None
) -> None:
    async with started(traced(vllm, receiver.url)) as running:
        fields = {} if parent is None else {"traceparent": parent.encode("utf-8", "surrogateescape").decode("latin-1")}
        await ask(running, fields=fields)
        span = await one(receiver)
        assert span.parent_id == ""
        assert int(span.trace_id, 16)


async def test_a_refusal_tells_its_reason_and_is_an_error_where_it_is_a_5xx(
    vllm: MetricsServer, receiver: Receiver
) -> None:
    async with started(traced(vllm, receiver.url)) as running:
        await eventually(running.serving, "ready")
        message = body(json.dumps(CHAT).encode(), first_with_mode=BUFFERED)
        namespace = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        namespace.fields["x-gateway-destination-endpoint-subset"].string_value = "10.9.9.9:1"
        await running.client.stream().ask(message)
        span = await one(receiver)
        assert span.attributes["extproc.rejection"] == "no_endpoints"
        assert span.attributes["http.response.status_code"] == 503
        assert "extproc.endpoint" not in span.attributes
        assert (span.span.status.code, span.span.status.message) == (Status.STATUS_CODE_ERROR, "no_endpoints")


async def test_a_models_name_is_cut_and_can_be_encoded(vllm: MetricsServer, receiver: Receiver) -> None:
    """case c07"""
    async with started(traced(vllm, receiver.url)) as running:
        await ask(running, content=CHAT | {"model": "half \ud83d\n" + "x" * 1000})
        model = (await one(receiver)).attributes["gen_ai.request.model"]
        assert model.startswith("half \\ud83d?xxx")
        assert len(model) == 100


async def test_a_receiver_that_is_away_is_told_once_and_requests_go_on(
    vllm: MetricsServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    receiver, port = Receiver(status=400), free_port()
    async with receiver.serve(port), started(traced(vllm, f"http://127.0.0.1:{port}")) as running:
        for count in (1, 2):
            assert destination(await ask(running)) == vllm.address
            await eventually(lambda least=count: receiver.refused >= least, "it was refused", timeout_s=LONG_S)
        receiver.status = 200
        await ask(running)
        await eventually(lambda: receiver.spans, "a span is taken", timeout_s=LONG_S)

        def said() -> list[str]:
            return [record.getMessage() for record in caplog.records if record.getMessage().startswith("traces: ")]

        # The receiver has it before the exporter has its answer.
        await eventually(lambda: len(said()) > 1, "it is told", timeout_s=LONG_S)
        told = said()
        assert len(told) == 2, told
        assert "does not take spans (Failed to export" in told[0]
        assert "code: 400" in told[0]
        assert told[1] == f"traces: http://127.0.0.1:{port}/v1/traces takes spans again"
        assert not logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").propagate
        _, page = await running.get("/metrics")
        assert 'extproc_trace_spans_total{result="failed"} 2.0' in page


async def test_what_waits_is_sent_at_the_end(vllm: MetricsServer, receiver: Receiver) -> None:
    async with started(traced(vllm, receiver.url)) as running:
        for _ in range(3):
            await ask(running)
        await running.ended()
    assert len(receiver.spans) == 3


async def test_credentials_and_names_come_from_opentelemetrys_variables(
    vllm: MetricsServer, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=hunter2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gateway-picks")
    async with started(traced(vllm, receiver.url)) as running:
        await ask(running)
        span = await one(receiver)
        assert span.resource["service.name"] == "gateway-picks"
        assert receiver.headers[0]["api-key"] == "hunter2"
        assert receiver.headers[0]["content-encoding"] == "gzip"


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(sys.modules, "extproc.telemetry.trace_export", raising=False)
    with pytest.raises(ListenError, match=r"tracing needs OpenTelemetry .*pip install 'vllm-extproc\[otel\]'"):
        App(settings({"vllm": ["127.0.0.1:1"]}, tracing={"endpoint": "http://127.0.0.1:4318"}))


def test_a_ca_that_cannot_be_read_is_told() -> None:
    tracing = {"endpoint": "https://127.0.0.1:4318", "ca_file": "/nowhere/ca.pem"}
    with pytest.raises(ListenError, match=r"tracing\.ca_file: cannot read /nowhere/ca\.pem"):
        App(settings({"vllm": ["127.0.0.1:1"]}, tracing=tracing))


def test_off_means_that_nothing_of_it_is_loaded() -> None:
    """A process that does not trace pays neither memory nor start time for it."""
    code = (
        "import sys; from extproc.app import App; from extproc.config.settings import Settings;"
        "App(Settings.model_validate({'pools': {'vllm': {'endpoints': [{'address': '127.0.0.1:1'}]}}}));"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LONG_S)
