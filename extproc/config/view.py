"""Which parts of an envoy.yaml do the rules look at? Typed messages, each with its place in the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from extproc.config import per_route, pools, wire
from extproc.config.calls import calls_by_route
from extproc.config.codes import Finding
from extproc.config.per_route import Way
from extproc.config.settings import Settings
from extproc.config.tree import Node

HCM = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
EXT_PROC = "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
BUFFER = "envoy.extensions.filters.http.buffer.v3.Buffer"
ROUTER = "envoy.extensions.filters.http.router.v3.Router"
HEADER_MUTATION = "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
EARLY_MUTATION = "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
GRPC_LOG = "envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
DESTINATION = "x-gateway-destination-endpoint"
PICK_ID = "x-gateway-pick-id"
POOL_METADATA = "x-extproc-pool"  # of the stream to the service
PROFILE_METADATA = "x-extproc-profile"
NAMESPACE = "envoy.lb"


class Shape(Enum):
    """How a request reaches the service; docs/envoy.md explains each."""

    BODY_FIRST = "A"
    HEADERS_THEN_BODY = "B"
    FULL_DUPLEX = "C"
    HEADERS_ONLY = "D"
    NOTHING = "nothing is sent"
    OTHER = "another body mode"


@dataclass(frozen=True, slots=True)
class Extension:
    """A filter, access logger or other named extension, with its message where its type is one of those read here."""

    name: str
    type: str
    node: Node  # the list item
    config: Node  # the body of its typed_config; the item itself where there is none
    message: Any = None


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    node: Node
    message: Any  # envoy.config.cluster.v3.Cluster
    options: Extension | None  # HttpProtocolOptions
    override: Extension | None  # the override_host policy: then it is a pool


@dataclass(frozen=True, slots=True)
class Route:
    """A route that leads to a pool."""

    node: Node
    message: Any  # envoy.config.route.v3.Route
    host_node: Node
    host: Any  # envoy.config.route.v3.VirtualHost
    ways: tuple[Way, ...]  # one for each pool
    calls: tuple[str, ...]  # paths of calls with a prompt that come here

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(way.pool for way in self.ways)


@dataclass(frozen=True, slots=True)
class Chain:
    """One HTTP connection manager that has to do with a pool or with ext_proc."""

    listener_node: Node
    listener: Any  # envoy.config.listener.v3.Listener
    node: Node
    message: Any  # HttpConnectionManager
    filters: tuple[Extension, ...]
    logs: tuple[Extension, ...]
    early: tuple[Extension, ...]
    routes: tuple[Route, ...]

    def of_type(self, kind: str) -> list[tuple[int, Extension]]:
        return [(index, found) for index, found in enumerate(self.filters) if found.type == kind]

    @property
    def processors(self) -> list[tuple[int, Extension]]:
        """The ext_proc filters that are ours. One of another team cannot write our metadata namespace."""
        found = self.of_type(EXT_PROC)
        ours = [pair for pair in found if _may_write(pair[1].message)]
        return ours or found

    @property
    def shape(self) -> Shape | None:
        """None: there is no ext_proc filter."""
        found = self.processors
        return shape_of(found[0][1].message) if found else None


@dataclass(frozen=True, slots=True)
class View:
    bootstrap: Node
    settings: Settings | None  # None: they have errors of their own
    chains: tuple[Chain, ...]
    clusters: dict[str, Cluster]
    findings: tuple[Finding, ...] = field(default=())  # of the reading itself

    @property
    def pools(self) -> list[Cluster]:
        return [cluster for cluster in self.clusters.values() if cluster.override is not None]

    @property
    def services(self) -> list[Cluster]:
        """The clusters that an ext_proc filter calls."""
        names = {service_name(extension.message) for chain in self.chains for _, extension in chain.processors}
        return [self.clusters[name] for name in sorted(names) if name in self.clusters]


def _may_write(processor: Any) -> bool:
    options = processor.metadata_options
    spaces = options.receiving_namespaces if options is not None else None
    return spaces is not None and NAMESPACE in spaces.untyped


def shape_of(processor: Any) -> Shape:
    mode = processor.processing_mode
    headers = mode is None or mode.request_header_mode.name != "SKIP"
    body = "NONE" if mode is None else mode.request_body_mode.name
    if body == "BUFFERED":
        return Shape.HEADERS_THEN_BODY if headers else Shape.BODY_FIRST
    if body == "FULL_DUPLEX_STREAMED":
        return Shape.FULL_DUPLEX
    if body == "NONE":
        return Shape.HEADERS_ONLY if headers else Shape.NOTHING
    return Shape.OTHER


def service_name(message: Any) -> str:
    """The cluster of the `grpc_service` of an ext_proc filter or of an access logger's common_config."""
    grpc = getattr(message, "grpc_service", None)
    envoy = getattr(grpc, "envoy_grpc", None)
    return str(envoy.cluster_name) if envoy is not None else ""


