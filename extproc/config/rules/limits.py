"""Do the limits fit large bodies and many long requests?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extproc.config.codes import Finding
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.view import BUFFER, View

ENVOY_BUFFER_BYTES = 1024 * 1024  # what Envoy takes when no limit is set
ENOUGH_REQUESTS = 10_000  # ten times Envoy's default; one busy vLLM server runs 256 to 1024 requests at once
ENOUGH_RETRIES = 100  # when a server dies, all that it had is retried at once; the default is 3


@rule(
    "body-limit-listener",
    ERROR,
    why="Bodies between this limit and the largest get 413 before the service sees them; unset it is 1 MiB.",
    cure="make it equal to max_body_bytes",
)
def body_limit_listener(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        limit = chain.listener.per_connection_buffer_limit_bytes or ENVOY_BUFFER_BYTES
        if view.settings is not None and limit != view.settings.max_body_bytes:
            yield say(chain.listener_node, _differs(limit, view), "per_connection_buffer_limit_bytes")


@rule(
    "body-limit-buffer",
    ERROR,
    why="The buffer filter answers 413 above its own limit.",
    cure="make it equal to max_body_bytes",
)
def body_limit_buffer(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        for _, extension in chain.of_type(BUFFER):
            limit = extension.message.max_request_bytes or 0
            if view.settings is not None and limit != view.settings.max_body_bytes:
                yield say(extension.config, _differs(limit, view), "max_request_bytes")


@rule(
    "body-limit-cluster",
    WARNING,
    why="A smaller buffer towards the server makes Envoy stop and go while it replays a large body.",
    cure="make it equal to max_body_bytes, or leave it out",
)
def body_limit_cluster(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        limit = pool.message.per_connection_buffer_limit_bytes
        if view.settings is not None and limit is not None and limit < view.settings.max_body_bytes:
            yield say(pool.node, _differs(limit, view), "per_connection_buffer_limit_bytes")


@rule(
    "body-limit-retry",
    WARNING,
    why="A body above this limit is not kept for a retry, so a dead first server fails the request.",
    cure="set it to twice max_body_bytes, or leave it out",
)
def body_limit_retry(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        for route in chain.routes:
            for node, message in ((route.node, route.message), (route.host_node, route.host)):
                for field in ("request_body_buffer_limit", "per_request_buffer_limit_bytes"):
                    limit = getattr(message, field, None)
                    if view.settings is not None and limit is not None and limit < view.settings.max_body_bytes:
                        yield say(node, _differs(limit, view), field)


def _differs(limit: int, view: View) -> str:
    assert view.settings is not None
    return f"{limit} bytes here, and max_body_bytes is {view.settings.max_body_bytes}"


@rule(
    "circuit-breakers-low",
    WARNING,
    why="Envoy's defaults are 1024 requests and 3 retries at once; above them it answers 503 though servers have room,"
    " and the service holds a stream for each request.",
    cure="set max_connections, max_pending_requests and max_requests to 100000, max_retries to 10000",
)
def circuit_breakers_low(view: View, say: Say) -> Iterator[Finding]:
    for cluster in (*view.pools, *view.services):
        low = _low(cluster.message.circuit_breakers, retries=cluster.override is not None)
        if low:
            yield say(cluster.node, "too low for long requests: " + ", ".join(low), "circuit_breakers")


def _low(breakers: Any, *, retries: bool) -> list[str]:
    levels = [] if breakers is None else [t for t in breakers.thresholds if t.priority.name == "DEFAULT"]
    level = levels[0] if levels else None
    out = []
    for name in ("max_connections", "max_pending_requests", "max_requests"):
        value = getattr(level, name, None)
        if value is None or value < ENOUGH_REQUESTS:
            out.append(f"{name} {1024 if value is None else value}")
    value = getattr(level, "max_retries", None)
    if retries and getattr(level, "retry_budget", None) is None and (value is None or value < ENOUGH_RETRIES):
        out.append(f"max_retries {3 if value is None else value}")
    return out
