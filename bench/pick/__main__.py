"""`python -m bench.pick`: the whole run, from the command line to the files."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.common.arguments import positive
from bench.common.machine import parse_machine_cpu
from bench.common.page import write as write_page
from bench.common.process import ROOT
from bench.pick import page, report
from bench.pick.measure import Row, measure
from bench.pick.memory import weigh
from bench.pick.scene import Scene
from extproc.cli._run import tune_gc

ENDPOINTS = (4, 64, 500)
SIZES_KB = (4, 40, 400)
BLOCKS = 1_000_000
PAGE = ROOT / "docs" / "benchmarks" / "pick.md"


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pick",
        description="Measures the steps of a pick: parse, hash, match, cost, pick, reserve, all of them, and learn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--endpoints", nargs="+", type=positive, default=list(ENDPOINTS), metavar="N", help="servers")
    parser.add_argument("--sizes", nargs="+", type=positive, default=list(SIZES_KB), metavar="KB", help="body sizes")
    parser.add_argument("--blocks", type=positive, default=BLOCKS, help="blocks indexed")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each combination")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True, help="weigh the index")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "pick.json", help="where the rows go")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed or was not measured")
    parser.add_argument(
        "--write-docs",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=f"write {PAGE.relative_to(ROOT)}; unset: when everything was measured",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark. 0: done; 1: with --check a target is missed; 2: the index could not be weighed."""
    options = parse_arguments(argv)
    console = Console(stderr=True)
    before, started_s = _cpu_s(), time.monotonic()
    rows = _run(options, console)
    machine_cpu_s, own_cpu_s = (after - start for after, start in zip(_cpu_s(), before, strict=True))
    others_ratio = max(0.0, machine_cpu_s - own_cpu_s) / ((time.monotonic() - started_s) * (os.cpu_count() or 1))
    weight = None
    if options.memory:
        console.print("weighing the index", highlight=False)
        try:
            weight = weigh(options.blocks)
        except subprocess.CalledProcessError as error:
            console.print(f"bench.pick: {error}\n{error.stderr}", style="red", markup=False)
            return 2
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    text = page.render(rows, weight, others_ratio, "make bench-pick")
    Console(width=None if sys.stdout.isatty() else 160).print(Markdown(text))
    console.print(f"wrote {options.out}", highlight=False)
    complete = (
        set(options.endpoints) >= set(ENDPOINTS)
        and set(options.sizes) >= set(SIZES_KB)
        and options.blocks >= BLOCKS
        and options.memory
    )
    if options.write_docs or (options.write_docs is None and complete):
        write_page(PAGE, text)
        console.print(f"wrote {PAGE.relative_to(ROOT)}", highlight=False)
    return 1 if options.check and not all(verdict.met for verdict in report.verdicts(rows)) else 0


def _run(options: argparse.Namespace, console: Console) -> list[Row]:
    rows: list[Row] = []
    threshold = gc.get_threshold()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(options.endpoints) * len(options.sizes))
        for endpoints in options.endpoints:
            progress.update(task, description=f"{endpoints} endpoints: filling the index")
            scene = Scene(endpoints, options.blocks)
            tune_gc()
            for size in options.sizes:
                text = f"{endpoints} endpoints, {size} KB"
                progress.update(task, description=text)
                if not console.is_terminal:
                    console.print(text, highlight=False)
                rows += measure(scene, size, seconds=options.seconds)
                progress.advance(task)
            del scene
            gc.set_threshold(*threshold)
            gc.unfreeze()
            gc.collect()
    return rows


def _cpu_s() -> tuple[float, float]:
    """CPU seconds since boot of all processes, and since its start of this one."""
    own = os.times()
    return parse_machine_cpu(Path("/proc/stat").read_text())[0], own.user + own.system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
