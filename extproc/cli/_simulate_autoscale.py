"""`extproc simulate --autoscale`: how does a fleet fare that follows its load by the recommender, or by other rules?"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from extproc.cli._fail import fail
from extproc.cli._simulate_words import known, written

if TYPE_CHECKING:
    from rich.console import Console

    from extproc.sim.scaling.report import Cell


def names() -> None:
    """Print what may be named."""
    from extproc.sim.scaling.scenarios import POLICIES, SCENARIOS

    width = max(len(name) for name in (*SCENARIOS, *POLICIES))
    sys.stdout.write("scenarios (loads count servers at the knee of the load test)\n")
    for name, scenario in SCENARIOS.items():
        sys.stdout.write(f"  {name.ljust(width)}  {scenario.words} ({scenario.seconds / 60:.0f} min)\n")
    sys.stdout.write("policies\n")
    for name, words in POLICIES.items():
        sys.stdout.write(f"  {name.ljust(width)}  {words}\n")


def simulate(
    scenario: str,
    policies: Sequence[str] | None,
    seeds: Sequence[int],
    json_file: Path | None,
    csv_file: Path | None,
    plot: Path | None,
) -> None:
    """Run, show a table for each seed, and write what was asked for."""
    from extproc.sim.scaling.scenarios import POLICIES, SCENARIOS

    name = known("--autoscale", [scenario], list(SCENARIOS))
    if len(name) != 1:
        fail("--autoscale: one scenario at a time")
    plain = [each for each in POLICIES if each not in ("no-lead", "no-foresight")]
    wanted = known("--policy", policies or plain, list(POLICIES))
    cells: list[Cell] = []
    try:
        for seed in seeds:
            of_seed = _run(name[0], wanted, seed)
            _print(name[0], seed, of_seed, wanted)
            cells += of_seed
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    sys.stdout.write(
        "\nin target: requests with their first token within it; replica-h: from when a server is asked for until it is"
        " gone;\nof bound: of the clairvoyant's. Simulated: compare, do not promise.\n"
    )
    _write(cells, json_file, csv_file, plot)


def _run(name: str, policies: Sequence[str], seed: int) -> list[Cell]:
    from rich.console import Console

    from extproc.sim.scaling.report import play
    from extproc.sim.scaling.scenarios import SCENARIOS, profile

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        began: list[float] = []

        def told(policy: str) -> None:
            began.append(time.perf_counter())
            sys.stderr.write(f"{name}, seed {seed}: {policy}\n")
            sys.stderr.flush()

        sys.stderr.write("the load test of one server\n")
        profile(fleet=SCENARIOS[name].fleet)
        return play(name, SCENARIOS[name], policies, seed, starting=told)
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("the load test of one server", total=None)
        profile(fleet=SCENARIOS[name].fleet)

        def starting(policy: str) -> None:
            bar.reset(task, description=f"{name}, seed {seed}: {policy}", total=SCENARIOS[name].seconds)

        def progress(done_s: float, all_s: float) -> None:
            bar.update(task, completed=done_s, total=all_s)

        return play(name, SCENARIOS[name], policies, seed, starting=starting, progress=progress)


def _print(name: str, seed: int, cells: Sequence[Cell], wanted: Sequence[str]) -> None:
    from rich.console import Console

    from extproc.sim.scaling.report import ATTAINED, CLAIRVOYANT, COLUMNS, rows
    from extproc.sim.scaling.scenarios import SCENARIOS, profile

    scenario = SCENARIOS[name]
    requests = cells[0].requests if cells else 0
    title = (
        f"{name}: {scenario.words}; {requests:,} requests, seed {seed};"
        f" target: TTFT p99 {scenario.fleet.target_s:g} s;"
        f" knee {profile(fleet=scenario.fleet).knee_per_s:.3g} requests/s a server"
    )
    console = Console(highlight=False)
    titles = ["policy", *(title for title, _ in COLUMNS)]
    if console.is_terminal:
        _print_table(console, title, titles, rows(cells))
    else:
        width = max(len(each) for each in (*wanted, "policy"))
        sys.stdout.write(f"\n{title}\n")
        for row in (titles, *rows(cells)):
            sys.stdout.write(row[0].ljust(width) + "".join(text.rjust(11) for text in row[1:]) + "\n")
    if CLAIRVOYANT in wanted and not any(cell.policy == CLAIRVOYANT for cell in cells):
        sys.stdout.write(f"clairvoyant: none of its plans has {ATTAINED:.0%} of the requests within the target\n")


def _print_table(console: Console, title: str, titles: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.table import Table

    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    view.add_column(titles[0])
    for each in titles[1:]:
        view.add_column(each, justify="right")
    for line in lines:
        view.add_row(*line, style="bold" if line[0] == "ours" else None)
    console.print(view)


def _write(cells: Sequence[Cell], json_file: Path | None, csv_file: Path | None, plot: Path | None) -> None:
    from extproc.sim.scaling.report import as_csv, as_record

    written(json_file, lambda path: path.write_text(json.dumps([as_record(cell) for cell in cells], indent=1) + "\n"))
    written(csv_file, lambda path: path.write_text(as_csv(cells)))
    if plot is not None:
        from extproc.sim.scaling.plot import draw

        seeds = ", ".join(str(seed) for seed in dict.fromkeys(cell.seed for cell in cells))
        first = [cell for cell in cells if cell.seed == cells[0].seed] if cells else []
        written(plot, lambda path: draw(first, path, f"simulated, seed {first[0].seed} of {seeds}"))
