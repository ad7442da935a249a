"""Which pools does an envoy.yaml describe, in the shape of our own settings?

Every cluster with the `override_host` load balancing policy is a pool. Its endpoints become the endpoints of a
settings tree whose nodes keep their places in the envoy.yaml, so that a mistake is reported where it was made. A
cluster of type EDS asks the service for its endpoints, so the settings must say where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.config import codes, wire
from extproc.config.codes import Finding
from extproc.config.problems import suggest
from extproc.config.tree import Node
from extproc.endpoint import format_host

DNS_CLUSTER = "envoy.extensions.clusters.dns.v3.DnsCluster"
OVERRIDE_HOST = "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost"
METADATA = "extproc"  # the namespace in an endpoint's filter_metadata, and the key in node.metadata
EDS = "EDS"
_DNS_TYPES = ("STRICT_DNS", "LOGICAL_DNS")
STATIC_TYPES = ("STATIC", *_DNS_TYPES)
_OUT_OF_SERVICE = ("UNHEALTHY", "DRAINING", "TIMEOUT")


def override_host(cluster: Node) -> Node | None:
    """The body of the cluster's override_host policy."""
    for policy in cluster.list_at("load_balancing_policy", "policies"):
        kind, body = wire.unpack(policy.at("typed_extension_config", "typed_config"))
        if kind == OVERRIDE_HOST:
            return body
    return None


@dataclass(frozen=True, slots=True)
class Dns:
    """How Envoy resolves the names of a cluster."""

    node: Node  # that says so
    family: str  # of `PoolSettings.dns_family`
    family_node: Node
    one_address: bool  # of a name's addresses only one is used at a time
    cure: str  # of that


def dns_of(cluster: Node) -> Dns | None:
    """None: its addresses do not come from DNS."""
    kind = cluster.get("type")
    place, cure = cluster, "set type: STRICT_DNS"
    if kind is not None and kind.text in _DNS_TYPES:
        one_address = kind.text == "LOGICAL_DNS"
    else:
        found, body = wire.unpack(cluster.at("cluster_type", "typed_config"))
        if found != DNS_CLUSTER or body is None:
            return None
        single = body.get("all_addresses_in_single_endpoint")
        kind, place, cure = single or body, body, "remove it"
        one_address = single is not None and single.value is True
    family = place.get("dns_lookup_family")
    text = family.text.lower() if family is not None and family.text else "auto"
    return Dns(kind, "auto" if text == "unspecified" else text, family or kind, one_address, cure)


def settings_tree(bootstrap: Node) -> tuple[Node, list[Finding]]:
    """`node.metadata.extproc`, with the pools' endpoints filled in from the clusters."""
    findings: list[Finding] = []
    own = bootstrap.at("node", "metadata", METADATA) or Node(f"node.metadata.{METADATA}", _line(bootstrap), {})
    if own.value is None:
        own = Node(own.path, own.line, {})
    if not isinstance(own.value, dict):
        return own, findings
    overrides = own.get("pools") or Node(f"{own.path}.pools", own.line, {})
    if overrides.value is not None and not isinstance(overrides.value, dict):
        return own, findings
    pools: dict[str, Node] = {}
    for cluster in bootstrap.list_at("static_resources", "clusters"):
        name = cluster.get("name")
        if name is None or not name.text or override_host(cluster) is None:
            continue
        place = Node(f"{overrides.path}.{name.text}", cluster.line, None)
        pools[name.text] = _pool(cluster, overrides.fields.get(name.text), place, findings)
    for name_, node in overrides.fields.items():
        if pools and name_ not in pools:
            message = f'no cluster "{name_}" with the override_host policy'
            findings.append(Finding(codes.POOL_UNKNOWN, node, message, cure=suggest(name_, pools)))
    if not pools:
        clusters = bootstrap.at("static_resources", "clusters")
        findings.append(Finding(codes.POOL_MISSING, clusters or bootstrap, "no cluster has the override_host policy"))
    tree = dict(own.value)
    tree["pools"] = Node(overrides.path, overrides.line, dict(pools))
    return Node(own.path, own.line, tree), findings


