"""`python -m bench.simulated`: every profile and baseline in virtual time; writes docs/benchmarks/simulated.md.

Unlike the other benchmarks this one measures nothing on the machine: its figures are the same everywhere. Only the time
it takes differs, and is told. About 15 minutes of one core.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from extproc.sim import fleet
from extproc.sim.grid import ENGINES, Grid, cells
from extproc.sim.plot import draw
from extproc.sim.policies import POLICIES
from extproc.sim.report import Cell, markdown, tables
from extproc.sim.workloads import SLOW_SERVERS, WORKLOADS, Fleet

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks" / "simulated.md"
_LARGE = ("W1z", "W2", "W3")
_KNOWN_SESSION_OR_LESS = ("least-loaded", "session", "prefix-hash", "cache-aware", "round-robin", "ring-hash")
PARTS = (
    Grid(tuple(WORKLOADS), seeds=(1, 2, 3)),
    Grid(_LARGE, servers=(64,), seconds=30.0),
    Grid(_LARGE, _KNOWN_SESSION_OR_LESS, servers=(256,), seconds=20.0),
)
_WHAT = {
    "W1": "40 documents, asked evenly, at 0.9 of the fleet's uncached capacity",
    "W1z": "the same, asked by Zipf's law",
    "W1h": "W1 at 4.5 times the uncached capacity, near what the fleet can do with all documents cached",
    "W2": "chats of 4 to 12 turns",
    "W3": "one system prompt of 4,000 tokens for all, about 800 tokens of one's own",
    "W4": "8 to 32 thousand tokens in, one out, nothing shared",
    "W5": "nothing shared, 50 to 8,000 tokens in",
    "W6": "bursts of 16 requests that share a prefix nobody has seen",
    "W8": "W5 with one server at half speed",
    "W9": "agents with tools, 10 to 30 calls a run",
}


@dataclass(frozen=True, slots=True)
class Done:
    """The runs of one workload, fleet and seed."""

    cells: list[Cell]
    cpu_s: float


def _work(grid: Grid) -> Done:
    began_s = time.process_time()
    return Done(list(cells(grid)), time.process_time() - began_s)


def _pieces(grid: Grid) -> Iterator[Grid]:
    """The same runs, so that several processes can share them."""
    for servers in grid.servers:
        for workload in grid.workloads:
            for seed in grid.seeds:
                yield replace(grid, workloads=(workload,), servers=(servers,), seeds=(seed,))


def _page(parts: Sequence[tuple[Grid, list[Done]]]) -> str:
    rate = Fleet.of(ENGINES["a100-8b"], 1).prefill_tokens_per_s
    out = [
        "# Routing in simulation\n",
        "**This is simulation, not measurement.** The router that picks in service (`extproc.router.Router`) and"
        " simpler policies choose among simulated vLLM engines in virtual time. The figures compare policies under"
        " the model's assumptions; they promise nothing about your hardware. Made by `python -m bench.simulated`; each"
        " row can be had from [`extproc simulate`](../simulate.md), and the same seeds give the same figures on any"
        " machine.\n",
        "## What the figures rest on\n",
        "- Engine `a100-8b` (`extproc/sim/spec.py`): an 8-billion-parameter model on a card with 80 GB. Its step times"
        " are **reckoned from the card's bandwidth and arithmetic, not measured**; the file derives each. A server"
        f" computes about {rate:,.0f} prompt tokens a second. Scheduling, prefix cache and metrics follow vLLM's V1"
        " rules ([simulator](../simulator.md)).",
        f"- Assumed: {fleet.HOP_S * 1000:.0f} ms from a pick to the engine, {fleet.SCRAPE_S * 1000:.0f} ms to read a"
        f" metrics page. As shipped: pages are read every 0.5 s, the access log comes every {fleet.FLUSH_S:g} s.",
        "- The router's settings are the service's defaults. Prompts are handed to it as block hashes (`--full-bodies`"
        " would have it read them); it is told no answer in advance.",
        "- Time to first token is from the arrival at the router, over the whole run, cold caches included; `answer` is"
        " the mean to the end of the answer. `hits`: prompt tokens found in the engines' caches. `share`: requests of"
        " the server that got most, over the mean. `tokens/s`: answer tokens until the last answer has ended. The best"
        " of a column is bold.",
        "- Without session ids `session` picks as `least-loaded` does, and `ring-hash` as `random`. `clairvoyant-load`"
        " sees at once which prompts are computed, which no router can; it is blind to caches.\n",
    ]
    for grid, done in parts:
        out += _part(grid, done)
    return "\n".join(out)


def _part(grid: Grid, done: list[Done]) -> Iterable[str]:
    (servers,) = grid.servers
    seeds = "seed 1" if len(grid.seeds) == 1 else f"means over seeds {', '.join(map(str, grid.seeds))}"
    yield f"## {servers} servers, {grid.seconds:g} s, {seeds}\n"
    if servers == 8:
        yield "![Part of the requests that waits longer, by workload](simulated.png)\n"
    all_cells = [cell for each in done for cell in each.cells]
    for (workload, _), table in tables(all_cells).items():
        slow = " (the first server takes twice as long)" if workload in SLOW_SERVERS else ""
        requests = [cell.requests for cell in all_cells if cell.workload == workload]
        yield f"### {workload}: {_WHAT[workload]}{slow}\n"
        yield f"About {sum(requests) / len(requests):,.0f} requests. Times in ms.\n"
        yield markdown(table)
    runs, cpu_s = len(all_cells), sum(each.cpu_s for each in done)
    requests_in_all = sum(cell.requests for cell in all_cells)
    yield (
        f"These {runs} runs took {cpu_s:,.0f} s of CPU on Python {platform.python_version()}:"
        f" {cpu_s / runs:.1f} s a run, {cpu_s / requests_in_all * 1000:.1f} ms a request.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes to run at once (2)")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page; the chart is put beside it")
    options = parser.parse_args()
    assert set(_WHAT) == set(WORKLOADS)
    assert set(_KNOWN_SESSION_OR_LESS) <= set(POLICIES)
    parts = []
    with ProcessPoolExecutor(options.jobs) as pool:
        # The large fleets first, so that at the end no process is left alone with one of them.
        work = {grid: [(piece, pool.submit(_work, piece)) for piece in _pieces(grid)] for grid in reversed(PARTS)}
        for grid in PARTS:
            done = []
            for piece, future in work[grid]:
                done.append(each := future.result())
                print(f"{piece.workloads[0]}, {piece.servers[0]} servers, seed {piece.seeds[0]}: {each.cpu_s:.0f} s")
            parts.append((grid, done))
    grid, done = parts[0]
    note = f"simulated, {grid.engine}, {grid.seconds:g} s, seeds {', '.join(map(str, grid.seeds))}"
    draw([cell for each in done for cell in each.cells], options.out.with_suffix(".png"), note)
    options.out.write_text(_page(parts))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
