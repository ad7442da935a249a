"""What is kept of each cell, and how does an interrupted run go on?"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.routing.client import Outcome


@dataclass(frozen=True, slots=True)
class Cell:
    """What to measure."""

    workload: str
    arm: str
    seed: int
    seconds: float  # of arrivals, in the workload's time
    factor: float  # real seconds to one of the workload

    @property
    def expected_s(self) -> float:
        """Real seconds that it will about take: arrivals, the last answers, starting and stopping."""
        return (self.seconds + 4) * self.factor + 5


@dataclass(frozen=True, slots=True)
class Row:
    """One cell: a workload, an arm, a seed. Times are the workload's, in seconds, unless they are called real."""

    workload: str
    arm: str
    seed: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    hit_ratio: float  # prompt tokens found in the servers' prefix caches
    max_over_mean: float  # requests of the busiest server over the mean of all
    output_tok_s: float  # tokens of answers, from the first arrival to the last answer
    errors: int  # requests without a whole answer, unfinished ones included
    unfinished: int  # given up at the end; their waiting time counts as time to first token
    requests: int
    seconds: float  # of arrivals
    factor: float  # real seconds to one of the workload
    real_s: float  # the whole cell, starts and stops included
    late_p99_s: float  # how long after they were due requests were sent
    cpu_ratio: float  # of all cores, while measured: servers, arm and clients
    cpu_servers_ratio: float
    cpu_arm_ratio: float
    cpu_clients_ratio: float
    cpu_others_ratio: float = 0.0  # by processes that are no part of the benchmark
    at_once: int = 1  # cells that ran side by side, this one included
    note: str = ""  # what was wrong with the cell; empty: nothing

    @property
    def key(self) -> tuple[str, str, int]:
        return self.workload, self.arm, self.seed


def percentile(ordered: Sequence[float], ratio: float) -> float:
    """The smallest value that at least `ratio` of all do not exceed. `ordered` ascends and is not empty."""
    return ordered[max(0, math.ceil(ratio * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Times:
    """What the clients of one cell saw, together."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    late_p99_s: float
    output_tok_s: float
    errors: int
    unfinished: int

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], first_at_s: float) -> Times:
        """Raises ValueError when no request got a first token."""
        ttfts = sorted(each.ttft_s for each in outcomes if each.ttft_s is not None)
        if not ttfts:
            problems = sorted({each.error for each in outcomes if each.error})
            raise ValueError(f"none of {len(outcomes)} requests got a first token: {'; '.join(problems)[:500]}")
        ended_s = max(each.ended_at_s for each in outcomes)
        return cls(
            mean_s=statistics.fmean(ttfts),
            p50_s=percentile(ttfts, 0.5),
            p90_s=percentile(ttfts, 0.9),
            p99_s=percentile(ttfts, 0.99),
            late_p99_s=percentile(sorted(each.late_s for each in outcomes), 0.99),
            output_tok_s=sum(each.answer_tokens for each in outcomes) / (ended_s - first_at_s),
            errors=sum(each.error is not None for each in outcomes),
            unfinished=sum(each.unfinished for each in outcomes),
        )


class Store:
    """The rows of a run in a file, written anew after each cell."""

    def __init__(self, path: Path, rows: Sequence[Row] = ()) -> None:
        self.path = path
        self._rows = {row.key: row for row in rows}

    @classmethod
    def resumed(cls, path: Path) -> Store:
        """What an earlier run left.

        Raises:
            ValueError: the file is not one of this benchmark's.
        """
        if not path.exists():
            return cls(path)
        try:
            return cls(path, [Row(**each) for each in json.loads(path.read_text())])
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: cannot go on from it ({error}); start without --resume") from None

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def has(self, cell: Cell) -> bool:
        """Whether this cell is there, of the same length and factor, and nothing was wrong with it."""
        row = self._rows.get((cell.workload, cell.arm, cell.seed))
        return row is not None and (row.seconds, row.factor, row.note) == (cell.seconds, cell.factor, "")

    def add(self, row: Row) -> None:
        """Take a row in, in the place of an older one of the same cell, and write the file."""
        self._rows[row.key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps([dataclasses.asdict(each) for each in self._rows.values()], indent=1) + "\n")
        part.replace(self.path)
