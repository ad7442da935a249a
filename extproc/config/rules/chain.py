"""Do the HTTP filters stand in an order that lets the pick reach the router?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extproc.config.codes import Finding, shown_path
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.view import BUFFER, EXT_PROC, ROUTER, Chain, Shape, View, shape_of


@rule(
    "ext-proc-missing",
    ERROR,
    why="Without the filter no request is picked: everything goes by the fallback policy, without a word.",
    cure="add envoy.filters.http.ext_proc before the router",
)
def ext_proc_missing(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        if not chain.processors:
            yield say(chain.node, "routes to a pool and has no ext_proc filter", "http_filters")
    if view.pools and not view.chains:
        yield say(view.bootstrap, "no HTTP listener routes to a pool", "static_resources.listeners")


@rule(
    "ext-proc-twice",
    ERROR,
    why="Each request is then picked and counted twice, and the second pick wins.",
    cure="keep one; a chain shared by several routes needs no second",
)
def ext_proc_twice(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        for _, extra in chain.processors[1:]:
            first = shown_path(chain.processors[0][1].node.path)
            yield say(extra.node, f"is a second ext_proc filter that sets the destination, after {first}")


@rule(
    "ext-proc-after-router",
    ERROR,
    why="The router ends the chain; Envoy refuses a filter behind it.",
    cure="move it before envoy.filters.http.router",
)
def ext_proc_after_router(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        routers = chain.of_type(ROUTER)
        for index, extension in chain.processors:
            if routers and index > routers[0][0]:
                yield say(extension.node, "stands after the router")


@rule(
    "buffer-missing",
    ERROR,
    why="With request headers skipped, only a buffer filter behind ext_proc holds the headers until the body is read;"
    " else the router chooses a server before the pick is there.",
    cure="add envoy.filters.http.buffer after ext_proc",
)
def buffer_missing(view: View, say: Say) -> Iterator[Finding]:
    for chain in _body_first(view):
        if not chain.of_type(BUFFER):
            yield say(chain.node, "shape A has no buffer filter", "http_filters")


@rule(
    "buffer-before-ext-proc",
    ERROR,
    why="A buffer filter before ext_proc lets the headers go on past ext_proc, so the pick comes too late.",
    cure="move it behind ext_proc",
)
def buffer_before_ext_proc(view: View, say: Say) -> Iterator[Finding]:
    for chain in _body_first(view):
        first = chain.processors[0][0]
        buffers = chain.of_type(BUFFER)
        if buffers and not any(index > first for index, _ in buffers):
            yield say(buffers[0][1].node, "stands before ext_proc")


@rule(
    "buffer-missing-shape-b",
    WARNING,
    why="In shape B, Envoy 1.37 and newer let ext_proc collect more than the connection's limit; the service refuses so"
    " large a message, and the request goes on without a pick.",
    cure="add envoy.filters.http.buffer before ext_proc, with max_request_bytes equal to max_body_bytes",
)
def buffer_missing_shape_b(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        if chain.shape is Shape.HEADERS_THEN_BODY:
            first = chain.processors[0][0]
            if not any(index < first for index, _ in chain.of_type(BUFFER)):
                yield say(chain.node, "shape B has no buffer filter before ext_proc", "http_filters")


def _body_first(view: View) -> list[Chain]:
    return [chain for chain in view.chains if chain.shape is Shape.BODY_FIRST]


@rule(
    "upgrade-not-bypassed",
    WARNING,
    why="An upgraded connection (WebSocket) never ends its request, and ext_proc and buffer wait for that end.",
    cure="give the route a typed_per_filter_config that disables both, as in the shipped envoy.yaml",
)
def upgrade_not_bypassed(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        if chain.shape in (None, Shape.HEADERS_ONLY):
            continue
        waiting = [f for f in chain.filters if f.type == BUFFER or (f.type == EXT_PROC and _reads_body(f.message))]
        general = any(config.upgrade_type for config in chain.message.upgrade_configs)
        bypassed = False
        for route in chain.routes:
            missing = [f.name for f in waiting if any(way.off(f.name, f.node) is None for way in route.ways)]
            bypassed = bypassed or not missing
            if route.message.route.upgrade_configs and missing:
                yield say(route.node, f"allows upgrades and leaves {' and '.join(missing)} on", "route.upgrade_configs")
        if general and chain.routes and not bypassed:
            yield say(chain.node, "allows upgrades, and no route switches ext_proc and buffer off", "upgrade_configs")


def _reads_body(processor: Any) -> bool:
    return shape_of(processor) not in (Shape.HEADERS_ONLY, Shape.NOTHING)


@rule(
    "local-reply-plain",
    WARNING,
    why="Errors that Envoy makes itself (413, 503, 504) are plain text then, which OpenAI clients cannot read.",
    cure="add local_reply_config with JSON mappers, as in the shipped envoy.yaml",
)
def local_reply_plain(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        config = chain.message.local_reply_config
        formats = [] if config is None else [config.body_format, *(m.body_format_override for m in config.mappers)]
        if not any(f is not None and f.json_format is not None for f in formats):
            yield say(chain.node, "has no JSON form for Envoy's own errors", "local_reply_config")
