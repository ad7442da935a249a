"""Where do traces go, and which requests are traced?"""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from extproc.config.section import Section

_PATH = "/v1/traces"


class TracingSettings(Section):
    """A span for each decision, as a part of the request's trace. docs/tracing.md tells more."""

    endpoint: str = Field(
        description="URL of a receiver of OTLP over HTTP, as http://127.0.0.1:4318; without a path: its /v1/traces."
    )
    sample_ratio: float = Field(
        1.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Of the requests that bring no trace of their own (header traceparent), so many begin one, 0 to 1."
        " Those that bring one are traced if it is sampled.",
    )
    max_per_s: int = Field(
        100, ge=1, le=10_000, description="No more requests are traced a second, whatever clients ask for."
    )
    ca_file: str | None = Field(None, description="PEM CA for https; unset: those that the system trusts.")

    @field_validator("endpoint")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            known = False
        if "@" in value:
            raise ValueError(
                "may hold a user and a password, which would be shown in logs; give them in the environment variable"
                " OTEL_EXPORTER_OTLP_HEADERS"
            )
        if not known:
            raise ValueError(f'"{value[:60]}" is not a URL of OTLP over HTTP; write it as http://127.0.0.1:4318')
        return value

    @property
    def url(self) -> str:
        """Where spans are sent."""
        parts = urlsplit(self.endpoint)
        return self.endpoint if parts.path.strip("/") else parts._replace(path=_PATH).geturl()
