"""`python -m bench.scaling`: from 4 to 8 to 4 servers in virtual time; writes docs/benchmarks/scaling.md.

Its figures are the same on every machine. About three minutes of one core.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.scaling.page import page
from bench.scaling.plot import draw
from bench.scaling.run import ENGINE_NAME, POLICIES, Plan, Ran, serve, windows

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "scaling.md"
SEEDS = (1, 2, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes to run at once (2)")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page; the chart is put beside it")
    options = parser.parse_args()
    plan, once = Plan(), Plan(apart_s=0.0)
    with ProcessPoolExecutor(options.jobs) as pool:
        futures = {
            (each, policy): [pool.submit(serve, policy, seed, each) for seed in SEEDS]
            for each in (plan, once)
            for policy in POLICIES
        }
        runs: dict[Plan, dict[str, list[Ran]]] = {plan: {}, once: {}}
        for (each, policy), of_seeds in futures.items():
            runs[each][policy] = [future.result() for future in of_seeds]
            print(f"{policy}{', all at once' if each is once else ''}: {len(SEEDS)} runs")
    over_time = {policy: windows(each, plan) for policy, each in runs[plan].items()}
    note = f"simulated, {ENGINE_NAME}, seeds {', '.join(map(str, SEEDS))}"
    draw(over_time, plan, options.out.with_suffix(".png"), note)
    options.out.write_text(page(runs[plan], runs[once], plan, once))
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
