"""How is one cell measured? One workload, one seed, one arm, with servers and routers that have seen nothing before."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.common import machine
from bench.common.process import Process, wait_until
from bench.routing.arms import Arm, complaints, renders, start_arm
from bench.routing.client import Outcome, replay
from bench.routing.fleet import Counters, ServerFleet, start_fleet
from bench.routing.requests import SERVERS, ChatRequest, warm_up
from bench.routing.results import Cell, Row, Times
from extproc.sim.workloads import SLOW_SERVERS

WARM_UP_REQUESTS = 4 * SERVERS
PATIENCE_S = 60.0  # of the workload's time after the last arrival, then what is open is given up


def measure(
    cell: Cell, requests: Sequence[ChatRequest], folder: Path, envoy_binary: str, wait_for_start: Callable[[], None]
) -> Row:
    """Start all, send all, stop all. `wait_for_start` is called when the first request could be sent.

    Raises:
        ArmFailedError: something did not start or died.
        ValueError: no request was answered.
    """
    began_s = time.monotonic()
    fleet = start_fleet(folder, cell.factor, render=renders(cell.arm))
    try:
        if cell.workload in SLOW_SERVERS:
            fleet.slow_down(SLOW_SERVERS[cell.workload], 2 * cell.factor)
        arm = start_arm(cell.arm, folder, fleet.ports, envoy_binary)
        try:
            outcomes, before, after, load, wrong = _send_all(cell, requests, arm, fleet, wait_for_start)
        finally:
            arm.stop()
    finally:
        fleet.process.ask_to_stop()
        fleet.process.stop()
    times = Times.of(outcomes, requests[0].at_s)
    served = [now - then for now, then in zip(after.requests, before.requests, strict=True)]
    queries = sum(after.prefix_queries) - sum(before.prefix_queries)
    errors = sorted({each.error for each in outcomes if each.error})
    if errors:
        wrong = [*wrong, f"{times.errors} errors, such as: {errors[0]}"]
    return Row(
        workload=cell.workload,
        arm=cell.arm,
        seed=cell.seed,
        ttft_mean_s=round(times.mean_s, 5),
        ttft_p50_s=round(times.p50_s, 5),
        ttft_p90_s=round(times.p90_s, 5),
        ttft_p99_s=round(times.p99_s, 5),
        hit_ratio=round((sum(after.prefix_hits) - sum(before.prefix_hits)) / queries, 4) if queries else 0.0,
        max_over_mean=round(max(served) * len(served) / sum(served), 3),
        output_tok_s=round(times.output_tok_s, 1),
        errors=times.errors,
        unfinished=times.unfinished,
        requests=len(requests),
        seconds=cell.seconds,
        factor=cell.factor,
        real_s=round(time.monotonic() - began_s, 2),
        late_p99_s=round(times.late_p99_s, 5),
        cpu_ratio=round(load.servers + load.arm + load.clients, 4),
        cpu_servers_ratio=round(load.servers, 4),
        cpu_arm_ratio=round(load.arm, 4),
        cpu_clients_ratio=round(load.clients, 4),
        note="; ".join(wrong),
    )


def _send_all(
    cell: Cell, requests: Sequence[ChatRequest], arm: Arm, fleet: ServerFleet, wait_for_start: Callable[[], None]
) -> tuple[list[Outcome], Counters, Counters, _Load, list[str]]:
    processes = (fleet.process, *arm.processes)

    def idle() -> bool:
        return fleet.counters().busy == 0

    asyncio.run(replay(arm.port, warm_up(WARM_UP_REQUESTS), cell.factor, PATIENCE_S))
    wait_until("the warm-up is over", idle, processes)
    wait_for_start()
    before, counts, meter = fleet.counters(), arm.counts(), _Meter.read(fleet.process, arm.processes)
    outcomes = asyncio.run(replay(arm.port, requests, cell.factor, PATIENCE_S))
    load = meter.until(_Meter.read(fleet.process, arm.processes))
    after = fleet.counters()
    for process in processes:
        process.check_alive()
    wrong = complaints(counts, arm.counts(), len(requests))
    return outcomes, before, after, load, wrong


@dataclass(frozen=True, slots=True)
class _Load:
    """Shares of all cores."""

    servers: float
    arm: float
    clients: float


@dataclass(frozen=True, slots=True)
class _Meter:
    """CPU seconds so far."""

    servers: float
    arm: float
    clients: float  # this process
    at_s: float
    cores: int

    @classmethod
    def read(cls, servers: Process, arm: Sequence[Process]) -> _Meter:
        own = resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            servers=servers.cpu_s(),
            arm=sum(process.cpu_s() for process in arm),
            clients=own.ru_utime + own.ru_stime,
            at_s=time.monotonic(),
            cores=machine.cores(),
        )

    def until(self, later: _Meter) -> _Load:
        capacity_s = (later.at_s - self.at_s) * self.cores
        servers, arm, clients = later.servers - self.servers, later.arm - self.arm, later.clients - self.clients
        return _Load(servers / capacity_s, arm / capacity_s, clients / capacity_s)