def view_of(bootstrap: Node, settings: Settings | None) -> View:
    """Read everything once. Never raises for what the file holds."""
    reader = _Reader()
    clusters: dict[str, Cluster] = {}
    for node in bootstrap.list_at("static_resources", "clusters"):
        cluster = reader.cluster(node)
        clusters.setdefault(cluster.name, cluster)
    names = frozenset(name for name, cluster in clusters.items() if cluster.override is not None)
    chains = [
        chain
        for listener in bootstrap.list_at("static_resources", "listeners")
        for chain in reader.chains(listener, names)
    ]
    return View(bootstrap, settings, tuple(chains), clusters, tuple(reader.findings))


_READ = {
    EXT_PROC: ("envoy.extensions.filters.http.ext_proc.v3", "ExternalProcessor"),
    BUFFER: ("envoy.extensions.filters.http.buffer.v3", "Buffer"),
    ROUTER: ("envoy.extensions.filters.http.router.v3", "Router"),
    HEADER_MUTATION: ("envoy.extensions.filters.http.header_mutation.v3", "HeaderMutation"),
    EARLY_MUTATION: ("envoy.extensions.http.early_header_mutation.header_mutation.v3", "HeaderMutation"),
    GRPC_LOG: ("envoy.extensions.access_loggers.grpc.v3", "HttpGrpcAccessLogConfig"),
    HTTP_OPTIONS: ("envoy.extensions.upstreams.http.v3", "HttpProtocolOptions"),
    pools.OVERRIDE_HOST: ("envoy.extensions.load_balancing_policies.override_host.v3", "OverrideHost"),
}


class _Reader:
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def _read(self, package: str, name: str, node: Node) -> Any:
        message, findings = wire.read(wire.message_class(package, name), node)
        self.findings += findings
        return message

    def extension(self, node: Node, config: Node | None = None) -> Extension:
        kind, body = wire.unpack(config if config is not None else node.get("typed_config"))
        name = node.get("name")
        known = _READ.get(kind)
        message = self._read(*known, body) if known is not None and body is not None else None
        return Extension((name.text or "") if name else "", kind, node, body if body is not None else node, message)

    def cluster(self, node: Node) -> Cluster:
        message = self._read("envoy.config.cluster.v3", "Cluster", node)
        options = override = None
        protocols = node.get("typed_extension_protocol_options")
        for item in protocols.fields.values() if protocols is not None else ():
            if wire.unpack(item)[0] == HTTP_OPTIONS:
                options = self.extension(item, item)
        for policy in node.list_at("load_balancing_policy", "policies"):
            config = policy.at("typed_extension_config", "typed_config")
            if override is None and wire.unpack(config)[0] == pools.OVERRIDE_HOST:
                override = self.extension(policy, config)
        return Cluster(str(message.name), node, message, options, override)

    def chains(self, listener: Node, pool_names: frozenset[str]) -> Iterator[Chain]:
        message = None
        default = listener.get("default_filter_chain")
        for chain in [*listener.list_at("filter_chains"), *([default] if default is not None else [])]:
            for item in chain.list_at("filters"):
                kind, body = wire.unpack(item.get("typed_config"))
                if kind != HCM or body is None:
                    continue
                if message is None:
                    message = self._read("envoy.config.listener.v3", "Listener", listener)
                found = self._chain(listener, message, body, pool_names)
                if found is not None:
                    yield found

    def _chain(self, listener_node: Node, listener: Any, body: Node, pool_names: frozenset[str]) -> Chain | None:
        package = "envoy.extensions.filters.network.http_connection_manager.v3"
        inline = body.get("route_config")
        message = self._read(package, "HttpConnectionManager", body)
        filters = tuple(self.extension(item) for item in body.list_at("http_filters"))
        routes = tuple(self._routes(inline, pool_names)) if inline is not None else ()
        if not routes and not any(f.type == EXT_PROC for f in filters):
            return None  # nothing of ours: an admin or a health listener
        logs = tuple(self.extension(item) for item in body.list_at("access_log"))
        early = tuple(self.extension(item) for item in body.list_at("early_header_mutation_extensions"))
        return Chain(listener_node, listener, body, message, filters, logs, early, routes)

    def _routes(self, config: Node, pool_names: frozenset[str]) -> Iterator[Route]:
        # The connection manager's own reading has reported what is wrong in here already.
        host_cls = wire.message_class("envoy.config.route.v3", "VirtualHost")
        route_cls = wire.message_class("envoy.config.route.v3", "Route")
        for host_node in config.list_at("virtual_hosts"):
            host = wire.read(host_cls, host_node)[0]
            nodes = host_node.list_at("routes")
            messages = [wire.read(route_cls, node)[0] for node in nodes]
            for node, message, calls in zip(nodes, messages, calls_by_route(messages), strict=True):
                ways = tuple(
                    per_route.way(name, (config, host_node, node, *part), self.findings)
                    for name, part in _targets(message.route, node)
                    if name in pool_names
                )
                if ways:
                    yield Route(node, message, host_node, host, ways, calls)


def _targets(action: Any, node: Node) -> list[tuple[str, tuple[Node, ...]]]:
    """The clusters that a route leads to, each with its part of a weighted cluster."""
    if action is None:
        return []
    if action.weighted_clusters is None:
        return [(str(action.cluster or ""), ())]
    parts = node.list_at("route", "weighted_clusters", "clusters")
    return [(str(c.name), (part,)) for c, part in zip(action.weighted_clusters.clusters, parts, strict=False)]
