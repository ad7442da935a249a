"""`extproc simulate`: how would each profile do for this kind of traffic, on this many servers?"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from extproc.cli._fail import fail
from extproc.cli._simulate_words import known, written

if TYPE_CHECKING:
    from rich.console import Console

    from extproc.sim.grid import Grid, Starting
    from extproc.sim.report import Cell, Table

_PLOT_NEEDS = '--plot needs matplotlib. Install it with: pip install "vllm-extproc[report]"'
_PLOT_FORMATS = (".png", ".svg", ".pdf")


def simulate(
    workloads: Annotated[
        list[str] | None, typer.Argument(metavar="WORKLOAD...", help="W1 to W9 (see docs), or all.")
    ] = None,
    autoscale: Annotated[
        str | None,
        typer.Option(metavar="SCENARIO", help="Instead: a fleet whose size follows this load; see --list."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="With --autoscale: a rule, or all; may be repeated. [default: all but no-lead]"),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name the scenarios and policies of --autoscale.")] = False,
    profile: Annotated[
        list[str] | None, typer.Option(help="A profile of ours, or all; may be repeated. [default: all]")
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(help="A baseline, or all; may be repeated. [default: all, or none if profiles are named]"),
    ] = None,
    servers: Annotated[
        list[int] | None, typer.Option(min=1, max=4096, help="Servers; may be repeated. [default: 8]")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Virtual seconds of arrivals.")] = 60.0,
    seed: Annotated[
        list[int] | None, typer.Option(help="May be repeated: the table has the means. [default: 1]")
    ] = None,
    preset: Annotated[str, typer.Option(help="Engine: a100-8b or cpu-tiny.")] = "a100-8b",
    slow_server: Annotated[
        float | None, typer.Option(min=0.01, metavar="FACTOR", help="The first server takes FACTOR times as long.")
    ] = None,
    full_bodies: Annotated[
        bool, typer.Option("--full-bodies", help="Have the router read and hash real request bodies (slower).")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write every run as JSON.")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write every run as CSV.")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the times (.png, .svg or .pdf); needs matplotlib.")
    ] = None,
) -> None:
    """Run the router over simulated vLLM engines in virtual time, and compare it with simpler ways to choose.

    No GPU, no network, no waiting: a minute of eight servers takes seconds. The same seed gives the same figures.
    What the engine model leaves out, the figures leave out: see docs/simulate.md.
    """
    if plot is not None:
        _require_plot(plot)
    for path in (json_file, csv_file, plot):
        if path is not None and not path.parent.is_dir():
            fail(f"{path}: there is no folder {path.parent}")
    if list_ or autoscale is not None:
        if workloads or profile or baseline or servers or slow_server is not None or full_bodies:
            fail("--autoscale has loads and a fleet of its own: only --policy, --seed and the files go with it")
        from extproc.cli import _simulate_autoscale

        if list_:
            _simulate_autoscale.names()
            return
        assert autoscale is not None
        _simulate_autoscale.simulate(autoscale, policy, list(dict.fromkeys(seed or [1])), json_file, csv_file, plot)
        return
    if policy:
        fail("--policy goes with --autoscale; for workloads it is --profile or --baseline")
    if not workloads:
        fail("name a workload (W1 to W9, or all), or --autoscale SCENARIO; --list has the scenarios")
    from extproc.sim.grid import ENGINES, Grid
    from extproc.sim.policies import BASELINES, PROFILE_POLICIES
    from extproc.sim.workloads import WORKLOADS

    both = profile is None and baseline is None
    policies = [
        *known("--profile", profile or (["all"] if both else []), list(PROFILE_POLICIES)),
        *known("--baseline", baseline or (["all"] if both else []), list(BASELINES)),
    ]
    grid = Grid(
        workloads=known("WORKLOAD", workloads, list(WORKLOADS)),
        policies=policies,
        servers=list(dict.fromkeys(servers or [8])),
        seeds=list(dict.fromkeys(seed or [1])),
        seconds=seconds,
        engine=known("--preset", [preset], list(ENGINES))[0],
        slow_factor=slow_server,
        full_bodies=full_bodies,
    )
    try:
        cells = _run(grid)
    except ValueError as error:
        fail(str(error))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    _print(grid, cells)
    _write(grid, cells, json_file, csv_file, plot)


def _require_plot(path: Path) -> None:
    if path.suffix not in _PLOT_FORMATS:
        fail(f"--plot {path}: the name must end with one of {', '.join(_PLOT_FORMATS)}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        fail(_PLOT_NEEDS)


# Running --------------------------------------------------------------------------------------------------------------


def _run(grid: Grid) -> list[Cell]:
    from rich.console import Console

    from extproc.sim.grid import cells

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        return _run_plainly(grid)
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        runs = bar.add_task("runs", total=grid.size)
        requests = bar.add_task("")

        def starting(next_run: Starting) -> None:
            bar.update(runs, completed=next_run.number)
            bar.reset(requests, description=_what(next_run), total=next_run.requests)

        def progress(done: int, total: int) -> None:
            bar.update(requests, completed=done, total=total)

        return list(cells(grid, starting=starting, progress=progress))


def _run_plainly(grid: Grid) -> list[Cell]:
    """One line a run, when it is done."""
    from extproc.sim.grid import cells

    out: list[Cell] = []
    began: list[float] = []
    what: list[str] = []

    def starting(next_run: Starting) -> None:
        began.append(time.perf_counter())
        what.append(_what(next_run))

    for cell in cells(grid, starting=starting):
        out.append(cell)
        mean_ms = cell.figures.ttft_mean_s * 1000
        took_s = time.perf_counter() - began[-1]
        sys.stderr.write(
            f"{len(out)}/{grid.size} {what[-1]}: {cell.requests} requests, mean time to first token {mean_ms:.0f} ms"
            f" ({took_s:.1f} s)\n"
        )
        sys.stderr.flush()
    return out


def _what(next_run: Starting) -> str:
    return f"{next_run.workload} {next_run.servers} servers, seed {next_run.seed}, {next_run.policy}"


# Showing --------------------------------------------------------------------------------------------------------------


def _print(grid: Grid, cells: Sequence[Cell]) -> None:
    from rich.console import Console

    from extproc.sim.report import COLUMNS, rows_of, tables

    console = Console(highlight=False)
    for (workload, servers), table in tables(cells).items():
        requests = [cell.requests for cell in cells if (cell.workload, cell.servers) == (workload, servers)]
        title = f"{workload}: {servers} x {grid.engine}, {_times(requests)} requests in {grid.seconds:g} s"
        if console.is_terminal:
            _print_table(console, title, table)
            continue
        width = max(len("policy"), *(len(name) for name in table))
        sys.stdout.write(f"\n{title}\n")
        sys.stdout.write("policy".ljust(width) + "".join(column.title.rjust(9) for column in COLUMNS) + "\n")
        for policy, row in rows_of(table):
            figures = "".join(f"{text}{'*' if best else ' '}".rjust(9) for text, best in row)
            sys.stdout.write(f"{policy.ljust(width)}{figures}".rstrip() + "\n")
    seeds = f"means over seeds {', '.join(map(str, grid.seeds))}" if len(grid.seeds) > 1 else f"seed {grid.seeds[0]}"
    mark = "bold" if console.is_terminal else "*"
    sys.stdout.write(
        f"\nms to the first token, and, mean, to the end of the answer; {mark}: best of the column; {seeds}."
        " Simulated: compare, do not promise.\n"
    )


def _times(requests: Sequence[int]) -> str:
    low, high = min(requests), max(requests)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _print_table(console: Console, title: str, table: Table) -> None:
    from rich import box
    from rich.table import Table as RichTable

    from extproc.scheduling.profiles import PROFILES
    from extproc.sim.report import COLUMNS, rows_of

    view = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    view.add_column("policy")
    for column in COLUMNS:
        view.add_column(column.title, justify="right")
    for policy, row in rows_of(table):
        name = policy if policy in PROFILES else f"[dim]{policy}[/]"
        view.add_row(name, *(f"[bold green]{text}[/]" if best else text for text, best in row))
    console.print(view)


def _write(grid: Grid, cells: Sequence[Cell], json_file: Path | None, csv_file: Path | None, plot: Path | None) -> None:
    from extproc.sim.report import as_csv, as_record

    whole = {"grid": asdict(grid), "runs": [as_record(cell) for cell in cells]}
    written(json_file, lambda path: path.write_text(json.dumps(whole, indent=1) + "\n"))
    written(csv_file, lambda path: path.write_text(as_csv(cells)))
    if plot is not None:
        from extproc.sim.plot import draw

        note = f"simulated, {grid.engine}, {grid.seconds:g} s, seeds {', '.join(map(str, grid.seeds))}"
        written(plot, lambda path: draw(cells, path, note))
