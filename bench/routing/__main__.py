"""`python -m bench.routing`: the whole run, from the command line to the files."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.common import peers
from bench.common.front import find_envoy
from bench.common.page import write as write_page
from bench.common.process import ROOT, ArmFailedError
from bench.routing import page, plots, report
from bench.routing.arms import ARMS, EXTRA_ARMS, PEER_ARMS, available
from bench.routing.results import Cell, Row, Store
from bench.routing.run import TIMINGS, Batch, Runner, batches

PAGE = ROOT / "docs" / "benchmarks" / "routing.md"
DEFAULT_SEEDS = (1, 2, 3)
Failure = tuple[Cell, str]


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.routing",
        description="Time to first token over ten workloads: this service, Envoy's own policies and other routers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--workloads", nargs="+", choices=TIMINGS, default=list(TIMINGS), metavar="W", help=", ".join(TIMINGS)
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=ARMS,
        default=[arm for arm in ARMS if available(arm) and arm not in EXTRA_ARMS],
        metavar="ARM",
        help=", ".join(ARMS),
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=list(DEFAULT_SEEDS), metavar="N", help="of the draws")
    parser.add_argument("--seconds", type=_positive, help="of arrivals per cell; unset: each workload's own, 40 to 120")
    parser.add_argument(
        "--factor",
        type=_positive,
        default=1.0,
        help="real seconds to one of the workload: 2 for a machine half as fast",
    )
    parser.add_argument(
        "--at-once", type=int, metavar="N", help="arms side by side; unset: each workload's own; 1: strictly in turn"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "out" / "routing.json", help="where the rows go")
    parser.add_argument("--resume", action="store_true", help="keep the cells that are in the file already")
    parser.add_argument("--report-only", action="store_true", help="measure nothing, report what is in the file")
    parser.add_argument("--check", action="store_true", help="exit with 1 when an aim is missed or was not measured")
    parser.add_argument(
        "--write-docs",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=f"write {PAGE.relative_to(ROOT)} and its chart; unset: when all was measured, with three seeds",
    )
    options = parser.parse_args(argv)
    missing = [arm for arm in options.arms if not available(arm)]
    if missing:
        parser.error(f"--arms: {', '.join(missing)}: this version of the service has no such profile")
    if options.at_once is not None and options.at_once < 1:
        parser.error(f"--at-once: {options.at_once} must be 1 or more")
    return options


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be above 0")
    return number


def main(argv: Sequence[str]) -> int:
    """Run the benchmark. 0: done; 1: a cell failed, or with --check an aim is missed; 2: it could not start."""
    options = parse_arguments(argv)
    console = Console(stderr=True)
    signal.signal(signal.SIGTERM, _as_interrupt)
    failures: list[Failure] = []
    interrupted = False
    try:
        store = Store.resumed(options.out) if options.resume or options.report_only else Store(options.out)
        if not options.report_only:
            find_envoy()
            for name in options.arms:
                if name in PEER_ARMS:
                    peers.ensure_installed(ROOT, peers.PEERS[PEER_ARMS[name][0]], console.print)
            with tempfile.TemporaryDirectory(prefix="bench-routing-") as folder:
                _run(_plan(options, store), Runner(Path(folder)), store, failures, console)
    except (RuntimeError, ValueError) as error:
        console.print(f"bench.routing: {error}", style="red", markup=False)
        return 2
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; everything that was started has been stopped. Go on with --resume")
    code = _report(options, store, failures, console, may_write=not interrupted)
    return 130 if interrupted else code


def _as_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _plan(options: argparse.Namespace, store: Store) -> list[Batch]:
    def planned(done: Sequence[Cell] = ()) -> list[Batch]:
        return list(
            batches(
                options.workloads,
                options.arms,
                options.seeds,
                seconds=options.seconds,
                factor=options.factor,
                at_once=options.at_once,
                done=done,
            )
        )

    return planned([cell for batch in planned() for cell in batch.cells if store.has(cell)])


def _run(plan: Sequence[Batch], runner: Runner, store: Store, failures: list[Failure], console: Console) -> None:
    expected_s = sum(batch.expected_s for batch in plan)
    console.print(
        f"{sum(len(batch.cells) for batch in plan)} cells, about {expected_s / 60:.0f} minutes;"
        f" rows go to {store.path} after each",
        highlight=False,
    )
    with Progress(
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        speed_estimate_period=1800,
    ) as progress:
        task = progress.add_task("", total=expected_s)
        for batch in plan:
            first = batch.cells[0]
            arms = ", ".join(cell.arm for cell in batch.cells)
            progress.update(task, description=f"{first.workload}, seed {first.seed}: {arms}")
            try:
                finished = runner.run(batch)
            except ArmFailedError as error:
                failed = tuple((cell, str(error)) for cell in batch.cells)
                rows: tuple[Row, ...] = ()
            else:
                rows, failed = finished.rows, finished.failures
            for row in rows:
                store.add(row)
                progress.print(_line(row), highlight=False, markup=False, soft_wrap=True)
            for cell, why in failed:
                failures.append((cell, why))
                progress.print(f"{cell.workload} {cell.arm} seed {cell.seed} FAILED: {why}", style="red", markup=False)
            progress.advance(task, batch.expected_s)


def _line(row: Row) -> str:
    note = f"  {row.note}" if row.note else ""
    return (
        f"{row.workload:4} seed {row.seed} {row.arm:28} mean {row.ttft_mean_s * 1000:7.0f} ms  p90"
        f" {row.ttft_p90_s * 1000:7.0f} ms  hits {row.hit_ratio:4.0%}  max/mean {row.max_over_mean:4.2f}  errors"
        f" {row.errors}  {row.real_s:.0f} s  CPU {row.cpu_ratio:.0%}, others {row.cpu_others_ratio:.0%}{note}"
    )


def _command(options: argparse.Namespace) -> str:
    """How to measure the same again: what was chosen, without where it went and what was left to do."""
    standard = parse_arguments([])
    words: list[str] = []
    for name in ("workloads", "arms", "seeds", "seconds", "factor", "at_once"):
        value = getattr(options, name)
        if value != getattr(standard, name):
            values = value if isinstance(value, list) else [f"{value:g}"]
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return "make bench-routing" + (f' BENCH_ARGS="{shlex.join(words)}"' if words else "")


def _report(
    options: argparse.Namespace, store: Store, failures: Sequence[Failure], console: Console, *, may_write: bool
) -> int:
    wanted = (set(options.workloads), set(options.arms), set(options.seeds))
    rows = [row for row in store.rows if all(part in each for part, each in zip(row.key, wanted, strict=True))]
    if not rows:
        console.print("no cell was measured", style="red")
        return 1
    arms = [arm for arm in ARMS if any(row.arm == arm for row in rows)]
    command = _command(options)
    chart = PAGE.with_suffix(".png")
    text = page.render(rows, failures, arms, command, chart.name)
    Console(width=None if sys.stdout.isatty() else 240).print(Markdown(text))
    complete = (
        len(rows) == len(TIMINGS) * len(arms) * len(options.seeds)
        and set(arms) >= set(ARMS) - EXTRA_ARMS
        and len(options.seeds) >= len(DEFAULT_SEEDS)
        and not failures
    )
    if may_write and (options.write_docs or (options.write_docs is None and complete)):
        plots.draw(report.summaries(rows), arms, chart)
        write_page(PAGE, text)
        console.print(f"wrote {PAGE.relative_to(ROOT)} and {chart.name}", highlight=False)
    console.print(f"{len(rows)} rows in {options.out}", highlight=False)
    verdicts = report.verdicts(report.compare(report.summaries(rows)))
    bad = failures or any(row.note for row in rows) or (options.check and not all(each.met for each in verdicts))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