def _line(node: Node) -> int:
    found = node.at("node", "metadata") or node.get("node") or node
    return found.line


def is_eds(cluster: Node) -> bool:
    """Whether Envoy asks for its endpoints."""
    kind = cluster.get("type")
    return kind is not None and kind.text == EDS


def service_name(cluster: Node) -> Node | None:
    """The name under which Envoy does; None: its own."""
    found = cluster.at("eds_cluster_config", "service_name")
    return found if found is not None and found.text else None


def _pool(cluster: Node, override: Node | None, missing: Node, findings: list[Finding]) -> Node:
    """`missing`: where the overrides would stand, if there are none."""
    kind = cluster.get("type")
    discovered = kind is not None and kind.text not in (None, *STATIC_TYPES)
    if override is not None and not isinstance(override.value, dict | None):
        return override
    out: dict[str, Node] = dict(override.fields) if override is not None else {}
    listed = out.get("endpoints")
    if listed is not None and not discovered:
        findings.append(
            Finding(
                codes.POOL_UNKNOWN,
                listed,
                "in envoy.yaml the endpoints come from the cluster",
                cure=f"move them to {cluster.path}.load_assignment",
            )
        )
    discovery = None if discovered else out.pop("discovery", None)
    if discovery is not None:
        findings.append(
            Finding(
                codes.POOL_UNKNOWN,
                discovery,
                "Envoy has a list of its own for this cluster",
                cure="give the cluster type: EDS, as in the shipped envoy-eds.yaml, or remove this",
            )
        )
    if not discovered or (listed is None and not is_eds(cluster)):
        out["endpoints"] = _endpoints(cluster, findings)
    asked = service_name(cluster) if is_eds(cluster) else None
    if asked is not None:
        out["service_name"] = asked
    dns = dns_of(cluster)
    if dns is not None:
        out.setdefault("dns_family", Node(dns.family_node.path, dns.family_node.line, dns.family))
    place = override if override is not None else missing if is_eds(cluster) else cluster
    return Node(place.path, place.line, out)


def _endpoints(cluster: Node, findings: list[Finding]) -> Node:
    assignment = cluster.get("load_assignment") or cluster
    endpoints: list[Node] = []
    for locality in assignment.list_at("endpoints"):
        for item in locality.list_at("lb_endpoints"):
            endpoint = _endpoint(item, findings)
            if endpoint is not None:
                endpoints.append(endpoint)
    return Node(assignment.path, assignment.line, list(endpoints))


def _endpoint(item: Node, findings: list[Finding]) -> Node | None:
    cls = wire.message_class("envoy.config.endpoint.v3", "LbEndpoint")
    message, faults = wire.read(cls, item)
    findings += faults
    address = message.endpoint.address if message.endpoint is not None else None
    socket = address.socket_address if address is not None else None
    place = item.at("endpoint", "address", "socket_address") or item.at("endpoint", "address") or item
    if socket is None or not socket.address or not socket.port_value:
        findings.append(Finding(codes.ENDPOINT_ADDRESS, place, "an endpoint of a pool needs an address and a port"))
        return None
    options = item.at("metadata", "filter_metadata", METADATA)
    if options is not None and not isinstance(options.value, dict | None):
        findings.append(
            Finding(codes.SETTING_VALUE, options, "is not a section", cure="write `key: value` pairs under it")
        )
        options = None
    fields = dict(options.fields) if options is not None else {}
    if "address" in fields:
        findings.append(
            Finding(
                codes.SETTING_UNKNOWN, fields["address"], "unknown setting", cure="the address is the endpoint's own"
            )
        )
    fields["address"] = Node(place.path, place.line, format_host(str(socket.address), int(socket.port_value)))
    if message.health_status is not None and message.health_status.name in _OUT_OF_SERVICE:
        # override_host uses a host whatever its health, so Envoy's own mark must keep it out of our picks.
        status = item.get("health_status") or item
        fields.setdefault("drained", Node(status.path, status.line, True))
    base = options if options is not None else item
    return Node(base.path, base.line, fields)
