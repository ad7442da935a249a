"""How does what istiod generates run on loopback? EDS, RDS and SDS become static; nothing else changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.istio.istiod import TLS, TYPE, http_filters, protocol_options
from tests.istio.patching import MANAGER, Generated

Json = dict[str, Any]


@dataclass(frozen=True)
class Identity:
    """What istiod hands out as secrets: PEM files."""

    cert: Path
    key: Path
    ca: Path


@dataclass(frozen=True)
class Places:
    """Where things are in a test."""

    listener: int
    admin: int
    endpoints: Mapping[str, Sequence[tuple[str, int]]]  # by the cluster's name
    identity: Identity | None = None  # for clusters whose TLS takes secrets
    spiffe: str | None = None  # whom ISTIO_MUTUAL expects
    more_listeners: Sequence[Json] = field(default_factory=tuple)


def placed(generated: Generated, places: Places) -> Json:
    """A bootstrap that Envoy can run."""
    made = copy.deepcopy(generated)
    by_name = {config["name"]: config for config in made.routes}
    for each in made.listeners:
        each["address"] = _socket("127.0.0.1", places.listener)
        for chain in each["filter_chains"]:
            for network in chain["filters"]:
                manager = network["typed_config"]
                manager["route_config"] = by_name[manager.pop("rds")["route_config_name"]]
    for cluster in made.clusters:
        _static(cluster, places)
    return {
        "node": {"id": "router~127.0.0.1~gateway.llm~llm.svc.cluster.local", "cluster": "gateway"},
        "admin": {"address": _socket("127.0.0.1", places.admin)},
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": TYPE
                        + "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": "50000",
                    },
                }
            ]
        },
        "static_resources": {"listeners": [*made.listeners, *places.more_listeners], "clusters": made.clusters},
    }


def _static(cluster: Json, places: Places) -> None:
    if cluster.get("type") != "EDS":
        return
    del cluster["eds_cluster_config"]
    cluster["type"] = "STATIC"
    endpoints = places.endpoints.get(cluster["name"], ())
    cluster["load_assignment"] = {
        "cluster_name": cluster["name"],
        "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _socket(*each)}} for each in endpoints]}],
    }
    common = cluster.get("transport_socket", {}).get("typed_config", {}).get("common_tls_context", {})
    combined = common.pop("combined_validation_context", None)
    if combined is not None:
        assert places.identity is not None
        validation = combined["default_validation_context"]
        validation["trusted_ca"] = {"filename": str(places.identity.ca)}
        if common.pop("tls_certificate_sds_secret_configs", None):
            common["tls_certificates"] = [_certificate(places.identity)]
            assert places.spiffe is not None
            validation["match_typed_subject_alt_names"] = [{"san_type": "URI", "matcher": {"exact": places.spiffe}}]
        common["validation_context"] = validation


def inbound(port: int, cluster: str, identity: Identity) -> Json:
    """The listener of the sidecar beside extproc: only members of the mesh, mutual TLS."""
    name = "virtualInbound"
    manager: Json = {
        "@type": TYPE + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "inbound_0.0.0.0_9002",
        "codec_type": "HTTP2",
        "route_config": {
            "name": "inbound|9002||",
            "virtual_hosts": [
                {
                    "name": "inbound|http|9002",
                    "domains": ["*"],
                    "routes": [
                        {"name": "default", "match": {"prefix": "/"}, "route": {"cluster": cluster, "timeout": "0s"}}
                    ],
                }
            ],
        },
        "http_filters": [http_filters()[-1]],
        "stream_idle_timeout": "0s",
    }
    context = {
        "@type": TLS + "DownstreamTlsContext",
        "require_client_certificate": True,
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_certificates": [_certificate(identity)],
            "validation_context": {"trusted_ca": {"filename": str(identity.ca)}},
        },
    }
    return {
        "name": name,
        "address": _socket("127.0.0.1", port),
        "traffic_direction": "INBOUND",
        "filter_chains": [
            {
                "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": context},
                "filters": [{"name": MANAGER, "typed_config": manager}],
            }
        ],
    }


def inbound_cluster(name: str, endpoint: tuple[str, int]) -> Json:
    made: Json = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _socket(*endpoint)}}]}],
        },
    }
    protocol_options(made)["explicit_http_config"] = {"http2_protocol_options": {}}
    return made


def _certificate(identity: Identity) -> Json:
    return {"certificate_chain": {"filename": str(identity.cert)}, "private_key": {"filename": str(identity.key)}}


def _socket(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}
