"""How do hit rate and time to first token go while the fleet grows and shrinks? One chart, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.scaling.run import MANY, Part, Plan

_COLOURS = {"cache-aware": "#c1121f", "session": "#e6862e", "ring-hash": "#457b9d", "modulo-hash": "#555555"}


def draw(by_policy: Mapping[str, Sequence[tuple[float, Part]]], plan: Plan, path: Path, note: str) -> None:
    """Write the chart of `run.windows` by policy. Needs matplotlib (the extra `report`)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    hits, ttft, fleet = figure.subplots(3, 1, sharex=True, height_ratios=(4, 4, 1.2))  # type: ignore[no-untyped-call,unused-ignore]
    for policy, points in by_policy.items():
        at_s = [middle for middle, _ in points]
        look = {
            "color": _COLOURS[policy],
            "linestyle": "--" if policy == "modulo-hash" else "-",
            "linewidth": 2.2 if policy in ("cache-aware", "modulo-hash") else 1.3,
        }
        hits.plot(at_s, [100 * each.hit_ratio for _, each in points], label=policy, **look)
        ttft.plot(at_s, [1000 * each.ttft_p90_s for _, each in points], **look)
    changes = plan.changes()
    fleet.step(
        [*(change.at_s for change in changes), plan.seconds],
        [*(len(change.servers) for change in changes), len(changes[-1].servers)],
        where="post",
        color="black",
    )
    for axes in (hits, ttft, fleet):
        for change in changes[1:]:
            axes.axvline(change.at_s, color="#d0d0d0", linewidth=0.8, zorder=0)
        axes.grid(axis="y", color="#ececec", zorder=0)
    hits.set_ylabel("prompt tokens found cached, %")
    hits.set_ylim(0, 100)
    ttft.set_ylabel("time to first token, p90, ms")
    ttft.set_ylim(bottom=0)
    fleet.set_ylabel("servers")
    fleet.set_ylim(0, MANY + 1)
    fleet.set_yticks([0, MANY // 2, MANY])
    fleet.set_xlabel("time, s")
    fleet.set_xlim(0, plan.seconds)
    hits.legend(loc="lower right", ncols=4, frameon=False, fontsize=9)
    figure.suptitle("Conversations (W2) while servers join and leave", fontsize=11)
    figure.text(0.995, 0.002, note, ha="right", va="bottom", fontsize=7, color="#666666")
    figure.savefig(path, dpi=110)
