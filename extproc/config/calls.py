"""Which calls with a prompt come to which route of a virtual host?

Envoy takes the first route that matches. A route with conditions beyond the path (a header, a query, a share of the
requests) is one that somebody made for those alone: it takes no call from the routes behind it, and is asked nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

CALLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")
_CONDITIONS = (
    "query_parameters",
    "cookies",
    "grpc",
    "tls_context",
    "dynamic_metadata",
    "filter_state",
    "runtime_fraction",
    "path_match_policy",
    "connect_matcher",
)


def calls_by_route(routes: Sequence[Any]) -> list[tuple[str, ...]]:
    """For each `envoy.config.route.v3.Route` of a virtual host, in order: those of `CALLS` that come to it by POST."""
    taken: list[list[str]] = [[] for _ in routes]
    for call in CALLS:
        for index, route in enumerate(routes):
            path = _as_sent(route, call)
            if route.match is not None and _takes(route.match, path):
                taken[index].append(path)
                if path == call:
                    break
    return [tuple(paths) for paths in taken]


def _as_sent(route: Any, call: str) -> str:
    """What a client sends so that a route with a `prefix_rewrite` passes the call on."""
    match, action = route.match, route.route
    prefix = (match.prefix or match.path_separated_prefix) if match is not None else None
    rewrite = action.prefix_rewrite if action is not None else ""
    if prefix is None or not rewrite or not call.startswith(rewrite):
        return call
    return str(prefix) + call[len(rewrite) :]


def _takes(match: Any, path: str) -> bool:
    """Whether a match takes every POST to the path; false where it cannot be told."""
    given = [getattr(match, name) for name in _CONDITIONS]
    if any(value is not None and value != [] for value in given) or not all(
        _is_post(header) for header in match.headers
    ):
        return False
    folded = (lambda text: text) if match.case_sensitive is not False else str.lower
    if match.safe_regex is not None:
        try:
            return re.fullmatch(match.safe_regex.regex, path) is not None
        except re.error:  # RE2 knows what Python does not
            return False
    if match.path is not None:
        return bool(folded(match.path) == folded(path))
    if match.path_separated_prefix is not None:
        return f"{folded(path)}/".startswith(f"{folded(match.path_separated_prefix)}/")
    return match.prefix is not None and folded(path).startswith(folded(match.prefix))


def _is_post(header: Any) -> bool:
    exact = header.exact_match or (header.string_match.exact if header.string_match is not None else None)
    return header.name == ":method" and exact == "POST" and not header.invert_match
