"""What does Istio generate for an InferencePool? After its code (1.28 and newer) and dumps of its gateways.

* a cluster of the pool's pods, `outbound|54321||vllm-ip-<hash>.llm.svc.cluster.local`, that follows the pick in the
  metadata, and (`tells_served`) writes there who was chosen;
* the picker's cluster, with the DestinationRule's TLS;
* an ext_proc filter on the connection manager, in Istio's place for it, and on the route what it is to send: all, in
  both directions, in full duplex.

A subset hint is no part of Istio's; here some routes have one, as gateways that do send it would set it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tests.istio import istiod, manifests
from tests.istio.istiod import TYPE
from tests.istio.patching import Generated

Json = dict[str, Any]

POOL = "outbound|54321||vllm-ip-1a2b3c4d.llm.svc.cluster.local"
PICKER = "outbound|9002||extproc.llm.svc.cluster.local"
EXT_PROC = TYPE + "envoy.extensions.filters.http.ext_proc.v3."
SUBSET_NAMESPACE, SUBSET_KEY = "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset"
ALL_OF_IT: Json = {
    "request_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}
NOTHING_OF_IT: Json = {
    "request_header_mode": "SKIP",
    "request_body_mode": "NONE",
    "request_trailer_mode": "SKIP",
    "response_header_mode": "SKIP",
    "response_body_mode": "NONE",
    "response_trailer_mode": "SKIP",
}


def gateway(
    *, tells_served: bool = True, fail_open: bool = True, subsets: Mapping[str, Sequence[str]] | None = None
) -> Generated:
    """`subsets`: the hint of requests whose path begins so."""
    subsets = subsets or {}
    filters = istiod.http_filters(*(_hint(path, allowed) for path, allowed in subsets.items()), _ext_proc())
    routes = [_route(path, fail_open, {f"subset.{path}": _on()}) for path in subsets]
    host: Json = {"name": "*:80", "domains": ["*"], "include_request_attempt_count": True}
    host["routes"] = [*routes, _route("/", fail_open, {})]
    return Generated(
        [istiod.listener(80, "http.80", direction="gateway", filters=filters)],
        [{"name": "http.80", "virtual_hosts": [host], "validate_clusters": False}],
        [_pool(tells_served), *_picker()],
    )


def _ext_proc() -> Json:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": EXT_PROC + "ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": PICKER}, "timeout": "10s"},
            "processing_mode": NOTHING_OF_IT,
            "message_timeout": "1000s",
            "metadata_options": {
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
                "forwarding_namespaces": {"untyped": ["envoy.lb", SUBSET_NAMESPACE]},
            },
        },
    }


def _hint(path: str, allowed: Sequence[str]) -> Json:
    metadata = {"metadata_namespace": SUBSET_NAMESPACE, "value": {SUBSET_KEY: list(allowed)}}
    return {
        "name": f"subset.{path}",
        "disabled": True,
        "typed_config": {
            "@type": TYPE + "envoy.extensions.filters.http.set_metadata.v3.Config",
            "metadata": [metadata],
        },
    }


def _on() -> Json:
    return {"@type": TYPE + "envoy.config.route.v3.FilterConfig", "config": {}}


def _route(path: str, fail_open: bool, more: Json) -> Json:
    overrides = {
        "processing_mode": ALL_OF_IT,
        "grpc_service": {"envoy_grpc": {"cluster_name": PICKER}},
        "failure_mode_allow": fail_open,
    }
    per_filter = {"envoy.filters.http.ext_proc": {"@type": EXT_PROC + "ExtProcPerRoute", "overrides": overrides}}
    return {
        "name": "llm.llm.0",
        "match": {"prefix": path},
        "route": {
            "cluster": POOL,
            "timeout": "0s",
            "max_grpc_timeout": "0s",
            "retry_policy": istiod.retry_policy(None),
        },
        "typed_per_filter_config": copy.deepcopy(per_filter | more),
    }


def _pool(tells_served: bool) -> Json:
    """Without a DestinationRule: Istio's defaults."""
    service = {
        "kind": "Service",
        "metadata": {"name": "vllm-ip-1a2b3c4d", "namespace": "llm"},
        "spec": {"ports": [{"name": "http", "port": 54321, "appProtocol": "http"}]},
    }
    (cluster,) = istiod.clusters([service])
    policies = "envoy.extensions.load_balancing_policies."
    fallback = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": {"@type": TYPE + policies + "least_request.v3.LeastRequest"},
    }
    override: Json = {
        "@type": TYPE + policies + "override_host.v3.OverrideHost",
        "override_host_sources": [
            {"metadata": {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint"}]}}
        ],
        "fallback_policy": {"policies": [{"typed_extension_config": fallback}]},
    }
    if tells_served:
        override["selected_host_key"] = {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint-served"}]}
    name = "envoy.load_balancing_policies.override_host"
    cluster["load_balancing_policy"] = {
        "policies": [{"typed_extension_config": {"name": name, "typed_config": override}}]
    }
    return cluster


def _picker() -> list[Json]:
    made = istiod.clusters(manifests.objects("extproc/extproc.yaml", "inference-pool/destination-rule.yaml"))
    return [cluster for cluster in made if cluster["name"] == PICKER]
