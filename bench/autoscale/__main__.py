"""`python -m bench.autoscale`: a fleet that follows its load by each policy, in virtual time; writes
bench/out/autoscale.json and docs/benchmarks/autoscale.md.

Its figures are the same on every machine. Some two hours of one core for each seed, most of it for the days of 8 and 24
hours.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.autoscale.page import AIM, DAYS, HOURS, LONG, page
from extproc.sim.scaling.plot import draw
from extproc.sim.scaling.report import ATTAINED, CLAIRVOYANT, NO_FORESIGHT, TUNED, Cell, as_record, play
from extproc.sim.scaling.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "benchmarks" / "autoscale.md"
OUT = ROOT / "bench" / "out" / "autoscale.json"
OF_TABLE = (*DAYS, *HOURS)
POLICIES = ("ours", "hpa-waiting", "hpa-kv", "keda-rate", TUNED, "static-peak", CLAIRVOYANT, NO_FORESIGHT)
_SEARCHED = (TUNED, NO_FORESIGHT)  # by five runs each: not of the long days of the large fleet, an hour in all
SEEDS = (5,)


def _policies(scenario: str) -> list[str]:
    return [policy for policy in POLICIES if policy not in _SEARCHED or scenario not in LONG]


def _one(scenario: str, policy: str, seed: int) -> list[Cell]:
    return play(scenario, SCENARIOS[scenario], [policy], seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes to run at once (2)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help=f"{SEEDS}")
    parser.add_argument("--scenarios", nargs="+", default=list(OF_TABLE), choices=OF_TABLE)
    parser.add_argument("--out", type=Path, default=OUT, help="the rows")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page; the chart is put beside it")
    parser.add_argument("--check", action="store_true", help="exit code 1 when an aim is missed on a day")
    options = parser.parse_args()
    began_s = time.monotonic()
    cells: list[Cell] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        # The clairvoyant takes several runs: it begins first.
        work = {
            (scenario, policy, seed): pool.submit(_one, scenario, policy, seed)
            for policy in reversed(POLICIES)
            for scenario in options.scenarios
            if policy in _policies(scenario)
            for seed in options.seeds
        }
        for scenario in options.scenarios:
            for seed in options.seeds:
                found = {policy: work[scenario, policy, seed].result() for policy in _policies(scenario)}
                bound = found[CLAIRVOYANT][0].replica_hours if found[CLAIRVOYANT] else None
                for policy in found:
                    cells += [replace(cell, clairvoyant_replica_hours=bound) for cell in found[policy]]
                print(f"{scenario}, seed {seed}: done after {time.monotonic() - began_s:.0f} s", flush=True)
    rows = [as_record(cell) for cell in cells]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")
    options.page.write_text(page(cells, options.seeds))
    first = [cell for cell in cells if cell.seed == options.seeds[0]]
    drawn = [cell for cell in first if cell.scenario in DAYS and cell.policy not in _SEARCHED]
    draw(drawn or first, options.page.with_suffix(".png"), f"simulated, seed {options.seeds[0]}")
    print(f"wrote {options.out}, {options.page} and its chart")
    if options.check:
        missed = [
            f"{cell.scenario}, seed {cell.seed}: {cell.slo_attainment:.2%} of {ATTAINED:.0%} in target, "
            f"{'no bound' if cell.ratio is None else f'{cell.ratio:.2f}'} of the bound"
            for cell in cells
            if cell.policy == "ours"
            and cell.scenario in DAYS
            and (cell.slo_attainment < ATTAINED or (cell.ratio or 9.0) > AIM)
        ]
        print("\n".join(missed))
        sys.exit(bool(missed))


if __name__ == "__main__":
    main()
