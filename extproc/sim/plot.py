"""What do the times to first token look like? A panel for each workload: which part of the requests waits longer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from extproc.scheduling.profiles import PROFILES
from extproc.sim.report import Cell

_PROFILE_COLOURS = ("#b07aa1", "#e6862e", "#2a7f3f", "#c1121f")
_BASELINE_COLOURS = ("#1d3557", "#8a8a8a", "#457b9d", "#7fb2d1", "#c9a227")
_POINTS = 400  # of a curve


def draw(cells: Sequence[Cell], path: Path, note: str = "") -> None:
    """Write the chart; the file's ending is its format (png, svg, pdf). Needs matplotlib (the extra `report`).

    The requests of all seeds count together.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: a format that matplotlib does not write.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, NullFormatter

    times: dict[tuple[str, int], dict[str, list[float]]] = {}
    for cell in cells:
        times.setdefault((cell.workload, cell.servers), {}).setdefault(cell.policy, []).extend(cell.ttft_s)
    columns = min(3, len(times))
    rows = math.ceil(len(times) / columns)
    figure = Figure(figsize=(1.2 + 4.6 * columns, 1.6 + 3.4 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)  # type: ignore[no-untyped-call,unused-ignore]
    panels = [axes for row in grid for axes in row]
    handles: dict[str, Line2D] = {}
    for axes, ((workload, servers), by_policy) in zip(panels, times.items(), strict=False):
        for policy, all_s in by_policy.items():
            ordered, count = sorted(all_s), len(all_s)
            # Evenly spaced where the chart is: by the logarithm of the part that waits longer.
            ranks = sorted({min(count - 1, int(count * (1 - count ** (-i / _POINTS)))) for i in range(_POINTS + 1)})
            (line,) = axes.plot(
                [max(ordered[rank], 1e-4) * 1000 for rank in ranks],
                [1 - rank / count for rank in ranks],
                color=_colour(policy),
                linestyle="-" if policy in PROFILES else "--",
                linewidth=2.4 if policy == "cache-aware" else 1.3,
                zorder=3 if policy == "cache-aware" else 2,
            )
            handles.setdefault(policy, line)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(0.005, 1.05)
        axes.set_yticks([1, 0.5, 0.1, 0.01], ["all", "half (p50)", "10 % (p90)", "1 % (p99)"])
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:,.0f}" if ms >= 1 else f"{ms:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(which="major", color="#e0e0e0", zorder=0)
        axes.set_title(f"{workload}, {servers} server{'s' * (servers != 1)}", fontsize=10)
        axes.set_xlabel("time to first token, ms", fontsize=8)
        axes.tick_params(labelsize=8)
    for axes in panels[len(times) :]:
        axes.set_visible(False)
    figure.suptitle("Part of the requests that waits longer (further left and down is better)", fontsize=11)
    if note:
        figure.text(0.995, 0.002, note, ha="right", va="bottom", fontsize=7, color="#666666")
    figure.legend(
        handles=list(handles.values()),
        labels=list(handles),
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path, dpi=120)


def _colour(policy: str) -> str:
    from extproc.sim.policies import BASELINES

    if policy in PROFILES:
        return _PROFILE_COLOURS[list(PROFILES).index(policy) % len(_PROFILE_COLOURS)]
    return _BASELINE_COLOURS[list(BASELINES).index(policy) % len(_BASELINE_COLOURS)]
