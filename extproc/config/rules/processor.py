"""Is the ext_proc filter set so that the service can pick and learns of the end?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from extproc.config.codes import Finding
from extproc.config.per_route import PerRoute
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.view import NAMESPACE, Chain, Extension, Shape, View, shape_of

SHORT_S = 0.5


def _filters(view: View) -> Iterator[tuple[Extension, Shape]]:
    for chain in view.chains:
        for _, extension in chain.processors:
            yield extension, shape_of(extension.message)


def _on_routes(view: View) -> Iterator[PerRoute]:
    """What routes to a pool, and what they stand in, override of the filter; each place once."""
    found = {
        entry.node.path: entry
        for chain in view.chains
        for _, extension in chain.processors[:1]
        for route in chain.routes
        for way in route.ways
        for entry in way.of(extension.name)
        if entry.overrides is not None and not entry.off
    }
    yield from found.values()


def _mode(extension: Extension) -> Any:
    """The processing mode, None when the filter sets none."""
    return extension.message.processing_mode


@rule(
    "untyped-namespace-missing",
    ERROR,
    why="Envoy drops the pick silently unless the filter may write the metadata namespace envoy.lb.",
    cure="set metadata_options.receiving_namespaces.untyped: [envoy.lb]",
)
def untyped_namespace_missing(view: View, say: Say) -> Iterator[Finding]:
    field = "metadata_options.receiving_namespaces.untyped"
    for extension, _ in _filters(view):
        options = extension.message.metadata_options
        spaces = options.receiving_namespaces if options is not None else None
        if spaces is None or NAMESPACE not in spaces.untyped:
            yield say(extension.config, f"lacks {NAMESPACE}", field)
    for entry in _on_routes(view):
        options = entry.overrides.metadata_options
        spaces = options.receiving_namespaces if options is not None else None
        if spaces is not None and NAMESPACE not in spaces.untyped:
            yield say(entry.body, f"lacks {NAMESPACE}, and replaces the filter's", f"overrides.{field}")


@rule(
    "message-timeout-default",
    ERROR,
    why="Unset it is 200 ms, which a large prompt on a busy machine exceeds; the request then fails with 504 or is"
    " not picked.",
    cure="set message_timeout: 1s",
)
def message_timeout_default(view: View, say: Say) -> Iterator[Finding]:
    for extension, _ in _filters(view):
        if extension.message.message_timeout is None:
            yield say(extension.config, "is not set", "message_timeout")


@rule(
    "message-timeout-short",
    WARNING,
    why="Reading and hashing a body of many megabytes, behind others of its kind, takes tenths of a second.",
    cure="set message_timeout: 1s",
)
def message_timeout_short(view: View, say: Say) -> Iterator[Finding]:
    for extension, _ in _filters(view):
        timeout = extension.message.message_timeout
        if timeout is not None and timeout.total_seconds() < SHORT_S:
            yield say(extension.config, f"{timeout.total_seconds():g} s is short for large bodies", "message_timeout")


@rule(
    "failure-mode-closed",
    WARNING,
    why="With the service down, every request fails; with true it flows by the fallback policy.",
    cure="set failure_mode_allow: true, unless unpicked requests must not pass",
)
def failure_mode_closed(view: View, say: Say) -> Iterator[Finding]:
    for extension, _ in _filters(view):
        if not extension.message.failure_mode_allow:
            yield say(extension.config, "is false", "failure_mode_allow")


@rule(
    "observability-mode",
    ERROR,
    why="In this mode Envoy sends copies and ignores every answer, so no pick is used.",
    cure="remove it",
)
def observability_mode(view: View, say: Say) -> Iterator[Finding]:
    for extension, _ in _filters(view):
        if extension.message.observability_mode:
            yield say(extension.config, "is on", "observability_mode")


@rule(
    "immediate-response-off",
    WARNING,
    why="Envoy then ignores the service's own answers (no server, unknown model, too busy, too large) and routes the"
    " request by the fallback policy.",
    cure="remove it",
)
def immediate_response_off(view: View, say: Say) -> Iterator[Finding]:
    for extension, _ in _filters(view):
        if extension.message.disable_immediate_response:
            yield say(extension.config, "is on", "disable_immediate_response")


@rule(
    "nothing-is-sent",
    ERROR,
    why="With request headers skipped and no body the service never hears of a request.",
    cure="set request_body_mode: BUFFERED",
)
def nothing_is_sent(view: View, say: Say) -> Iterator[Finding]:
    for extension, shape in _filters(view):
        if shape is Shape.NOTHING:
            yield say(extension.config, "sends neither headers nor body", "processing_mode.request_body_mode")


@rule(
    "body-mode-partial",
    ERROR,
    why="STREAMED and BUFFERED_PARTIAL do not hand over the whole prompt before the headers go on.",
    cure="set request_body_mode: BUFFERED or FULL_DUPLEX_STREAMED",
)
def body_mode_partial(view: View, say: Say) -> Iterator[Finding]:
    for extension, shape in _filters(view):
        if shape is Shape.OTHER:
            name = _mode(extension).request_body_mode.name
            yield say(extension.config, f"{name} gives no whole prompt", "processing_mode.request_body_mode")
    for entry in _on_routes(view):
        mode = entry.overrides.processing_mode
        if mode is not None and shape_of(entry.overrides) is Shape.OTHER:
            message = f"{mode.request_body_mode.name} gives no whole prompt"
            yield say(entry.body, message, "overrides.processing_mode.request_body_mode")


@rule(
    "response-trailers-not-sent",
    WARNING,
    why="Envoy 1.37 and 1.38 then close the stream after the request phase, so a request counts as ended before its"
    " response is.",
    cure="set response_trailer_mode: SEND",
)
def response_trailers_not_sent(view: View, say: Say) -> Iterator[Finding]:
    for extension, shape in _filters(view):
        mode = _mode(extension)
        if shape in (Shape.BODY_FIRST, Shape.HEADERS_THEN_BODY) and mode.response_trailer_mode.name != "SEND":
            yield say(extension.config, "is not SEND", "processing_mode.response_trailer_mode")


@rule(
    "response-body-sent",
    ERROR,
    why="Each part of a streamed response would make a round trip to the service, or be held until it is complete.",
    cure="set response_body_mode: NONE",
)
def response_body_sent(view: View, say: Say) -> Iterator[Finding]:
    for extension, shape in _filters(view):
        if shape in (Shape.BODY_FIRST, Shape.HEADERS_THEN_BODY, Shape.HEADERS_ONLY):
            mode = _mode(extension)
            name = "NONE" if mode is None else mode.response_body_mode.name
            if name != "NONE":
                yield say(extension.config, f"is {name}", "processing_mode.response_body_mode")


@rule(
    "response-headers-sent",
    WARNING,
    why="It adds a message to each request and holds the first byte back; the service learns the same from the log.",
    cure="set response_header_mode: SKIP",
)
def response_headers_sent(view: View, say: Say) -> Iterator[Finding]:
    for extension, shape in _filters(view):
        mode = _mode(extension)
        if shape in (Shape.BODY_FIRST, Shape.HEADERS_THEN_BODY) and mode.response_header_mode.name != "SKIP":
            yield say(extension.config, "is not SKIP", "processing_mode.response_header_mode")


@rule(
    "request-trailers-not-sent",
    ERROR,
    why="A full duplex request that ends with trailers would never end for the service; Envoy refuses the file.",
    cure="set request_trailer_mode: SEND",
)
def request_trailers_not_sent(view: View, say: Say) -> Iterator[Finding]:
    for extension, shape in _filters(view):
        if shape is Shape.FULL_DUPLEX and _mode(extension).request_trailer_mode.name != "SEND":
            yield say(extension.config, "is not SEND", "processing_mode.request_trailer_mode")


@rule(
    "request-path-not-sent",
    WARNING,
    why="Without the headers message, the path tells chat from completions only if it comes as an attribute.",
    cure="add request.path to request_attributes",
)
def request_path_not_sent(view: View, say: Say) -> Iterator[Finding]:
    for extension, shape in _filters(view):
        if shape is Shape.BODY_FIRST and "request.path" not in extension.message.request_attributes:
            yield say(extension.config, "lacks request.path", "request_attributes")


@rule(
    "header-not-sent",
    WARNING,
    why="Without the headers message, the service sees only the headers that come as attributes; a setting that names"
    " another has no effect.",
    cure="add the header to request_attributes",
)
def header_not_sent(view: View, say: Say) -> Iterator[Finding]:
    """Only of headers that the operator has named: the default session header is for clients that happen to send it."""
    named = _named_headers(view)
    for chain in view.chains:
        wanted = named | _trace_header(view, chain)
        for _, extension in chain.processors:
            if shape_of(extension.message) is not Shape.BODY_FIRST:
                continue
            attributes = extension.message.request_attributes
            sent = {match[1].lower() for name in attributes if (match := _HEADER.fullmatch(name))}
            for header, setting in wanted.items():
                if header not in sent:
                    attribute = f"request.headers['{header}']"
                    yield say(
                        extension.config,
                        f"lacks {attribute}, which {setting} needs",
                        "request_attributes",
                        f'add "{attribute}" to request_attributes',
                    )


_HEADER = re.compile(r"request\.headers\[['\"]([^'\"]*)['\"]\]")
_HEADER_SETTINGS = ("session_headers", "profile_header", "priority_header")


def _named_headers(view: View) -> dict[str, str]:
    """The headers that settings written in the file name (lower case), and the first setting that does."""
    found: dict[str, str] = {}
    own = view.bootstrap.at("node", "metadata", "extproc")
    if view.settings is None or own is None:
        return found
    pools = own.get("pools")
    places = [("scheduling", own.get("scheduling"))]
    for name, pool in pools.fields.items() if pools is not None else ():
        places.append((f"pools.{name}.scheduling", pool.get("scheduling")))
    for path, section in places:
        for setting in _HEADER_SETTINGS:
            node = section.get(setting) if section is not None else None
            for text in [item.text for item in node.items] or [node.text] if node is not None else ():
                if text:
                    found.setdefault(text.lower(), f"{path}.{setting}")
    return found


def _trace_header(view: View, chain: Chain) -> dict[str, str]:
    """The header by which a client's trace goes on, where Envoy, not tracing itself, tells nothing of it."""
    traced = view.settings is not None and view.settings.tracing is not None and chain.message.tracing is None
    return {"traceparent": "tracing"} if traced else {}
