"""What is compared, how does each arm start, and how do we know that it did what its name says?"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.common import front, peers
from bench.common.front import find_envoy
from bench.common.http import envoy_stats, fetch, gives_200
from bench.common.peers import healthy_workers
from bench.common.process import (
    EXTPROC,
    ROOT,
    ArmFailedError,
    Process,
    free_ports,
    start,
    wait_until,
    with_project_on_path,
)
from bench.overhead import upstream

SHAPES = {
    "extproc-a": "envoy.yaml",
    "extproc-a-cache-aware": "envoy.yaml",
    "extproc-b": "envoy-headers-then-body.yaml",
    "extproc-c": "envoy-full-duplex.yaml",
}
# Shapes are compared without reading bodies, as first measured; what the default profile adds has an arm of its own.
PROFILES = {name: "cache-aware" if name.endswith("cache-aware") else "least-loaded" for name in SHAPES}
PEER_ARMS = {
    "vllm-router-round-robin": ("vllm-router", "round_robin"),
    "vllm-router-cache-aware": ("vllm-router", "cache_aware"),
    "sglang-router-cache-aware": ("sglang-router", "cache_aware"),
    "smg-cache-aware": ("smg", "cache_aware"),
}
ENVOY_ALONE = "envoy-alone"
ARMS = (ENVOY_ALONE, *SHAPES, *PEER_ARMS)
SERVERS = 4


@dataclass(frozen=True, slots=True)
class Servers:
    """The four fake vLLM servers, which one Envoy plays for all arms."""

    process: Process
    ports: tuple[int, ...]
    admin_port: int

    def answered(self) -> tuple[int, ...]:
        """Requests answered with 2xx so far, of all paths, by server."""
        stats = envoy_stats(self.admin_port, "downstream_rq_2xx")
        return tuple(stats[f"http.server{index}.downstream_rq_2xx"] for index in range(len(self.ports)))

    def refused(self) -> int:
        """Requests answered with 4xx or 5xx so far: paths that a fake server does not know."""
        return sum(envoy_stats(self.admin_port, "http.server.*downstream_rq_[45]xx").values())


@dataclass(frozen=True, slots=True)
class Arm:
    """A running arm: where to send, whose CPU to count, and Envoy's admin port where ext_proc can be checked."""

    name: str
    port: int
    service: Process | None = None  # None: Envoy alone
    envoy: Process | None = None  # None: the arm has no Envoy
    envoy_admin_port: int | None = None  # None: no pick to check
    service_admin_port: int | None = None  # None: no /readyz to wait for
    command: tuple[str, ...] = field(default=())

    @property
    def processes(self) -> tuple[Process, ...]:
        return tuple(each for each in (self.service, self.envoy) if each is not None)

    def freeze(self) -> None:
        for process in reversed(self.processes):
            process.freeze()

    def thaw(self, probe_body: bytes) -> None:
        """Let it run again, and wait until it works as before.

        A frozen service has no fresh samples when it wakes, and the scrapes that it waited for have timed out: a server
        may count as failing. So Envoy wakes after the service has seen all of them serve again.

        Raises:
            ArmFailedError: it does not work again within a minute.
        """
        for process in self.processes:
            process.thaw()
            if process is self.service and self.service_admin_port is not None:
                self._wait_for_service()
        # Timers that were due while frozen fire now: health checks, scrapes. Let them pass before a clock starts.
        time.sleep(0.1)
        wait_until(f"{self.name} answers", lambda: self._answers(probe_body), self.processes)

    def _wait_for_service(self) -> None:
        wait_until(f"{self.name}: the service is ready, and its servers are", self._sees_all, self.processes)

    def _sees_all(self) -> bool:
        port = self.service_admin_port
        if port is None:
            return True
        if not gives_200(port, "/readyz"):
            return False
        pools = json.loads(fetch(f"http://127.0.0.1:{port}/status")[1])["pools"].values()
        endpoints = [endpoint for pool in pools for endpoint in pool["endpoints"]]
        return all(each["problem"] is None and (each["sample"] or {}).get("fresh") for each in endpoints)

    def _answers(self, probe_body: bytes) -> bool:
        """Envoy lets requests through while it has not seen the service healthy; without a pick one does not count."""
        before = self.picks().get("streams_started")
        if fetch(f"http://127.0.0.1:{self.port}/v1/chat/completions", probe_body)[0] != 200:
            return False
        return before is None or self.picks().get("streams_started", 0) > before

    def picks(self) -> Mapping[str, int]:
        """Envoy's ext_proc counters, by their last name; empty for arms without ext_proc."""
        if self.envoy_admin_port is None:
            return {}
        stats = envoy_stats(self.envoy_admin_port, "ext_proc")
        counters: dict[str, int] = {}
        for name, number in stats.items():
            short = name.rpartition(".")[2]
            counters[short] = counters.get(short, 0) + number
        return counters


