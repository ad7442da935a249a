"""What does istiod generate from our manifests, before EnvoyFilters? Enough of it for a gateway and for a sidecar.

Names, order and shapes are istiod's (1.28): listeners `0.0.0.0_8080`, routes `http.8080` and `8000`, clusters
`outbound|8000||vllm.llm.svc.cluster.local`, connection managers with Istio's filters in Istio's order. Filters that
only Istio's own Envoy has (istio.*) are stood in for by one that does nothing, under their names. Whatever a manifest
says that is not translated here raises KeyError or `UntranslatedError`: nothing of it is silently dropped.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.istio.patching import MANAGER, Generated

Json = dict[str, Any]

TYPE = "type.googleapis.com/"
NO_OP = {"@type": TYPE + "envoy.extensions.filters.http.cors.v3.Cors"}  # without a policy it does nothing
TLS = TYPE + "envoy.extensions.transport_sockets.tls.v3."
HTTP2_NAMES = ("grpc", "http2", "GRPC", "HTTP2", "kubernetes.io/h2c")
DISCOVERED: Json = {"eds_config": {"ads": {}, "resource_api_version": "V3"}}


class UntranslatedError(Exception):
    """A field of a manifest that istiod would translate and this does not."""


def cluster_name(host: str, port: int) -> str:
    return f"outbound|{port}||{host}"


# Clusters.


def clusters(objects: Iterable[Json]) -> list[Json]:
    """One for each port of each Service and ServiceEntry, with its DestinationRule."""
    objects = list(objects)
    rules = {item["spec"]["host"]: item["spec"] for item in objects if item["kind"] == "DestinationRule"}
    made = []
    for item in objects:
        if item["kind"] == "Service":
            host = f"{item['metadata']['name']}.{item['metadata']['namespace']}.svc.cluster.local"
            if item["spec"].get("clusterIP") == "None":
                raise UntranslatedError(f"{host}: a headless Service")
            ports = [(port["port"], port.get("appProtocol", port["name"])) for port in item["spec"]["ports"]]
            hosts = [host]
        elif item["kind"] == "ServiceEntry":
            hosts = item["spec"]["hosts"]
            ports = [(port["number"], port["protocol"]) for port in item["spec"]["ports"]]
        else:
            continue
        made += [_cluster(host, port, protocol, rules.get(host)) for host in hosts for port, protocol in ports]
    return made


def _cluster(host: str, port: int, protocol: str, rule: Json | None) -> Json:
    made: Json = {
        "name": cluster_name(host, port),
        "type": "EDS",
        "eds_cluster_config": {**copy.deepcopy(DISCOVERED), "service_name": cluster_name(host, port)},
        "connect_timeout": "10s",
        "lb_policy": "LEAST_REQUEST",
        "circuit_breakers": {
            "thresholds": [
                {"max_connections": 4294967295, "max_pending_requests": 4294967295, "max_requests": 4294967295}
                | {"max_retries": 4294967295, "track_remaining": True}
            ]
        },
        "common_lb_config": {},
        "metadata": {"filter_metadata": {"istio": {"services": [{"host": host}]}}},
    }
    http2 = protocol in HTTP2_NAMES
    if http2:
        protocol_options(made)["explicit_http_config"] = {
            "http2_protocol_options": {"max_concurrent_streams": 1073741824}
        }
    if rule is not None:
        policy = _policy(rule["trafficPolicy"], port)
        _balance(made, policy.pop("loadBalancer", {}))
        _connect(made, policy.pop("connectionPool", {}))
        socket = _tls(policy.pop("tls", {"mode": "DISABLE"}), host, port, http2=http2)
        if socket is not None:
            made["transport_socket"] = socket
        _all_translated(policy, host)
    return made


def _policy(policy: Json, port: int) -> Json:
    """A port's own settings replace all of the destination's."""
    policy = copy.deepcopy(policy)
    for own in policy.pop("portLevelSettings", []):
        number = own.pop("port")["number"]
        if number == port:
            policy = own
    return policy


def _balance(cluster: Json, settings: Json) -> None:
    if "simple" in settings:
        cluster["lb_policy"] = settings.pop("simple")
    _all_translated(settings, cluster["name"])


def _connect(cluster: Json, pool: Json) -> None:
    tcp, http = pool.pop("tcp", {}), pool.pop("http", {})
    (limits,) = cluster["circuit_breakers"]["thresholds"]
    for settings, name, limit in (
        (tcp, "maxConnections", "max_connections"),
        (http, "http1MaxPendingRequests", "max_pending_requests"),
        (http, "http2MaxRequests", "max_requests"),
        (http, "maxRetries", "max_retries"),
    ):
        if name in settings:
            limits[limit] = settings.pop(name)
    if "connectTimeout" in tcp:
        cluster["connect_timeout"] = tcp.pop("connectTimeout")
    if "idleTimeout" in http:
        options = protocol_options(cluster)
        options["common_http_protocol_options"] = {"idle_timeout": http.pop("idleTimeout")}
        options.setdefault("explicit_http_config", {"http_protocol_options": {}})
    for left in (tcp, http, pool):
        _all_translated(left, cluster["name"])


def _tls(settings: Json, host: str, port: int, *, http2: bool) -> Json | None:
    mode = settings.pop("mode")
    if mode == "DISABLE":
        return None
    context: Json = {"@type": TLS + "UpstreamTlsContext", "common_tls_context": {}}
    common = context["common_tls_context"]
    if mode == "ISTIO_MUTUAL":
        context["sni"] = f"outbound_.{port}_._.{host}"
        common["alpn_protocols"] = ["istio-peer-exchange", "istio", *(["h2"] if http2 else [])]
        common["tls_certificate_sds_secret_configs"] = [{"name": "default"}]
        common["combined_validation_context"] = {
            "default_validation_context": {},
            "validation_context_sds_secret_config": {"name": "ROOTCA"},
        }
    elif mode == "SIMPLE":
        if http2:
            common["alpn_protocols"] = ["h2"]
        if "sni" in settings:
            context["sni"] = settings.pop("sni")
        names = [{"san_type": "DNS", "matcher": {"exact": name}} for name in settings.pop("subjectAltNames", [])]
        if settings.pop("insecureSkipVerify", False):
            common["validation_context"] = {}
        else:
            secret = settings.pop("credentialName")
            common["combined_validation_context"] = {
                "default_validation_context": {"match_typed_subject_alt_names": names} if names else {},
                "validation_context_sds_secret_config": {"name": f"kubernetes://{secret}-cacert"},
            }
    else:
        raise UntranslatedError(f"tls.mode: {mode}")
    _all_translated(settings, host)
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def protocol_options(cluster: Json) -> Json:
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    options: Json = cluster.setdefault("typed_extension_protocol_options", {}).setdefault(name, {"@type": TYPE + name})
    return options


def _all_translated(left: Mapping[str, Any], of: str) -> None:
    if left:
        raise UntranslatedError(f"{of}: {sorted(left)}")


# Routes and listeners.


def routes(service: Json, vhost: str, domains: Sequence[str]) -> Json:
    """The virtual host of a VirtualService."""
    made = []
    for rule in copy.deepcopy(service["spec"]["http"]):
        name, timeout, retries = rule.pop("name"), rule.pop("timeout"), rule.pop("retries", None)
        (destination,) = [each.pop("destination") for each in rule.pop("route")]
        matches = [_match(each) for each in rule.pop("match")]
        _all_translated(rule, name)
        action: Json = {
            "cluster": cluster_name(destination["host"], destination["port"]["number"]),
            "timeout": timeout,
            "retry_policy": retry_policy(retries),
        }
        made += [{"name": name, "match": match, "route": copy.deepcopy(action)} for match in matches]
    return {"name": vhost, "domains": list(domains), "routes": made, "include_request_attempt_count": True}


def _match(match: Json) -> Json:
    made: Json = {"prefix": "/", "case_sensitive": True}
    if "uri" in match:
        made["prefix"] = match.pop("uri")["prefix"]
    for name, header in match.pop("headers", {}).items():
        made.setdefault("headers", []).append(
            {"name": name, "string_match": {"safe_regex": {"regex": header["regex"]}}}
        )
    _all_translated(match, "match")
    return made


def retry_policy(retries: Json | None) -> Json:
    """Without any in the VirtualService Istio has some of its own."""
    words, attempts = ["connect-failure", "refused-stream", "unavailable", "cancelled", "retriable-status-codes"], 2
    codes = [503]
    if retries is not None:
        given = retries["retryOn"].split(",")
        codes, words = [int(w) for w in given if w.isdigit()], [w for w in given if not w.isdigit()]
        attempts = retries["attempts"]
    previous = "envoy.retry_host_predicates.previous_hosts"
    type_of = TYPE + "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return {
        "retry_on": ",".join(words),
        "num_retries": attempts,
        "retriable_status_codes": codes,
        "retry_host_predicate": [{"name": previous, "typed_config": {"@type": type_of}}],
        "host_selection_retry_max_attempts": "5",
    }


def http_filters(*more: Json) -> list[Json]:
    """A connection manager's filters in Istio's order; `more` come where those of Istio's own policies do."""
    return [
        {"name": "istio.metadata_exchange", "typed_config": NO_OP},
        *more,
        {
            "name": "envoy.filters.http.grpc_stats",
            "typed_config": {
                "@type": TYPE + "envoy.extensions.filters.http.grpc_stats.v3.FilterConfig",
                "emit_filter_state": True,
                "stats_for_all_methods": False,
            },
        },
        {"name": "istio.alpn", "typed_config": NO_OP},
        {
            "name": "envoy.filters.http.fault",
            "typed_config": {"@type": TYPE + "envoy.extensions.filters.http.fault.v3.HTTPFault"},
        },
        {"name": "envoy.filters.http.cors", "typed_config": NO_OP},
        {"name": "istio.stats", "typed_config": NO_OP},
        {
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": TYPE + "envoy.extensions.filters.http.router.v3.Router"},
        },
    ]


