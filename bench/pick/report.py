"""Does a pick cost what it may, and where does its time go?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.pick.measure import STAGES, Row


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on the total."""

    endpoints: int
    body_kb: int
    us: float


TARGETS = (Target(64, 4, 100), Target(500, 4, 400), Target(4, 400, 1500), Target(64, 400, 1500))


@dataclass(frozen=True, slots=True)
class Verdict:
    target: Target
    row: Row | None  # None: not measured

    @property
    def met(self) -> bool:
        return self.row is not None and self.row.us < self.target.us

    def __str__(self) -> str:
        where = f"{self.target.endpoints} endpoints, {self.target.body_kb} KB: under {self.target.us:g} µs"
        if self.row is None:
            return f"**not measured**: {where}"
        return f"**{'met' if self.met else 'missed'}**: {where}; median {self.row.us:.0f}, least {self.row.min_us:.0f}"


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    totals = {(row.endpoints, row.body_kb): row for row in rows if row.stage == "total"}
    return [Verdict(target, totals.get((target.endpoints, target.body_kb))) for target in TARGETS]


def table(rows: Sequence[Row]) -> str:
    """Medians, with the least in brackets; Markdown."""
    lines = [
        "| endpoints | body | " + " | ".join(STAGES) + " | repetitions |",
        "|--:|--:|" + "--:|" * (len(STAGES) + 1),
    ]
    cells = {(row.endpoints, row.body_kb, row.stage): row for row in rows}
    for endpoints, body_kb in dict.fromkeys((row.endpoints, row.body_kb) for row in rows):
        found = [cells[endpoints, body_kb, stage] for stage in STAGES]
        figures = " | ".join(f"{row.us:.0f} ({row.min_us:.0f})" for row in found)
        lines.append(f"| {endpoints} | {body_kb} KB | {figures} | {found[0].repetitions:,} |")
    return "\n".join(lines)
