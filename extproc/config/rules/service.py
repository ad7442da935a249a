"""Can Envoy reach the service, and hold a stream for every request?"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.config import pools, wire
from extproc.config.codes import Finding
from extproc.config.problems import suggest
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.settings import WORKER_PORTS_APART
from extproc.config.view import Cluster, View, service_name
from extproc.endpoint import split_host_port

ENOUGH_STREAMS = 10_000
UPSTREAM_TLS = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"


@rule(
    "ext-proc-cluster-undefined",
    ERROR,
    why="Envoy starts without it, and then no request is ever picked.",
    cure="define the cluster",
)
def ext_proc_cluster_undefined(view: View, say: Say) -> Iterator[Finding]:
    if view.bootstrap.at("dynamic_resources", "cds_config") is not None:
        return  # the cluster may come from there
    for chain in view.chains:
        for _, extension in chain.processors:
            name = service_name(extension.message)
            if name and name not in view.clusters:
                field = "grpc_service.envoy_grpc.cluster_name"
                yield say(extension.config, f'there is no cluster "{name}"', field, suggest(name, view.clusters))


@rule(
    "ext-proc-not-http2",
    ERROR,
    why="gRPC needs HTTP/2; over HTTP/1.1 each call fails.",
    cure="set explicit_http_config.http2_protocol_options in its HttpProtocolOptions",
)
def ext_proc_not_http2(view: View, say: Say) -> Iterator[Finding]:
    for cluster in view.services:
        if not _is_http2(cluster):
            yield say(cluster.node, "does not speak HTTP/2", "typed_extension_protocol_options")


def _is_http2(cluster: Cluster) -> bool:
    if cluster.message.http2_protocol_options is not None:
        return True
    config = cluster.options.message.explicit_http_config if cluster.options is not None else None
    return config is not None and config.http2_protocol_options is not None


@rule(
    "ext-proc-tls-no-alpn",
    ERROR,
    why="Over TLS the service speaks only HTTP/2 that was negotiated; without it no call and no health check succeeds.",
    cure='set common_tls_context.alpn_protocols: ["h2"]',
)
def ext_proc_tls_no_alpn(view: View, say: Say) -> Iterator[Finding]:
    for cluster in view.services:
        kind, context = wire.unpack(cluster.node.at("transport_socket", "typed_config"))
        if kind == UPSTREAM_TLS and context is not None:
            offered = [protocol.text for protocol in context.list_at("common_tls_context", "alpn_protocols")]
            if "h2" not in offered:
                yield say(cluster.node, "uses TLS without offering HTTP/2", "transport_socket")


@rule(
    "ext-proc-no-health-check",
    WARNING,
    why="Without it a stopped service costs each request a connect attempt or the message timeout.",
    cure="add health_checks with grpc_health_check",
)
def ext_proc_no_health_check(view: View, say: Say) -> Iterator[Finding]:
    for cluster in view.services:
        if not any(check.grpc_health_check is not None for check in cluster.message.health_checks):
            yield say(cluster.node, "has no gRPC health check", "health_checks")


@rule(
    "ext-proc-streams-low",
    WARNING,
    why="A stream is held as long as its request; a low limit per connection makes Envoy open more and more.",
    cure="set http2_protocol_options.max_concurrent_streams: 100000",
)
def ext_proc_streams_low(view: View, say: Say) -> Iterator[Finding]:
    for cluster in view.services:
        options = cluster.message.http2_protocol_options
        config = cluster.options.message.explicit_http_config if cluster.options is not None else None
        options = config.http2_protocol_options if config is not None else options
        if options is None:
            continue  # another rule's
        limit = options.max_concurrent_streams
        if limit is None or limit < ENOUGH_STREAMS:
            node = cluster.options.config if cluster.options is not None else cluster.node
            field = "explicit_http_config.http2_protocol_options.max_concurrent_streams"
            yield say(node, "is not set" if limit is None else f"{limit} is low", field)


@rule(
    "ext-proc-address",
    WARNING,
    why="Envoy calls a port on which the service, by its settings, does not listen.",
    cure="make the cluster's port and node.metadata.extproc.grpc.listen equal",
)
def ext_proc_address(view: View, say: Say) -> Iterator[Finding]:
    if view.settings is None or view.settings.workers > 1:
        return  # of several, another rule's
    listen = view.settings.grpc.listen
    port = split_host_port(listen, lowest_port=0)[1]
    for cluster in view.services:
        ports = _ports(cluster)
        if ports and port and port not in ports:  # 0: any free port, as tests have it
            called = ", ".join(str(p) for p in sorted(ports))
            yield say(cluster.node, f"calls port {called}, and the service listens on {listen}", "load_assignment")


@rule(
    "ext-proc-workers",
    WARNING,
    why="Each worker is an endpoint of the cluster: one that is not listed gets no requests, and a port without a"
    " worker refuses them.",
    cure="list one endpoint for each worker (docs/workers.md), or change workers",
)
def ext_proc_workers(view: View, say: Say) -> Iterator[Finding]:
    if view.settings is None:
        return
    listening = set(view.settings.worker_ports)
    one_more = min(listening) + WORKER_PORTS_APART
    for cluster in view.services:
        called = _ports(cluster)
        # Of one process another rule tells. What is listed beside it may be another service, unless it looks like a
        # worker that there is not.
        wrong = called != listening if len(listening) > 1 else listening < called and one_more in called
        if called and 0 not in listening and wrong:
            there = "1 process, on port" if len(listening) == 1 else f"{len(listening)} workers, on ports"
            message = f"calls port {_listed(called)}, and there are {there} {_listed(listening)}"
            yield say(cluster.node, message.replace("are 1", "is 1"), "load_assignment")


def _listed(ports: set[int]) -> str:
    return ", ".join(str(port) for port in sorted(ports))


def _ports(cluster: Cluster) -> set[int]:
    assignment = cluster.message.load_assignment
    addresses = [
        item.endpoint.address.socket_address
        for locality in (assignment.endpoints if assignment is not None else ())
        for item in locality.lb_endpoints
        if item.endpoint is not None and item.endpoint.address is not None
    ]
    return {int(address.port_value) for address in addresses if address is not None and address.port_value}


@rule(
    "ext-proc-tls",
    ERROR,
    why="Plaintext against TLS looks exactly like a dead service: gRPC status 14.",
    cure="set grpc.tls and the cluster's transport_socket, or neither",
)
def ext_proc_tls(view: View, say: Say) -> Iterator[Finding]:
    if view.settings is None:
        return
    for cluster in view.services:
        envoy = (
            cluster.message.transport_socket is not None and "raw_buffer" not in cluster.message.transport_socket.name
        )
        ours = view.settings.grpc.tls is not None
        if envoy != ours:
            message = "uses TLS and the service does not" if envoy else "does not use TLS and the service does"
            yield say(cluster.node, message, "transport_socket")


@rule(
    "node-identity",
    WARNING,
    why="The access log tells Envoys apart by node.id and node.cluster, and discovery (EDS) needs both.",
    cure="set both under node, or start Envoy with --service-node and --service-cluster",
)
def node_identity(view: View, say: Say) -> Iterator[Finding]:
    for name in ("id", "cluster"):
        found = view.bootstrap.at("node", name)
        if found is None or found.value in (None, ""):
            eds = any(pools.is_eds(cluster.node) for cluster in view.clusters.values())
            more = "; with EDS Envoy refuses the file unless its command line says it" if eds else ""
            yield say(view.bootstrap, f"is not set{more}", f"node.{name}")
