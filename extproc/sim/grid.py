"""Which runs make up a comparison: workloads x fleet sizes x seeds x policies?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from extproc.sim.fleet import run
from extproc.sim.policies import POLICIES
from extproc.sim.report import Cell, cell_of
from extproc.sim.spec import A100_8B, CPU_TINY, EngineSpec
from extproc.sim.workloads import SLOW_SERVERS, Fleet, draw

# "instant" has no capacity that a workload could fill.
ENGINES: dict[str, EngineSpec] = {"a100-8b": A100_8B, "cpu-tiny": CPU_TINY}
_SLOW_FACTOR = 2.0  # of the workloads that have slow servers


@dataclass(frozen=True, slots=True)
class Grid:
    """What to run. Names are keys of WORKLOADS, POLICIES and ENGINES; every other name is a KeyError in `cells`."""

    workloads: Sequence[str]
    policies: Sequence[str] = tuple(POLICIES)
    servers: Sequence[int] = (8,)
    seeds: Sequence[int] = (1,)
    seconds: float = 60.0  # arrivals are drawn for so long
    engine: str = "a100-8b"
    slow_factor: float | None = None  # the first server is so much slower; None: as the workload has it
    full_bodies: bool = False

    @property
    def size(self) -> int:
        """How many runs."""
        return len(self.workloads) * len(self.policies) * len(self.servers) * len(self.seeds)

    def specs(self, workload: str, servers: int) -> list[EngineSpec]:
        """The engines of a fleet."""
        spec = ENGINES[self.engine]
        slow, factor = SLOW_SERVERS.get(workload, 0), _SLOW_FACTOR
        if self.slow_factor is not None:
            slow, factor = 1, self.slow_factor
        return [spec.slowed(factor) if n < slow else spec for n in range(servers)]


@dataclass(frozen=True, slots=True)
class Starting:
    """The next run."""

    number: int  # from 0
    workload: str
    policy: str
    servers: int
    seed: int
    requests: int


def cells(
    grid: Grid,
    *,
    starting: Callable[[Starting], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[Cell]:
    """Do the runs, one after the other. All policies of a workload, size and seed meet the same arrivals.

    `starting` is told of each run before it begins, `progress` of its requests that have ended, and all.

    Raises:
        ValueError: a workload does not fit the engine, or has no arrivals in so short a time.
    """
    number = 0
    for servers in grid.servers:
        for workload in grid.workloads:
            specs = grid.specs(workload, servers)
            for seed in grid.seeds:
                arrivals = draw(workload, seed, Fleet.of(ENGINES[grid.engine], servers), grid.seconds)
                if not arrivals:
                    raise ValueError(f"{workload}: nothing arrives within {grid.seconds:g} s; make it longer")
                for policy in grid.policies:
                    if starting:
                        starting(Starting(number, workload, policy, servers, seed, len(arrivals)))
                    try:
                        result = run(
                            arrivals,
                            specs,
                            POLICIES[policy],
                            seed=seed,
                            full_bodies=grid.full_bodies,
                            progress=progress,
                        )
                    except ValueError as error:
                        raise ValueError(f"{workload} on {grid.engine}: {error}") from None
                    yield cell_of(workload, policy, seed, result)
                    number += 1


def names(words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names as a user gives them: in any case, each once, `all` for all. Raises KeyError with an unknown one."""
    by_lower = {name.lower(): name for name in known}
    out: dict[str, None] = {}
    for word in words:
        if word.lower() == "all":
            out.update(dict.fromkeys(known))
        else:
            try:
                out[by_lower[word.lower()]] = None
            except KeyError:
                raise KeyError(word) from None
    return list(out)
