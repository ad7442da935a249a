"""What does `typed_per_filter_config` make of a filter on the way to a pool?

It may stand on the route configuration, the virtual host, the route and the part of a weighted cluster. The most
specific one that names the filter says whether it is off; what else they set for ext_proc is merged, a processing mode
as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.config import wire
from extproc.config.codes import Finding
from extproc.config.tree import Node

FILTER_CONFIG = "envoy.config.route.v3.FilterConfig"
EXT_PROC = "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
BUFFER = "envoy.extensions.filters.http.buffer.v3.BufferPerRoute"


@dataclass(frozen=True, slots=True)
class PerRoute:
    """What one `typed_per_filter_config` says of one filter."""

    node: Node  # its entry there
    body: Node  # of the filter's own message; the entry where there is none
    off: bool
    overrides: Any = None  # ext_proc's ExtProcOverrides


@dataclass(frozen=True, slots=True)
class Way:
    """One pool that a route leads to, and what is said of the filters on the way, the least specific first."""

    pool: str
    entries: Mapping[str, Sequence[PerRoute]]  # by the name of the filter

    def of(self, name: str) -> Sequence[PerRoute]:
        return self.entries.get(name, ())

    def off(self, name: str, item: Node) -> Node | None:
        """Where the filter of a name, which stands at `item` of `http_filters`, is switched off; None: it is on."""
        entries = self.of(name)
        if entries:
            return entries[-1].node if entries[-1].off else None
        disabled = item.get("disabled")  # off unless a route says more of it
        return disabled if disabled is not None and disabled.value is True else None

    def mode(self, name: str) -> PerRoute | None:
        """The entry whose processing mode is in force; None: the filter's own is."""
        found = [entry for entry in self.of(name) if entry.overrides is not None]
        return next((entry for entry in reversed(found) if entry.overrides.processing_mode is not None), None)

    def metadata(self, name: str, processor: Any, config: Node) -> dict[str, tuple[str, Node]]:
        """The gRPC metadata of the streams, by lower-case key, each value with its place; `processor` is ext_proc's
        own message, and `config` its place."""
        found: dict[str, tuple[str, Node]] = {}
        services = [(processor.grpc_service, config.get("grpc_service"))]
        services += [
            (entry.overrides.grpc_service, entry.body.at("overrides", "grpc_service"))
            for entry in self.of(name)
            if entry.overrides is not None and entry.overrides.grpc_service is not None
        ]
        service, place = services[-1]
        if service is not None and place is not None:
            found.update(_pairs(service.initial_metadata, place.list_at("initial_metadata")))
        for entry in self.of(name):
            if entry.overrides is not None:
                places = entry.body.list_at("overrides", "grpc_initial_metadata")
                found.update(_pairs(entry.overrides.grpc_initial_metadata, places))
        return found


def _pairs(values: Sequence[Any], places: Sequence[Node]) -> Iterator[tuple[str, tuple[str, Node]]]:
    for value, place in zip(values, places, strict=False):
        yield str(value.key).lower(), (str(value.value or bytes(value.raw_value).decode("utf-8", "replace")), place)


def way(pool: str, places: Sequence[Node], findings: list[Finding]) -> Way:
    """Read the way to a pool through `places`, the least specific first; what cannot be read goes to `findings`."""
    entries: dict[str, list[PerRoute]] = {}
    for place in places:
        configs = place.get("typed_per_filter_config")
        for name, node in configs.fields.items() if configs is not None else ():
            entries.setdefault(name, []).append(_entry(node, findings))
    return Way(pool, entries)


def _entry(node: Node, findings: list[Finding]) -> PerRoute:
    kind, body = wire.unpack(node)
    off = False
    if kind == FILTER_CONFIG and body is not None:
        off = _is_true(body.get("disabled"))
        kind, body = wire.unpack(body.get("config"))
    if kind not in (EXT_PROC, BUFFER) or body is None:
        return PerRoute(node, body or node, off)
    package, _, name = kind.rpartition(".")
    message, faults = wire.read(wire.message_class(package, name), body)
    findings += faults
    return PerRoute(node, body, off or message.disabled is True, message.overrides if kind == EXT_PROC else None)


def _is_true(node: Node | None) -> bool:
    return node is not None and node.value is True
