"""`python -m bench.overhead`: the whole run, from the command line to the files."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.common import peers
from bench.common.arguments import positive
from bench.common.page import write as write_page
from bench.common.process import ROOT, ArmFailedError
from bench.overhead import arms, bodies, load, page, report
from bench.overhead.arms import ARMS, Arm, Servers, Starter
from bench.overhead.measure import Cell, Measurements, Plan, measure

SIZES_KB = (1, 4, 40, 400)
CONCURRENCY = (1, 32)
PAGE = ROOT / "docs" / "benchmarks" / "overhead.md"


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overhead",
        description="Measures Envoy alone, Envoy with the service (shapes A, B, C; A in two profiles), other routers,"
        " in turn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--sizes", nargs="+", type=positive, default=list(SIZES_KB), metavar="KB", help="body sizes")
    parser.add_argument(
        "--concurrency", nargs="+", type=positive, default=list(CONCURRENCY), metavar="N", help="client connections"
    )
    parser.add_argument("--rounds", type=positive, default=3, help="windows per arm and cell; the median is reported")
    parser.add_argument("--seconds", type=positive, default=3, help="length of one window")
    parser.add_argument(
        "--envoy-concurrency",
        type=positive,
        default=len(os.sched_getaffinity(0)),
        help="worker threads of every Envoy, the servers' included",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "overhead.json", help="where the rows go")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a must is missed or was not measured")
    parser.add_argument(
        "--write-docs",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=f"write {PAGE.relative_to(ROOT)}; unset: when all arms, sizes and concurrencies were measured",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark. 0: done; 1: an arm failed, or with --check a must is missed; 2: it could not start."""
    options = parse_arguments(argv)
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        wrk_version = load.ensure_wrk(console.print)
        for name in options.arms:
            if name in arms.PEER_ARMS:
                peers.ensure_installed(ROOT, peers.PEERS[arms.PEER_ARMS[name][0]], console.print)
        with tempfile.TemporaryDirectory(prefix="bench-overhead-") as folder:
            measured, started = _run(options, Path(folder), console)
    except RuntimeError as error:
        console.print(f"bench.overhead: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has been stopped")
        return 130
    return _report(options, measured, started, page.machine(wrk_version, options.envoy_concurrency), console)


def _as_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _run(options: argparse.Namespace, folder: Path, console: Console) -> tuple[Measurements, list[Arm]]:
    plan = Plan(
        cells=tuple(Cell(size, number) for size in options.sizes for number in options.concurrency),
        rounds=options.rounds,
        seconds=options.seconds,
        bodies={size: folder / f"bodies-{size}kb" for size in options.sizes},
        script=folder / "load.lua",
        probe_body=bodies.chat_body(1024, 0),
    )
    plan.script.write_text(load.SCRIPT)
    for size, path in plan.bodies.items():
        bodies.write_bodies(path, size * 1024)
    starter = Starter(folder, options.envoy_concurrency, plan.probe_body)
    try:
        servers = starter.servers()
        started, failures = _start_arms(options.arms, starter, servers, console)
        with Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
        ) as progress:
            task = progress.add_task("", total=len(started) * len(plan.cells) * plan.rounds)

            def step(text: str) -> None:
                progress.update(task, description=text)
                progress.advance(task)
                if not console.is_terminal:
                    console.print(text, highlight=False)

            measured = measure(plan, started, servers, step)
        measured.failures.update(failures)
        return measured, started
    finally:
        starter.stop()


def _start_arms(
    names: Sequence[str], starter: Starter, servers: Servers, console: Console
) -> tuple[list[Arm], dict[str, str]]:
    started, failures = [], {}
    for name in names:
        console.print(f"starting {name}", highlight=False)
        try:
            arm = starter.arm(name, servers)
        except ArmFailedError as error:
            failures[name] = str(error)
            console.print(str(error), style="red", markup=False)
        else:
            arm.freeze()
            started.append(arm)
    return started, failures


def _report(
    options: argparse.Namespace, measured: Measurements, started: Sequence[Arm], machine: str, console: Console
) -> int:
    rows = measured.rows()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    complete = (
        set(options.arms) == set(ARMS)
        and set(options.sizes) >= set(SIZES_KB)
        and set(options.concurrency) >= set(CONCURRENCY)
        and not measured.failures
    )
    if rows:
        text = page.render(
            measured,
            machine,
            "make bench-overhead",
            options.rounds,
            options.seconds,
            [shlex.join([Path(arm.command[0]).name, *arm.command[1:]]) for arm in started if arm.command],
        )
        Console(width=None if sys.stdout.isatty() else 200).print(Markdown(text))
        if options.write_docs or (options.write_docs is None and complete):
            write_page(PAGE, text)
            console.print(f"wrote {PAGE.relative_to(ROOT)}", highlight=False)
    console.print(f"wrote {options.out}", highlight=False)
    for arm, reason in measured.failures.items():
        console.print(f"{arm} FAILED: {reason}", style="bold red", markup=False)
    verdicts = report.verdicts(rows)
    if measured.failures or (options.check and not all(verdict.met for verdict in verdicts)):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
