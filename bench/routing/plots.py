"""What do the times look like? One chart: a row of dots for each workload, an arm a colour and shape, log scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.routing.report import SUBJECT, Summary

_SHAPES = "osD^v<>PXhd"
# A hue for each family: red for the service, blue for Envoy, green, violet and yellow for the other routers.
_COLOURS = (
    *("#c1121f", "#f4845f"),
    *("#1d3557", "#457b9d", "#7fb2d1"),
    *("#2a7f3f", "#8ac26b", "#8e44ad", "#b8860b", "#e0b64a", "#777777"),
)


def _plain(ms: float, _position: int | None) -> str:
    return f"{ms:,.0f}"


def draw(table: dict[str, dict[str, Summary]], arms: Sequence[str], path: Path) -> None:
    """Write the chart as a PNG file. Needs matplotlib (the extra `report`)."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    workloads = list(table)
    figure = Figure(figsize=(12, 1.6 + 0.62 * len(workloads)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    figures: tuple[tuple[str, Callable[[Summary], float]], ...] = (
        ("mean", lambda each: each.mean_s),
        ("90th percentile", lambda each: each.p90_s),
    )
    for axes, (title, figure_of) in zip(panels, figures, strict=True):
        for index, arm in enumerate(arms):
            places = [place for place, workload in enumerate(workloads) if arm in table[workload]]
            ours = arm == SUBJECT
            axes.scatter(
                [figure_of(table[workloads[place]][arm]) * 1000 for place in places],
                # Arms of one workload a little apart, so that equal times do not hide each other.
                [place + (index - (len(arms) - 1) / 2) * 0.05 for place in places],
                marker=_SHAPES[index % len(_SHAPES)],
                color=_COLOURS[index % len(_COLOURS)],
                edgecolors="black" if ours else "white",
                linewidths=0.8 if ours else 0.4,
                s=95 if ours else 50,
                zorder=3 if ours else 2,
                label=arm,
            )
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.set_xlabel("ms, log scale; left is better")
        axes.set_title(f"Time to first token, {title}")
        axes.grid(axis="x", which="both", color="#e5e5e5", zorder=0)
        for place in range(len(workloads) - 1):
            axes.axhline(place + 0.5, color="#cccccc", linewidth=0.6, zorder=1)
        axes.set_yticks(range(len(workloads)), workloads)
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
