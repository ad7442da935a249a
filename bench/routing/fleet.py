"""Which servers answer behind every arm? Eight simulated vLLM servers in one process, new for each cell."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from bench.common.http import fetch, gives_200
from bench.common.process import EXTPROC, ArmFailedError, Process, start, wait_until, with_project_on_path
from bench.routing.requests import MODEL, SERVERS

_LISTENS = re.compile(r"^sim-\d+ http://127\.0\.0\.1:(\d+)$", re.MULTILINE)
_COUNTERS = {
    "prefix_queries": re.compile(r"^vllm:prefix_cache_queries_total\{[^}]*\} (\S+)$", re.MULTILINE),
    "prefix_hits": re.compile(r"^vllm:prefix_cache_hits_total\{[^}]*\} (\S+)$", re.MULTILINE),
    "running": re.compile(r"^vllm:num_requests_running\{[^}]*\} (\S+)$", re.MULTILINE),
    "waiting": re.compile(r"^vllm:num_requests_waiting\{[^}]*\} (\S+)$", re.MULTILINE),
}


@dataclass(frozen=True, slots=True)
class Counters:
    """What the servers have counted so far, by server."""

    requests: tuple[int, ...]
    prefix_queries: tuple[float, ...]  # prompt tokens looked up
    prefix_hits: tuple[float, ...]  # of these, found
    busy: int  # requests running or waiting now, all servers


@dataclass(frozen=True, slots=True)
class ServerFleet:
    """The running servers."""

    process: Process
    ports: tuple[int, ...]

    def counters(self) -> Counters:
        """Read all servers. Raises ArmFailedError if one does not answer."""
        requests: list[int] = []
        gauges: dict[str, list[float]] = {name: [] for name in _COUNTERS}
        for port in self.ports:
            page = self._get(port, "/metrics")
            for name, pattern in _COUNTERS.items():
                gauges[name].append(parse_counter(page, pattern))
            requests.append(int(json.loads(self._get(port, "/sim/requests"))["seen"]))
        return Counters(
            tuple(requests),
            tuple(gauges["prefix_queries"]),
            tuple(gauges["prefix_hits"]),
            int(sum(gauges["running"]) + sum(gauges["waiting"])),
        )

    def slow_down(self, count: int, slow_factor: float) -> None:
        """The first `count` servers take `slow_factor` times the time of their presets from now on."""
        for port in self.ports[:count]:
            status, text = fetch(
                f"http://127.0.0.1:{port}/sim/faults", json.dumps({"slow_factor": slow_factor}).encode()
            )
            if status != 200:
                raise ArmFailedError(f"server {port} does not become slow: {text}")

    def _get(self, port: int, path: str) -> str:
        status, text = fetch(f"http://127.0.0.1:{port}{path}")
        if status != 200:
            self.process.check_alive()
            raise ArmFailedError(f"server {port}: {path} gives status {status}")
        return text


def parse_counter(page: str, pattern: re.Pattern[str]) -> float:
    """The value of the one series that `pattern` finds. Raises ArmFailedError if it is not there."""
    found = pattern.search(page)
    if found is None:
        raise ArmFailedError(f"the metrics page lacks {pattern.pattern}")
    return float(found[1])


def command_line(factor: float, *, render: bool) -> list[str]:
    """How the servers are started. Answers come in two pieces: single tokens would be most of the CPU's work."""
    return [
        *EXTPROC,
        "vllm-sim",
        *("--count", str(SERVERS), "--port", "0", "--model", MODEL),
        *("--slow-factor", str(factor), "--stream-interval", "1000000"),
        *(["--render"] if render else []),
        *("--log-level", "warning"),
    ]


def start_fleet(folder: Path, factor: float, *, render: bool) -> ServerFleet:
    """Start the servers, `factor` times slower than their preset. `render`: they answer render calls.

    Raises:
        ArmFailedError: they do not come up.
    """
    process = start("servers", command_line(factor, render=render), folder, with_project_on_path())
    try:
        ports: list[int] = []

        def listening() -> bool:
            ports[:] = [int(port) for port in _LISTENS.findall(process.log.read_text())]
            return len(ports) == SERVERS and all(gives_200(port, "/health") for port in ports)

        wait_until("the simulated servers listen", listening, [process])
    except BaseException:
        process.ask_to_stop()
        process.stop()
        raise
    return ServerFleet(process, tuple(ports))
