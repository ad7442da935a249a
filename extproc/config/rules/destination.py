"""Does Envoy use the service's pick, and nobody else's?

`override_host` reads the destination from metadata, a header, or both, in order. Metadata can only come from a filter
that may write the namespace. A header can come from the client, so a header source is safe only if the client's copy is
removed first: by `early_header_mutation_extensions` or by a header_mutation filter. `request_headers_to_remove` of a
route does not help. It is applied by the router, where the client's header and the pick's look the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from extproc.config.codes import Finding
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.view import DESTINATION, HEADER_MUTATION, NAMESPACE, Chain, Cluster, Extension, Shape, View


def _sources(cluster: Cluster) -> list[Any]:
    return list(cluster.override.message.override_host_sources) if cluster.override is not None else []


def _is_ours(metadata: Any) -> bool:
    return metadata is not None and metadata.key == NAMESPACE and [p.key for p in metadata.path] == [DESTINATION]


def _chains_to(view: View, cluster: Cluster) -> list[Chain]:
    """The chains with a route to a pool; routes that come by RDS are not in the file and may lead anywhere."""
    return [c for c in view.chains if not c.routes or any(cluster.name in route.pools for route in c.routes)]


@rule(
    "destination-key",
    ERROR,
    why="A source with another key or path never holds a pick, so every request goes by the fallback policy.",
    cure=f"use {{key: {NAMESPACE}, path: [{{key: {DESTINATION}}}]}}",
)
def destination_key(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        assert pool.override is not None
        sources = _sources(pool)
        if not sources:
            yield say(pool.override.config, "names no source for the pick", "override_host_sources")
        nodes = pool.override.config.list_at("override_host_sources")
        for source, node in zip(sources, nodes, strict=False):
            if source.metadata is not None and not _is_ours(source.metadata):
                path = "/".join(p.key for p in source.metadata.path)
                yield say(node, f"the pick is not at {source.metadata.key}:{path}", "metadata")
            if source.header and source.header.lower() != DESTINATION:
                yield say(node, f'the pick is not in header "{source.header}"', "header", f"use {DESTINATION}")


@rule(
    "destination-metadata-missing",
    ERROR,
    why="In shape A the pick comes as metadata only; in the others metadata is the source no client can write.",
    cure=f"add the source metadata {{key: {NAMESPACE}, path: [{{key: {DESTINATION}}}]}}",
)
def destination_metadata_missing(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        assert pool.override is not None
        sources = _sources(pool)
        if sources and not any(source.metadata is not None for source in sources):
            yield say(pool.override.config, "has only a header as its source", "override_host_sources")


@rule(
    "destination-header-open",
    ERROR,
    why="A client that sends the header chooses the server wherever the service makes no pick: GETs, timeouts, the"
    " service being down.",
    cure=f"remove {DESTINATION} in early_header_mutation_extensions, or read it from metadata only"
    " (request_headers_to_remove of a route cannot tell the client's header from the pick's)",
)
def destination_header_open(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        assert pool.override is not None
        nodes = pool.override.config.list_at("override_host_sources")
        for source, node in zip(_sources(pool), nodes, strict=False):
            if not source.header:
                continue
            for chain in _chains_to(view, pool):
                if not _sanitised(chain):
                    yield say(node, f"the client's own header is not removed in {_called(chain)}", "header")


@rule(
    "destination-header-passes",
    WARNING,
    why="The client's header has no effect on the pick, but the server sees it, and logs believe it.",
    cure=f"remove {DESTINATION} in early_header_mutation_extensions",
)
def destination_header_passes(view: View, say: Say) -> Iterator[Finding]:
    by_header = {pool.name for pool in view.pools if any(source.header for source in _sources(pool))}
    for chain in view.chains:
        open_already = any(name in by_header for route in chain.routes for name in route.pools)
        if chain.processors and not open_already and not _sanitised(chain):
            field = "early_header_mutation_extensions"
            yield say(chain.node, f"the client's own {DESTINATION} is not removed", field)


@rule(
    "destination-append-first",
    ERROR,
    why="For a request without a pick nothing is written, so the client's own header stays and looks like a pick.",
    cure=f"put `- remove: {DESTINATION}` before it",
)
def destination_append_first(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        removed = _removed_early(chain)
        for extension in chain.filters:
            if extension.type != HEADER_MUTATION or extension.message is None:
                continue
            mutations = extension.message.mutations
            for mutation in mutations.request_mutations if mutations is not None else ():
                removed = removed or _removes(mutation)
                header = mutation.append.header if mutation.append is not None else None
                if header is not None and header.key.lower() == DESTINATION and not removed:
                    yield say(extension.config, f"writes {DESTINATION} without removing it first", "mutations")


def _removes(mutation: Any) -> bool:
    return str(mutation.remove or "").lower() == DESTINATION


def _removed_early(chain: Chain) -> bool:
    return any(_removes(m) for e in chain.early if e.message is not None for m in e.message.mutations)


def _sanitised(chain: Chain) -> bool:
    """The client's header is gone when the router chooses; what is behind ext_proc runs before the router too."""
    if _removed_early(chain):
        return True
    for extension in chain.filters:
        if extension.type == HEADER_MUTATION and extension.message is not None:
            mutations = extension.message.mutations
            if mutations is not None and any(_removes(m) for m in mutations.request_mutations):
                return True
    return False


def _called(chain: Chain) -> str:
    name = chain.listener_node.get("name")
    return f'listener "{name.text}"' if name is not None and name.text else chain.listener_node.path


_WRITERS = (Shape.HEADERS_THEN_BODY, Shape.FULL_DUPLEX, Shape.HEADERS_ONLY)  # in shape A the service writes no header


def _forbidders(view: View, *, is_error: bool) -> Iterator[tuple[Extension, str]]:
    """The ext_proc filters whose rules forbid the service's header, and the field that does."""
    for chain in view.chains:
        for _, extension in chain.processors:
            rules = extension.message.mutation_rules
            if rules is None or chain.shape not in _WRITERS or bool(rules.disallow_is_error) is not is_error:
                continue
            if _matches(rules.disallow_expression):
                yield extension, "disallow_expression"
            elif rules.disallow_all and not _matches(rules.allow_expression):
                yield extension, "disallow_all"


def _matches(expression: Any) -> bool:
    if expression is None:
        return False
    try:
        return re.fullmatch(expression.regex, DESTINATION) is not None
    except re.error:  # RE2 knows what Python does not
        return False


_CURES = {
    "disallow_all": f"allow {DESTINATION} in allow_expression, or remove mutation_rules",
    "disallow_expression": f"make it an expression that {DESTINATION} does not match",
}


@rule(
    "mutation-refused",
    ERROR,
    why="In shapes B, C and D the service writes the pick as a header too; with disallow_is_error Envoy answers 500"
    " to each request for it.",
    cure=_CURES["disallow_all"],
)
def mutation_refused(view: View, say: Say) -> Iterator[Finding]:
    for extension, field in _forbidders(view, is_error=True):
        yield say(
            extension.config, f"forbids {DESTINATION}, with disallow_is_error", f"mutation_rules.{field}", _CURES[field]
        )


@rule(
    "mutation-ignored",
    WARNING,
    why="The pick still counts, as metadata; but filters, servers and logs that read the header do not see it, and the"
    " client's own is not overwritten.",
    cure=_CURES["disallow_all"],
)
def mutation_ignored(view: View, say: Say) -> Iterator[Finding]:
    for extension, field in _forbidders(view, is_error=False):
        yield say(extension.config, f"forbids {DESTINATION}", f"mutation_rules.{field}", _CURES[field])
