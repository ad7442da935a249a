"""How do notes of decisions become spans, and get to what keeps them?

By OpenTelemetry's own library, over OTLP/HTTP with protobuf. Only where the extra `otel` is installed can this be
imported. Its environment variables hold for what the settings do not say: OTEL_EXPORTER_OTLP_HEADERS,
OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and others.
"""

from __future__ import annotations

import logging
import os
import socket

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from extproc import __version__
from extproc.config.tracing_settings import TracingSettings
from extproc.decision import Decision, Pick
from extproc.note import Note
from extproc.serving import shown
from extproc.telemetry.tracing import Told

log = logging.getLogger(__name__)

NAME = "extproc pick"
TIMEOUT_S = 5.0  # of one message, all attempts at it together
_REASON_CHARS = 300
_LIBRARY = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")


class SpanSender:
    """Makes spans and sends them: a `tracing.Sender`."""

    def __init__(self, settings: TracingSettings) -> None:
        """Raises ValueError: the file with the CA cannot be read."""
        if settings.ca_file is not None and not os.access(settings.ca_file, os.R_OK):
            raise ValueError(f"tracing.ca_file: cannot read {settings.ca_file}")
        self._url = settings.url
        self._failing = False
        self._reason = _Reason()
        self._exporter = OTLPSpanExporter(self._url, certificate_file=settings.ca_file, timeout=TIMEOUT_S)
        self._context = TraceContextTextMapPropagator()
        self._made = _Made()
        # Which requests are traced is decided before.
        provider = TracerProvider(sampler=ALWAYS_ON, resource=_resource(), shutdown_on_exit=False)
        provider.add_span_processor(self._made)
        self._tracer = provider.get_tracer("extproc", __version__)

    def send(self, batch: list[Told]) -> bool:
        """One message, attempted for `TIMEOUT_S`. What goes wrong is told when it begins, and when it is over."""
        for told in batch:
            self._make(told)
        spans, self._made.spans = self._made.spans, []
        self._reason.first = ""
        good = self._exporter.export(spans) is SpanExportResult.SUCCESS
        if good and self._failing:
            log.info("traces: %s takes spans again", self._url)
        elif not good and not self._failing:
            log.warning(
                "traces: %s does not take spans (%s); they are dropped, and counted, until it does",
                self._url,
                self._reason.first or "no reason was given",
            )
        self._failing = not good
        return good

    def give_up(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
        self._reason.close()

    def _make(self, told: Told) -> None:
        carrier = {"traceparent": told.note.parent, "tracestate": told.note.parent_state}
        span = self._tracer.start_span(
            NAME,
            context=self._context.extract({name: text for name, text in carrier.items() if text is not None}),
            kind=SpanKind.SERVER,
            attributes=attributes_of(told.note, told.decision),
            start_time=told.ended_ns - round(told.took_s * 1e9),
        )
        if not isinstance(told.decision, Pick) and told.decision.status >= 500:
            span.set_status(Status(StatusCode.ERROR, str(told.decision.reason)))
        span.end(told.ended_ns)


def attributes_of(note: Note, decision: Decision) -> dict[str, AttributeValue]:
    """What a span tells. What is unknown, or played no part, is absent."""
    found: dict[str, AttributeValue | None] = {
        "extproc.pool": note.pool,
        "extproc.profile": note.profile,
        "extproc.api": note.api,
        "gen_ai.request.model": None if note.model is None else shown(note.model),
    }
    if isinstance(decision, Pick):
        found |= {
            "extproc.pick_id": decision.pick_id,
            "extproc.endpoint": decision.address.text,
            "extproc.fallbacks": len(decision.fallbacks),
            "extproc.way": note.way,
            "extproc.panic": note.panic,
            "extproc.waiting": note.waiting,
            "extproc.in_flight": note.in_flight,
            "extproc.expected_first_token_s": note.expected_s,
            "extproc.prompt_tokens": note.prompt_tokens,
            "extproc.prompt_blocks": note.prompt_blocks,
            "extproc.held_tokens": note.held_tokens,
            "extproc.held_blocks": note.held_blocks,
        }
    else:
        found |= {"extproc.rejection": str(decision.reason), "http.response.status_code": decision.status}
    return {name: value for name, value in found.items() if value is not None}


def _resource() -> Resource:
    """Who tells. The name of the service may be given by OpenTelemetry's environment variables."""
    known = {SERVICE_VERSION: __version__, SERVICE_INSTANCE_ID: f"{socket.gethostname()}:{os.getpid()}"}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        known[SERVICE_NAME] = "extproc"
    return Resource.create(known)


class _Made(SpanProcessor):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _Reason(logging.Handler):
    """Keeps why a message could not be sent, in place of the library's log, which tells it anew each time."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""
        _LIBRARY.addHandler(self)
        _LIBRARY.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or record.getMessage()[:_REASON_CHARS]

    def close(self) -> None:
        _LIBRARY.removeHandler(self)
        super().close()
