"""How do load, servers and time to first token go over time? A row of panels for each scenario."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from extproc.sim.scaling.report import Cell
from extproc.sim.scaling.scenarios import SCENARIOS

_COLOURS = {
    "ours": "#c1121f",
    "no-lead": "#b07aa1",
    "hpa-waiting": "#e6862e",
    "hpa-kv": "#c9a227",
    "keda-rate": "#457b9d",
    "keda-tuned": "#7aa6c2",
    "static-peak": "#8a8a8a",
    "clairvoyant": "#2a7f3f",
    "no-foresight": "#7fbf7b",
}
_WINDOW_S = 60.0  # of the requests that a point of the time to first token is made of, at least
_MOST_POINTS = 480
_IN_HOURS_S = 4 * 3600.0  # what takes longer is drawn over hours
_MOST_TTFT_S = 60.0  # what is above stands at the edge


def draw(cells: Sequence[Cell], path: Path, note: str = "") -> None:
    """Write the chart; the file's ending is its format (png, svg, pdf). Needs matplotlib (the extra `report`).

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: a format that matplotlib does not write.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(cell.scenario for cell in cells))
    figure = Figure(figsize=(12, 0.8 + 3.0 * len(names)), layout="constrained")
    grid = figure.subplots(len(names), 2, squeeze=False)  # type: ignore[no-untyped-call,unused-ignore]
    handles: dict[str, Line2D] = {}
    for (servers, ttft), name in zip(grid, names, strict=True):
        of_name = [cell for cell in cells if cell.scenario == name]
        some = of_name[0].ran
        per_server = SCENARIOS[name].knee_per_s(0.0)
        unit_s, unit = (3600.0, "hours") if some.seconds > _IN_HOURS_S else (60.0, "minutes")
        window_s = max(_WINDOW_S, some.seconds / _MOST_POINTS)
        times = [later.at_s / unit_s for _, later in pairwise(some.moments)]
        load = [
            (later.requests - before.requests) / (later.at_s - before.at_s) / per_server
            for before, later in pairwise(some.moments)
        ]
        servers.fill_between(times, load, color="#d9d9d9", linewidth=0, label="load")
        for cell in of_name:
            colour = _COLOURS.get(cell.policy)
            width, order = (2.2, 3.0) if cell.policy == "ours" else (1.2, 2.0)
            (line,) = servers.step(
                [moment.at_s / unit_s for moment in cell.ran.moments],
                [moment.there for moment in cell.ran.moments],
                where="post",
                color=colour,
                linewidth=width,
                zorder=order,
            )
            handles.setdefault(cell.policy, line)
            at_s, values = _p99(cell, window_s)
            ttft.plot([each / unit_s for each in at_s], values, color=colour, linewidth=1.2, zorder=order)
        ttft.axhline(SCENARIOS[name].fleet.target_s, color="#333333", linewidth=0.8, linestyle=":")
        ttft.set_yscale("log")
        ttft.set_ylim(0.3, _MOST_TTFT_S)
        servers.set_title(f"{name}: servers there, and load in servers at their knee (grey)", fontsize=9)
        ttft.set_title(f"p99 of the time to first token over {window_s:.0f} s, in s; dotted: the target", fontsize=9)
        for axes in (servers, ttft):
            axes.set_xlabel(unit, fontsize=8)
            axes.tick_params(labelsize=8)
            axes.grid(color="#eeeeee")
    if note:
        figure.text(0.995, 0.002, note, ha="right", va="bottom", fontsize=7, color="#666666")
    figure.legend(
        handles=list(handles.values()), labels=list(handles), loc="outside lower center", ncols=7, frameon=False
    )
    figure.savefig(path, dpi=100)


def _p99(cell: Cell, window_s: float) -> tuple[list[float], list[float]]:
    """The middle of each window, in seconds, and what 99 of 100 requests that came in it stayed within."""
    at_s = [each.at_s for each in cell.ran.arrivals]
    middles, values = [], []
    start_s = 0.0
    while start_s < cell.ran.seconds:
        first, last = bisect_right(at_s, start_s), bisect_right(at_s, start_s + window_s)
        ordered = sorted(cell.ran.ttft_s[first:last])
        if ordered:
            middles.append(start_s + window_s / 2)
            values.append(min(_MOST_TTFT_S, ordered[-(-99 * len(ordered) // 100) - 1]))
        start_s += window_s
    return middles, values
