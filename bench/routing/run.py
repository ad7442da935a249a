"""In what order are the cells run, and which of them side by side?

Seeds > workloads > arms: an interrupted run has whole seeds. The arms of one workload and seed follow each other
directly, in an order rotated by the seed. Most cells take a few per cent of two cores; of those, several arms run side
by side, each with servers of its own, and start at the same moment. It makes the run several times shorter without
compressing time, which would change what routers that poll or flush by the clock see.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.common.machine import parse_machine_cpu
from bench.common.process import Process, start, wait_until, with_project_on_path
from bench.routing.results import Cell, Row

_STOP_S = 15.0  # for a worker to end what it has started


@dataclass(frozen=True, slots=True)
class Timing:
    """How a workload is run by default."""

    seconds: float  # of arrivals
    at_once: int  # arms side by side


# One cell alone was measured to take 11 to 28 % of two cores with W3 and W1h (50 to 60 requests a second), and 1 to 8
# % with the others: two, five or ten side by side leave half of the machine idle. Ten only where first tokens take
# most of a second and more, so that a millisecond of waiting for the processor is nothing. Two where a millisecond
# decides: what goes through three processes waits for one of two processors more often than what goes through two. With
# five arms W2's median was 1.4 ms higher through Envoy and the service than through Envoy alone, with three it was not
# (three pairs). Lengths: what the rarest event of interest needs (an agent's whole run), within some hours for three
# seeds. W1 and W1z are longer: in a minute 6.5 % of the requests are the first for their document and 3.5 % come while
# one is computed, so the p90 stood at that cliff and was chance, 54 to 322 ms over 24 seeds of the simulation.
TIMINGS = {
    "W1": Timing(120, 2),
    "W1z": Timing(120, 2),
    "W1h": Timing(60, 2),
    "W2": Timing(60, 2),
    "W3": Timing(40, 2),
    "W4": Timing(60, 10),
    "W5": Timing(60, 10),
    "W6": Timing(60, 10),
    "W8": Timing(60, 10),
    "W9": Timing(60, 2),
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Cells that run side by side: one workload, one seed, several arms."""

    cells: tuple[Cell, ...]

    @property
    def expected_s(self) -> float:
        return max(cell.expected_s for cell in self.cells) + 0.5 * len(self.cells)


@dataclass(frozen=True, slots=True)
class Finished:
    """What has become of a batch: a row, or the reason why there is none, for each cell."""

    rows: tuple[Row, ...]
    failures: tuple[tuple[Cell, str], ...]


def batches(
    workloads: Sequence[str],
    arms: Sequence[str],
    seeds: Sequence[int],
    *,
    seconds: float | None,
    factor: float,
    at_once: int | None,
    done: Sequence[Cell] = (),
) -> Iterator[Batch]:
    """All cells that are not `done`, in order. `seconds` and `at_once` None: each workload's default."""
    for seed in seeds:
        for workload in workloads:
            timing = TIMINGS[workload]
            turn = seed % len(arms)
            cells = [
                Cell(workload, arm, seed, seconds or timing.seconds, factor) for arm in (*arms[turn:], *arms[:turn])
            ]
            cells = [cell for cell in cells if cell not in done]
            size = at_once or timing.at_once
            # Even batches: 6 arms by 5 are 3 and 3, so that no arm is alone while the others share.
            count = -(-len(cells) // size)
            for index in range(count):
                yield Batch(tuple(cells[index * len(cells) // count : (index + 1) * len(cells) // count]))


class Runner:
    """Runs batches in folders below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def run(self, batch: Batch) -> Finished:
        """Run the cells side by side. However it ends, what was started is stopped."""
        folders: dict[Cell, Path] = {}
        workers: dict[Cell, Process] = {}
        try:
            for cell in batch.cells:
                self._number += 1
                folders[cell] = folder = self._folder / f"{self._number}-{cell.workload}-{cell.arm}"
                folder.mkdir()
                (folder / "cell.json").write_text(json.dumps(dataclasses.asdict(cell)))
                command = [sys.executable, "-m", "bench.routing.worker", str(folder)]
                workers[cell] = start("worker", command, folder, with_project_on_path())
            running = list(workers.values())
            wait_until(
                "the arms start",
                lambda: all((folders[cell] / "ready").exists() or _ended(workers[cell]) for cell in batch.cells),
                (),
                timeout_s=120,
            )
            meter = _Meter.read(running)
            for folder in folders.values():
                (folder / "go").touch()
            longest_s = max(cell.expected_s + 60 * cell.factor for cell in batch.cells) + 120
            wait_until("the arms end", lambda: all(_ended(worker) for worker in running), (), timeout_s=longest_s)
            others = meter.others_until(_Meter.read(running))
        finally:
            for worker in workers.values():
                worker.ask_to_stop()
            for worker in workers.values():
                worker.stop(_STOP_S)
        return _gather(batch, folders, workers, others)


def _gather(batch: Batch, folders: dict[Cell, Path], workers: dict[Cell, Process], others: float) -> Finished:
    rows: list[Row] = []
    failures: list[tuple[Cell, str]] = []
    for cell in batch.cells:
        result, failed = folders[cell] / "row.json", folders[cell] / "failed.txt"
        if result.exists():
            row = Row(**json.loads(result.read_text()))
            rows.append(dataclasses.replace(row, cpu_others_ratio=round(others, 4), at_once=len(batch.cells)))
        else:
            failures.append((cell, failed.read_text() if failed.exists() else workers[cell].log_tail()))
    return Finished(tuple(rows), tuple(failures))


def _ended(worker: Process) -> bool:
    """Whether it has exited; it stays a zombie, whose CPU time can be read, until it is stopped."""
    try:
        return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@dataclass(frozen=True, slots=True)
class _Meter:
    """CPU seconds so far."""

    ours: float
    machine: float
    at_s: float
    cores: int

    @classmethod
    def read(cls, workers: Sequence[Process]) -> _Meter:
        own = resource.getrusage(resource.RUSAGE_SELF)
        machine, cores = parse_machine_cpu(Path("/proc/stat").read_text())
        return cls(
            ours=own.ru_utime + own.ru_stime + sum(worker.cpu_s() for worker in workers),
            machine=machine,
            at_s=time.monotonic(),
            cores=cores,
        )

    def others_until(self, later: _Meter) -> float:
        """The share of all cores that processes outside the benchmark took."""
        spent = later.machine - self.machine - (later.ours - self.ours)
        return max(0.0, spent) / ((later.at_s - self.at_s) * self.cores)
