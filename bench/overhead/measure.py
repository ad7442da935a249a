"""In what order is measured, and what does one window give?

Rounds > cells (size, concurrency) > arms: the arms of one cell follow each other within seconds, so a slow minute of
the machine hits them all. Reported is the median over rounds.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.common.machine import parse_machine_cpu
from bench.common.process import ArmFailedError, Process
from bench.overhead.arms import PROFILES, Arm, Servers, check_picks
from bench.overhead.load import run_load


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One size of body at one number of connections."""

    body_kb: int
    concurrency: int


@dataclass(frozen=True, slots=True)
class Window:
    """One arm, one cell, one round. CPU times are per request; None where the arm has no such process."""

    rps: float
    p50_ms: float
    p99_ms: float
    service_cpu_us: float | None
    envoy_cpu_us: float | None
    servers_cpu_us: float
    client_cpu_us: float
    other_cpu_ratio: float  # of all cores, taken by processes that are no part of the benchmark
    server_requests: float  # requests that reached the servers, per request sent (probes and scrapes included)
    served: tuple[int, ...]  # answers by server
    without_pick: int


@dataclass(frozen=True, slots=True)
class Row:
    """The medians over rounds, as they stand in overhead.json."""

    arm: str
    body_kb: int
    concurrency: int
    rps: float
    p50_ms: float
    p99_ms: float
    service_cpu_us: float | None
    envoy_cpu_us: float | None


@dataclass(slots=True)
class Measurements:
    """All windows by arm and cell, and the arms that failed with their reasons."""

    windows: dict[tuple[str, Cell], list[Window]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        return [median_row(arm, cell, windows) for (arm, cell), windows in self.windows.items()]


def median_row(arm: str, cell: Cell, windows: Sequence[Window]) -> Row:
    """Each column's median by itself."""

    def median(values: list[float]) -> float:
        return float(f"{statistics.median(values):.4g}")

    def median_or_none(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    return Row(
        arm=arm,
        body_kb=cell.body_kb,
        concurrency=cell.concurrency,
        rps=median([window.rps for window in windows]),
        p50_ms=median([window.p50_ms for window in windows]),
        p99_ms=median([window.p99_ms for window in windows]),
        service_cpu_us=median_or_none([window.service_cpu_us for window in windows]),
        envoy_cpu_us=median_or_none([window.envoy_cpu_us for window in windows]),
    )


@dataclass(frozen=True, slots=True)
class Plan:
    cells: tuple[Cell, ...]
    rounds: int
    seconds: int
    bodies: dict[int, Path]  # by size in KB
    script: Path
    probe_body: bytes


def measure(plan: Plan, arms: Sequence[Arm], servers: Servers, step: Callable[[str], object]) -> Measurements:
    """Measure every arm in every cell. All arms are frozen when this begins and when it ends.

    An arm that fails is left out from then on and named in `failures`; the others go on.
    `step` is told what comes next, once before each window.
    """
    result = Measurements()
    running = list(arms)
    for number in range(1, plan.rounds + 1):
        for cell in plan.cells:
            for arm in list(running):
                step(f"round {number} of {plan.rounds}: {cell.body_kb} KB, concurrency {cell.concurrency}, {arm.name}")
                try:
                    window = _measure_one(plan, cell, arm, servers, warm_up=number == 1)
                except ArmFailedError as error:
                    result.failures[arm.name] = str(error)
                    running.remove(arm)
                else:
                    result.windows.setdefault((arm.name, cell), []).append(window)
                finally:
                    arm.freeze()
    return result


def _measure_one(plan: Plan, cell: Cell, arm: Arm, servers: Servers, *, warm_up: bool) -> Window:
    arm.thaw(plan.probe_body)

    def load(seconds: int) -> LoadWithCpu:
        meter = _Meter.read(arm, servers)
        result = run_load(
            arm.name, arm.port, plan.bodies[cell.body_kb], cell.body_kb * 1024, cell.concurrency, seconds, plan.script
        )
        return LoadWithCpu(result.requests, result.rps, result.p50_ms, result.p99_ms, meter, _Meter.read(arm, servers))

    if warm_up:
        load(1)
    picks, served, refused = arm.picks(), servers.answered(), servers.refused()
    done = load(plan.seconds)
    time.sleep(0.05)  # the load generator hangs up on requests in flight; let Envoy count them
    for process in arm.processes:
        process.check_alive()
    without_pick = 0
    if picks:
        without_pick = check_picks(arm.name, picks, arm.picks(), done.requests)
    # A router may poll for load on paths that vLLM does not have either; requests must not end that way.
    if (unknown := servers.refused() - refused) * 100 > done.requests:
        raise ArmFailedError(f"{arm.name}: the servers refused {unknown} requests, of {done.requests} sent")
    shares = tuple(after - before for after, before in zip(servers.answered(), served, strict=True))
    # Bodies come again and again; where prompts are remembered each goes where it went first, and one of the servers
    # may have few of the 48 large ones.
    least = 1 if PROFILES.get(arm.name) == "cache-aware" else done.requests / (20 * len(shares))
    if picks and min(shares) < least:
        raise ArmFailedError(f"{arm.name}: the load was not spread over all servers: {shares} answers")
    return done.window(shares, without_pick)


@dataclass(frozen=True, slots=True)
class _Meter:
    """CPU seconds so far."""

    service: float | None
    envoy: float | None
    servers: float
    children: float  # the benchmark's own ended children: the load generator
    own: float  # the benchmark itself
    machine: float  # all processes, all cores
    at_s: float
    cores: int

    @classmethod
    def read(cls, arm: Arm, servers: Servers) -> _Meter:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = resource.getrusage(resource.RUSAGE_SELF)
        machine, cores = parse_machine_cpu(Path("/proc/stat").read_text())
        return cls(
            service=_cpu_s(arm.service),
            envoy=_cpu_s(arm.envoy),
            servers=servers.process.cpu_s(),
            children=ended.ru_utime + ended.ru_stime,
            own=own.ru_utime + own.ru_stime,
            machine=machine,
            at_s=time.monotonic(),
            cores=cores,
        )


@dataclass(frozen=True, slots=True)
class LoadWithCpu:
    """A load result between two readings of the CPU meters."""

    requests: int
    rps: float
    p50_ms: float
    p99_ms: float
    before: _Meter
    after: _Meter

    def window(self, served: tuple[int, ...], without_pick: int) -> Window:
        before, after = self.before, self.after
        service = _difference(after.service, before.service)
        envoy = _difference(after.envoy, before.envoy)
        servers = after.servers - before.servers
        client = after.children - before.children
        ours = (service or 0.0) + (envoy or 0.0) + servers + client + after.own - before.own
        other = (after.machine - before.machine - ours) / ((after.at_s - before.at_s) * after.cores)
        return Window(
            rps=self.rps,
            p50_ms=self.p50_ms,
            p99_ms=self.p99_ms,
            service_cpu_us=None if service is None else service / self.requests * 1e6,
            envoy_cpu_us=None if envoy is None else envoy / self.requests * 1e6,
            servers_cpu_us=servers / self.requests * 1e6,
            client_cpu_us=client / self.requests * 1e6,
            other_cpu_ratio=max(0.0, other),
            server_requests=sum(served) / self.requests,
            served=served,
            without_pick=without_pick,
        )


def _cpu_s(process: Process | None) -> float | None:
    return None if process is None else process.cpu_s()


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
