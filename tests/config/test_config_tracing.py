"""Does the check of a file that traces say what a trace needs, and only where it does?"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from extproc.config import load
from extproc.config.check import check
from tests.support import envoy_config

TRACER = {"@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig", "service_name": "envoy"}


def nothing(_: Any) -> None:
    pass


def named(config: Any) -> None:
    envoy_config.http_filter(config, "ext_proc")["request_attributes"].append("request.headers['Traceparent']")


def envoy_traces(config: Any) -> None:
    provider = {"name": "envoy.tracers.opentelemetry", "typed_config": TRACER}
    envoy_config.connection_manager(config)["tracing"] = {"provider": provider}


@pytest.mark.parametrize(
    ("shape", "change", "warns"),
    [
        ("A", nothing, True),
        ("A", named, False),
        ("A", envoy_traces, False),
        ("B", nothing, False),
        ("C", nothing, False),
    ],
)
def test_a_trace_that_the_service_would_not_see_is_warned_of(
    shape: str, change: Callable[[Any], None], warns: bool
) -> None:
    config = envoy_config.shipped(shape)
    envoy_config.settings_of(config)["tracing"] = {"endpoint": "http://127.0.0.1:4318"}
    change(config)
    codes = [problem.code for problem in check(json.dumps(config), "envoy.yaml")]
    assert codes == (["header-not-sent"] if warns else [])


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{}", "tracing.endpoint: is not set"),
        (
            "{endpoint: 'collector:4317'}",
            'tracing.endpoint: "collector:4317" is not a URL of OTLP over HTTP; write it as',
        ),
        ("{endpoint: 'http://u:hunter2@x'}", "would be shown in logs; give them in the environment variable"),
        (
            "{endpoint: 'http://x', sample_ratio: 1.5}",
            "tracing.sample_ratio: 1.5 is out of range; it must be at most 1",
        ),
        ("{endpoint: 'http://x', sampel_ratio: 1}", 'unknown setting; did you mean "sample_ratio"?'),
    ],
)
def test_a_mistake_in_the_section_is_said_in_words(section: str, words: str) -> None:
    loaded = load(f"tracing: {section}\npools: {{vllm: {{endpoints: [{{address: '10.0.0.1:8000'}}]}}}}\n", "own.yaml")
    told = "\n".join(map(str, loaded.problems))
    assert words in told
    assert "hunter2" not in told


def test_an_empty_section_is_none() -> None:
    loaded = load("tracing:\npools: {vllm: {endpoints: [{address: '10.0.0.1:8000'}]}}\n", "own.yaml")
    assert loaded.problems == ()
    assert loaded.settings is not None
    assert loaded.settings.tracing is None
