"""Are the pools' clusters set for servers that are slow, full and briefly absent?"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from extproc.config import pools, wire
from extproc.config.codes import Finding
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.view import View

VLLM_KEEP_ALIVE_S = 5.0  # uvicorn's default, which vLLM leaves as it is
_HEALTH_AWARE = (
    "least_request",
    "round_robin",
    "random",
    "ring_hash",
    "maglev",
    "wrr_locality",
    "client_side_weighted",
)


@rule(
    "upstream-idle-timeout",
    WARNING,
    why="vLLM closes a connection that was idle for 5 s; Envoy keeps it for an hour and then sends into a closed one.",
    cure="set common_http_protocol_options.idle_timeout: 4s in the cluster's HttpProtocolOptions",
)
def upstream_idle_timeout(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        options = pool.options.message.common_http_protocol_options if pool.options is not None else None
        timeout = options.idle_timeout if options is not None else None
        if timeout is None and pool.message.common_http_protocol_options is not None:
            timeout = pool.message.common_http_protocol_options.idle_timeout
        node = pool.options.config if pool.options is not None else pool.node
        field = "common_http_protocol_options.idle_timeout"
        if timeout is None:
            yield say(node, "is not set, and the default is 1 hour", field)
        elif timeout.total_seconds() >= VLLM_KEEP_ALIVE_S or timeout.total_seconds() == 0:
            yield say(node, f"{timeout.total_seconds():g} s is not below vLLM's 5 s", field)


@rule(
    "fallback-missing",
    ERROR,
    why="Requests without a pick need a rule; Envoy refuses an override_host policy without one.",
    cure="add fallback_policy with envoy.load_balancing_policies.least_request",
)
def fallback_missing(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        assert pool.override is not None
        fallback = pool.override.message.fallback_policy
        if fallback is None or not fallback.policies:
            yield say(pool.override.config, "is not set", "fallback_policy")


@rule(
    "fallback-health",
    WARNING,
    why="The fallback policy avoids unhealthy hosts only if it looks at health, and if something checks it.",
    cure="use least_request, and add health_checks with http_health_check: {path: /health}",
)
def fallback_health(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        assert pool.override is not None
        for policy in pool.override.config.list_at("fallback_policy", "policies"):
            kind = wire.unpack(policy.at("typed_extension_config", "typed_config"))[0]
            if kind and not any(f".{word}" in kind for word in _HEALTH_AWARE):
                yield say(policy, f"{kind.rpartition('.')[2]} does not choose among healthy hosts")
        found_by = getattr(pool.message.type, "name", "")  # None: the cluster says neither type, or has one of its own
        if not pool.message.health_checks and found_by != "EDS":
            yield say(pool.node, "nothing tells the fallback policy which hosts are healthy", "health_checks")


@rule(
    "outlier-ejects-busy",
    WARNING,
    why="Five 503s in a row eject a server, and a full vLLM server answers 503; a pick does not look at ejection.",
    cure="set enforcing_consecutive_5xx: 0 and enforcing_success_rate: 0, or leave outlier_detection out",
)
def outlier_ejects_busy(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        outlier = pool.message.outlier_detection
        if outlier is None:
            continue
        on = [
            name
            for name, default in (
                ("enforcing_consecutive_5xx", 100),
                ("enforcing_consecutive_gateway_failure", 0),
                ("enforcing_success_rate", 100),
            )
            if _or(getattr(outlier, name), default) > 0
        ]
        if on:
            yield say(pool.node, "ejects servers that answer 503: " + ", ".join(on), "outlier_detection")


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


@rule(
    "static-address",
    ERROR,
    why="A STATIC cluster takes IP addresses only; Envoy refuses the file.",
    cure="set type: STRICT_DNS, or write the IP address",
)
def static_address(view: View, say: Say) -> Iterator[Finding]:
    for cluster in (*view.pools, *view.services):
        kind = cluster.node.get("type")
        if (kind is not None and kind.text != "STATIC") or cluster.node.get("cluster_type") is not None:
            continue
        for locality in (cluster.node.get("load_assignment") or cluster.node).list_at("endpoints"):
            for item in locality.list_at("lb_endpoints"):
                place = item.at("endpoint", "address", "socket_address", "address")
                if place is not None and place.text and not _is_ip(place.text):
                    yield say(place, f'"{place.text}" is not an IP address')


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@rule(
    "pool-one-address",
    ERROR,
    why="A LOGICAL_DNS cluster is one host, with one of its name's addresses at a time; a pick that names another finds"
    " no host, and the fallback policy serves.",
    cure="set type: STRICT_DNS",
)
def pool_one_address(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        dns = pools.dns_of(pool.node)
        if dns is not None and dns.one_address:
            yield say(dns.node, f"pool {pool.name} has one address at a time", cure=dns.cure)


@rule(
    "pool-dns-family",
    ERROR,
    why="The service must use the same addresses of a name as Envoy does, or it names hosts that Envoy does not know.",
    cure="remove it; in envoy.yaml it comes from the cluster",
)
def pool_dns_family(view: View, say: Say) -> Iterator[Finding]:
    own = view.bootstrap.at("node", "metadata", pools.METADATA, "pools")
    for pool in view.pools:
        dns = pools.dns_of(pool.node)
        settings = own.fields.get(pool.name) if own is not None else None
        given = settings.get("dns_family") if settings is not None else None
        if dns is not None and given is not None and given.text not in (None, dns.family):
            yield say(given, f"{given.text} is not the cluster's dns_lookup_family, {dns.family.upper()}")


@rule(
    "lb-policy-ignored",
    WARNING,
    why="With load_balancing_policy set, Envoy does not look at lb_policy.",
    cure="remove lb_policy",
)
def lb_policy_ignored(view: View, say: Say) -> Iterator[Finding]:
    for pool in view.pools:
        if pool.node.get("lb_policy") is not None:
            yield say(pool.node, "has no effect beside load_balancing_policy", "lb_policy")
