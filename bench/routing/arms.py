"""Which routers are compared, how does each start, and did it do what its name says?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.common import front, peers
from bench.common.http import envoy_stats, fetch, gives_200
from bench.common.process import EXTPROC, ROOT, ArmFailedError, Process, free_ports, start, wait_until
from bench.common.process import with_project_on_path as project_environment
from extproc.scheduling.profiles import PROFILES

SHIPPED = ROOT / "envoy" / "envoy.yaml"
TWO_WORKERS = "extproc-cache-aware-2-workers"
SERVICE_ARMS = {
    "extproc-cache-aware": "cache-aware",
    "extproc-least-loaded": "least-loaded",
    TWO_WORKERS: "cache-aware",
}
ENVOY_ARMS = {
    "envoy-round-robin": "round_robin.v3.RoundRobin",
    "envoy-least-request": "least_request.v3.LeastRequest",
    "envoy-ring-hash": "ring_hash.v3.RingHash",
}
PEER_ARMS = {
    "vllm-router-cache-aware": ("vllm-router", "cache_aware"),
    "vllm-router-consistent-hash": ("vllm-router", "consistent_hash"),
    "sglang-router-cache-aware": ("sglang-router", "cache_aware"),
    "smg-cache-aware": ("smg", "cache_aware"),
    "smg-least-load": ("smg", "least_load"),
    "vllm-router-cache-aware-403": ("vllm-router", "cache_aware"),  # against servers that refuse render calls
}
EXTRA_ARMS = frozenset({"vllm-router-cache-aware-403", TWO_WORKERS})  # only when they are asked for
ARMS = (*SERVICE_ARMS, *ENVOY_ARMS, *PEER_ARMS)
SESSION_HEADER = "x-session-id"
_STOP_S = 2.0  # nothing is in flight; one of the peers does not end by itself
_SERVICE_COUNTERS = ("picks", "served_elsewhere", "unpicked_requests", "request_path_errors", "undecodable_messages")


def available(name: str) -> bool:
    """Whether this version of the project has what an arm needs."""
    return name not in SERVICE_ARMS or SERVICE_ARMS[name] in PROFILES


def renders(name: str) -> bool:
    """Whether the servers behind an arm answer render calls, as the fair default is."""
    return name != "vllm-router-cache-aware-403"


@dataclass(frozen=True, slots=True)
class Arm:
    """A running arm: where to send, and where to ask what it did."""

    name: str
    port: int
    processes: tuple[Process, ...]
    envoy_admin_port: int | None = None  # None: no service whose picks could be checked
    service_admin_port: int | None = None

    def counts(self) -> Mapping[str, int]:
        """Counters of Envoy's ext_proc filter and of the service; empty for arms without the service."""
        if self.envoy_admin_port is None:
            return {}
        counts: dict[str, int] = {}
        for name, number in envoy_stats(self.envoy_admin_port, "ext_proc").items():
            short = name.rpartition(".")[2]
            counts[short] = counts.get(short, 0) + number
        status, page = fetch(f"http://127.0.0.1:{self.service_admin_port}/metrics")
        if status != 200:
            raise ArmFailedError(f"{self.name}: the service's metrics page gives status {status}")
        return counts | parse_service_counters(page)

    def stop(self) -> None:
        """End what was started for it."""
        for process in self.processes:
            process.ask_to_stop()
        for process in self.processes:
            process.stop(_STOP_S)


def parse_service_counters(page: str) -> dict[str, int]:
    """The service's counters that tell whether its picks were used, summed over labels."""
    return {
        name: sum(
            int(float(value)) for value in re.findall(rf"^extproc_{name}_total(?:{{[^}}]*}})? (\S+)$", page, re.M)
        )
        for name in _SERVICE_COUNTERS
    }


def complaints(before: Mapping[str, int], after: Mapping[str, int], requests: int) -> list[str]:
    """What shows that requests did not go where the service sent them; empty: all did, or there is no service."""
    if not after:
        return []
    grown = {name: number - before.get(name, 0) for name, number in after.items()}
    found = [
        f"{grown.get(name, 0)} {name} for {requests} requests"
        for name in ("streams_started", "picks")
        if grown.get(name, 0) != requests
    ]
    wrong = ("spurious_msgs_received", "rejected_header_mutations", "failure_mode_allowed", *_SERVICE_COUNTERS[1:])
    return found + [f"{name} = {grown[name]}" for name in wrong if grown.get(name)]