def listener(port: int, routes_name: str, *, direction: str, filters: Sequence[Json]) -> Json:
    manager: Json = {
        "@type": TYPE + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": f"outbound_0.0.0.0_{port}",
        "rds": {
            "config_source": {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"},
            "route_config_name": routes_name,
        },
        "http_filters": list(filters),
        "server_name": "istio-envoy",
        "use_remote_address": direction == "gateway",
        "generate_request_id": True,
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "stream_idle_timeout": "0s",
        "normalize_path": True,
        "access_log": [
            {
                "name": "envoy.access_loggers.file",
                "typed_config": {
                    "@type": TYPE + "envoy.extensions.access_loggers.file.v3.FileAccessLog",
                    "path": "/dev/null",
                },
            }
        ],
    }
    return {
        "name": f"0.0.0.0_{port}",
        "address": {"socket_address": {"address": "0.0.0.0", "port_value": port}},
        "traffic_direction": "OUTBOUND",
        "filter_chains": [{"filters": [{"name": MANAGER, "typed_config": manager}]}],
    }


def gateway(objects: Sequence[Json], *more_filters: Json) -> Generated:
    """For an ingress gateway whose pod serves port 80 on 8080."""
    (service,) = [
        item for item in objects if item["kind"] == "VirtualService" and "mesh" not in item["spec"]["gateways"]
    ]
    return Generated(
        [listener(8080, "http.8080", direction="gateway", filters=http_filters(*more_filters))],
        [{"name": "http.8080", "virtual_hosts": [routes(service, "*:80", ["*"])], "validate_clusters": False}],
        clusters(objects),
    )


def sidecar(objects: Sequence[Json], *more_filters: Json) -> Generated:
    """For a pod that calls vLLM: port 8000 on the way out, where other Services have virtual hosts too."""
    (service,) = [item for item in objects if item["kind"] == "VirtualService" and "mesh" in item["spec"]["gateways"]]
    (host,) = service["spec"]["hosts"]
    name = host.partition(".")[0]
    domains = [host, f"{name}.llm", f"{name}.llm.svc"]
    other = {
        "name": "other.shop.svc.cluster.local:8000",
        "domains": ["other.shop"],
        "include_request_attempt_count": True,
    }
    other["routes"] = [{"name": "default", "match": {"prefix": "/"}, "direct_response": {"status": 204}}]
    return Generated(
        [listener(8000, "8000", direction="sidecar", filters=http_filters(*more_filters))],
        [
            {
                "name": "8000",
                "virtual_hosts": [other, routes(service, f"{host}:8000", domains)],
                "validate_clusters": False,
                "ignore_port_in_host_matching": True,
            }
        ],
        clusters(objects),
    )
