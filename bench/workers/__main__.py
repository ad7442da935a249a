"""`python -m bench.workers`: several processes against one, in virtual time; writes docs/benchmarks/workers.md.

Like bench.simulated it measures nothing on the machine: its figures are the same everywhere. About a minute of one
core. Exit code 1: a workload of the musts loses more than it may.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.common.page import write
from bench.workers.policy import shared
from extproc.sim import fleet
from extproc.sim.grid import ENGINES
from extproc.sim.policies import POLICIES, Maker, Site
from extproc.sim.workloads import Fleet, draw
from extproc.workers.timing import FLUSH_S

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "workers.md"
SERVERS = 8
SECONDS = 150.0
SEEDS = (1, 2, 3)
HOP_S = 0.001
MOST_LOST = 0.05
MUSTS = ("W1", "W6")  # at 2 and 4 workers
_WHAT = {
    "W1": "40 documents, asked evenly",
    "W6": "bursts of 16 requests within 50 ms that share a prefix nobody has seen",
}


@dataclass(frozen=True, slots=True)
class Arm:
    """Some routers, and how long it takes until one knows what another did. None: it never does."""

    name: str
    routers: int
    hop_s: float | None
    other_draws: bool = False  # the lots among equal servers fall otherwise: how far chance goes


ARMS = (
    Arm("1 process", 1, HOP_S),
    Arm("1 process, other lots", 1, HOP_S, other_draws=True),
    Arm("2 workers", 2, HOP_S),
    Arm("4 workers", 4, HOP_S),
    Arm("8 workers", 8, HOP_S),
    Arm("4 workers, 50 ms", 4, 0.050),
    Arm("4 workers that tell each other nothing", 4, None),
)
JUDGED = ("2 workers", "4 workers")


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave. Times in seconds, to the first token."""

    workload: str
    arm: str
    seed: int
    requests: int
    mean_s: float
    p90_s: float
    hit_ratio: float
    left: int  # in flight when all is over; 0 if the account is right in every router


def run(workload: str, arm: Arm, seed: int, seconds: float = SECONDS) -> Run:
    spec = ENGINES["a100-8b"]
    arrivals = draw(workload, seed, Fleet.of(spec, SERVERS), seconds)
    maker: Maker = shared(arm.routers, arm.hop_s) if arm.routers > 1 else POLICIES["cache-aware"]
    result = fleet.run(arrivals, [spec] * SERVERS, _drawn_otherwise(maker) if arm.other_draws else maker, seed=seed)
    waits = sorted(result.ttft_s)
    return Run(
        workload,
        arm.name,
        seed,
        len(waits),
        sum(waits) / len(waits),
        waits[int(0.9 * len(waits))],
        result.cached_tokens / result.prompt_tokens,
        result.in_flight_left,
    )


def _drawn_otherwise(maker: Maker) -> Maker:
    def made(site: Site) -> object:
        site.rng.random()
        return maker(site)

    return made  # type: ignore[return-value]


def means(runs: list[Run], workload: str) -> Mapping[str, tuple[float, float, float]]:
    """By arm, over the seeds: mean and p90 in seconds, hit ratio."""
    out = {}
    for arm in ARMS:
        of = [each for each in runs if each.workload == workload and each.arm == arm.name]
        if of:
            out[arm.name] = (
                sum(each.mean_s for each in of) / len(of),
                sum(each.p90_s for each in of) / len(of),
                sum(each.hit_ratio for each in of) / len(of),
            )
    return out


def lost(runs: list[Run], workload: str) -> dict[str, float]:
    """By arm: how much more the mean is than that of one process; 0.05 is 5 %."""
    found = means(runs, workload)
    one = found[ARMS[0].name][0]
    return {name: mean_s / one - 1.0 for name, (mean_s, _, _) in found.items()}


def page(runs: list[Run]) -> Iterator[str]:
    yield "# Several processes against one, simulated\n"
    yield (
        "**This is simulation, not measurement.** Made by `python -m bench.workers`: the routers that pick in service"
        " (`extproc.router.Router`) and what they tell each other (`extproc.workers.sharing`), over simulated engines"
        " in virtual time. The same seeds give the same figures on any machine.\n"
    )
    yield (
        f"{SERVERS} servers of the engine `a100-8b`, {SECONDS:g} s of arrivals, means over seeds"
        f" {', '.join(map(str, SEEDS))}. Requests come to the workers in turn. What one has to tell waits"
        f" {FLUSH_S * 1000:g} ms for more, and is then {HOP_S * 1000:g} ms on its way to each other one, unless the row"
        " says otherwise; in service `/status` tells how long it really takes (`workers[].lag_s`). Envoy's access log"
        " comes to any of them. What else is assumed is told [with the other simulations](simulated.md).\n"
    )
    for workload in _WHAT:
        found = means(runs, workload)
        if not found:
            continue
        against = lost(runs, workload)
        requests = [each.requests for each in runs if each.workload == workload]
        yield f"## {workload}: {_WHAT[workload]}\n"
        yield f"About {sum(requests) / len(requests):,.0f} requests a run. Times to the first token in ms.\n"
        yield "| | mean | against 1 process | p90 | hits |\n|---|--:|--:|--:|--:|"
        for name, (mean_s, p90_s, hits) in found.items():
            yield f"| {name} | {mean_s * 1000:.1f} | {against[name]:+.1%} | {p90_s * 1000:.0f} | {hits:.1%} |"
        yield ""
    yield (
        "*Other lots* is one process again, whose draws among equal servers fall otherwise: so far goes chance in these"
        " figures. In no run anything was left in flight in any router.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes to run at once (2)")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs) as pool:
        work = [pool.submit(run, workload, arm, seed) for workload in _WHAT for arm in ARMS for seed in SEEDS]
        runs = []
        for future in work:
            runs.append(each := future.result())
            print(f"{each.workload}, {each.arm}, seed {each.seed}: mean {each.mean_s * 1000:.1f} ms", flush=True)
    leftovers = [each for each in runs if each.left]
    if leftovers:
        sys.exit(f"something is left in flight: {leftovers}")
    write(options.out, "\n".join(page(runs)))
    print(f"wrote {options.out}")
    missed = [
        f"{workload}, {name}: {value:+.1%}"
        for workload in MUSTS
        for name, value in lost(runs, workload).items()
        if name in JUDGED and value > MOST_LOST
    ]
    if missed:
        sys.exit(f"more than {MOST_LOST:.0%} is lost: " + "; ".join(missed))


if __name__ == "__main__":
    main()