def start_arm(name: str, folder: Path, servers: Sequence[int], envoy_binary: str) -> Arm:
    """Start an arm in front of these servers and wait until it is ready for requests.

    Raises:
        ArmFailedError: it does not get ready; what was started is stopped.
    """
    started: list[Process] = []

    def begin(label: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Process:
        process = start(label, command, folder, env)
        started.append(process)
        return process

    try:
        if name in PEER_ARMS:
            return _start_peer(name, servers, begin)
        return _start_envoy(name, folder, servers, envoy_binary, begin)
    except BaseException:
        Arm(name, 0, tuple(started)).stop()
        raise


def _start_peer(name: str, servers: Sequence[int], begin: Callable[..., Process]) -> Arm:
    distribution, policy = PEER_ARMS[name]
    port, metrics_port = free_ports(2)
    process = begin(name, peers.command_line(ROOT, peers.PEERS[distribution], policy, port, metrics_port, servers))
    count = len(servers)
    wait_until(f"{name} knows its {count} workers", lambda: peers.healthy_workers(port) == count, [process])
    return Arm(name, port, (process,))


def _start_envoy(
    name: str, folder: Path, servers: Sequence[int], envoy_binary: str, begin: Callable[..., Process]
) -> Arm:
    ports = front.FrontPorts(*free_ports(4))
    config = envoy_config(name, front.with_addresses(front.read_config(SHIPPED), ports, servers))
    path = folder / f"{name}.yaml"
    front.write_config(path, config)
    service: Process | None = None
    if name in SERVICE_ARMS:
        command = [*EXTPROC, "serve", "--envoy", str(path), "--log-level", "warning"]
        service = begin(f"{name}-service", command, project_environment())
        wait_until(f"{name}: the service is ready", lambda: gives_200(ports.service_admin, "/readyz"), [service])
    # One worker thread: with more, each keeps its own turn (round robin) and its own counts (least request).
    options = ["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning"]
    envoy = begin(f"{name}-envoy", [envoy_binary, "-c", str(path), *options])
    wait_until(f"{name}: Envoy is ready", lambda: gives_200(ports.envoy_admin, "/ready"), [envoy])
    workers = 2 if name == TWO_WORKERS else 1
    wait_until(
        f"{name}: Envoy sees all healthy", lambda: _all_healthy(ports.envoy_admin, len(servers), workers), [envoy]
    )
    if service is None:
        return Arm(name, ports.listener, (envoy,))
    return Arm(name, ports.listener, (service, envoy), ports.envoy_admin, ports.service_admin)


def _all_healthy(admin_port: int, servers: int, workers: int) -> bool:
    """Whether every server, and the service where there is one, has passed a health check."""
    stats = envoy_stats(admin_port, "^cluster.*membership_")
    if stats.get("cluster.vllm.membership_healthy") != servers:
        return False
    return stats.get("cluster.extproc.membership_healthy", workers) == workers


def envoy_config(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """The shipped configuration, already on this run's addresses, as an arm needs it."""
    if name in SERVICE_ARMS:
        own = config["node"]["metadata"]["extproc"]
        own.setdefault("scheduling", {})["profile"] = SERVICE_ARMS[name]
        own["shutdown_notice_s"] = 0  # nobody has to be told, and nobody waits
        if name == TWO_WORKERS:
            own["workers"] = 2
            front.add_worker(config)
        return config
    config = front.without_service(config)
    type_name = ENVOY_ARMS[name]
    kind = type_name.partition(".")[0]
    (pool,) = (cluster for cluster in config["static_resources"]["clusters"] if "load_balancing_policy" in cluster)
    pool["load_balancing_policy"] = {
        "policies": [
            {
                "typed_extension_config": {
                    "name": f"envoy.load_balancing_policies.{kind}",
                    "typed_config": {
                        "@type": f"type.googleapis.com/envoy.extensions.load_balancing_policies.{type_name}"
                    },
                }
            }
        ]
    }
    if kind == "ring_hash":
        for route in front.routes(config):
            if "route" in route:
                route["route"]["hash_policy"] = [{"header": {"header_name": SESSION_HEADER}}]
    return config