def check_picks(arm: str, before: Mapping[str, int], after: Mapping[str, int], requests: int) -> int:
    """How many of `requests` went without a pick, since the service was late (they count as a slow service).

    Raises:
        ArmFailedError: the service was not asked for every request, Envoy threw its answers away, or more than one
            request in a hundred went without a pick; then the window measured something else.
    """
    grown = {name: number - before.get(name, 0) for name, number in after.items()}
    if grown.get("streams_started", 0) < requests:
        raise ArmFailedError(
            f"{arm}: {requests} requests, but Envoy opened only {grown.get('streams_started', 0)} ext_proc streams"
        )
    for name in ("spurious_msgs_received", "rejected_header_mutations"):
        if grown.get(name, 0):
            raise ArmFailedError(f"{arm}: Envoy counts ext_proc.{name} = {grown[name]}; it did not use those answers")
    missed = grown.get("failure_mode_allowed", 0)
    if missed * 100 > requests:
        raise ArmFailedError(f"{arm}: {missed} of {requests} requests went without a pick (failure_mode_allowed)")
    return missed


def shape_config(name: str, ports: front.FrontPorts, servers: Sequence[int]) -> dict[str, Any]:
    """The shipped configuration of an arm's shape, on these addresses and with the arm's profile."""
    config = front.with_addresses(front.read_config(ROOT / "envoy" / SHAPES[name]), ports, servers)
    config["node"]["metadata"]["extproc"]["scheduling"]["profile"] = PROFILES[name]
    return config


class Starter:
    """Starts servers and arms, and remembers all it started so that `stop` ends them."""

    def __init__(self, folder: Path, envoy_concurrency: int, probe_body: bytes) -> None:
        self.folder = folder
        self.envoy_concurrency = envoy_concurrency
        self.probe_body = probe_body
        self.envoy_binary = find_envoy()
        self._started: list[Process] = []

    def stop(self) -> None:
        """End everything that was started."""
        for process in self._started:
            process.ask_to_stop()
        while self._started:
            self._started.pop().stop()

    def _start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Process:
        process = start(name, command, self.folder, env)
        self._started.append(process)
        return process

    def _envoy(self, name: str, config: Path) -> Process:
        options = ["--concurrency", str(self.envoy_concurrency), "--use-dynamic-base-id", "--log-level", "warning"]
        return self._start(name, [self.envoy_binary, "-c", str(config), *options])

    def servers(self) -> Servers:
        admin, *ports = free_ports(1 + SERVERS)
        config = self.folder / "servers.yaml"
        front.write_config(config, upstream.envoy_config(ports, admin))
        process = self._envoy("servers", config)
        servers = Servers(process, tuple(ports), admin)
        wait_until("the fake servers answer", lambda: all(gives_200(port, "/health") for port in ports), [process])
        return servers

    def arm(self, name: str, servers: Servers) -> Arm:
        """Start an arm and wait until it answers a request through each of its parts."""
        if name == ENVOY_ALONE:
            arm = self._envoy_alone(servers)
        elif name in SHAPES:
            arm = self._shape(name, servers)
        else:
            arm = self._peer(name, servers)
        wait_until(f"{name} answers", lambda: arm._answers(self.probe_body), arm.processes)
        return arm

    def _envoy_alone(self, servers: Servers) -> Arm:
        ports = front.FrontPorts(*free_ports(4))
        shipped = front.read_config(ROOT / "envoy" / SHAPES["extproc-a"])
        config = self.folder / f"{ENVOY_ALONE}.yaml"
        front.write_config(config, front.without_service(front.with_addresses(shipped, ports, servers.ports)))
        return Arm(ENVOY_ALONE, ports.listener, envoy=self._envoy(ENVOY_ALONE, config))

    def _shape(self, name: str, servers: Servers) -> Arm:
        ports = front.FrontPorts(*free_ports(4))
        config = self.folder / f"{name}.yaml"
        front.write_config(config, shape_config(name, ports, servers.ports))
        command = [*EXTPROC, "serve", "--envoy", str(config)]
        service = self._start(f"{name}-service", command, with_project_on_path())
        wait_until(f"{name}: the service is ready", lambda: gives_200(ports.service_admin, "/readyz"), [service])
        envoy = self._envoy(f"{name}-envoy", config)
        return Arm(name, ports.listener, service, envoy, ports.envoy_admin, ports.service_admin)

    def _peer(self, name: str, servers: Servers) -> Arm:
        distribution, policy = PEER_ARMS[name]
        port, metrics_port = free_ports(2)
        command = peers.command_line(ROOT, peers.PEERS[distribution], policy, port, metrics_port, servers.ports)
        process = self._start(name, command)
        wait_until(f"{name} knows its {SERVERS} workers", lambda: healthy_workers(port) == SERVERS, [process])
        return Arm(name, port, process, command=tuple(command))
