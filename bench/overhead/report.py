"""What do the numbers say? Tables with ratios, the two musts, and where the CPU time goes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.overhead.arms import ENVOY_ALONE, SHAPES
from bench.overhead.measure import Cell, Measurements, Row, Window

REFERENCE = "vllm-router-cache-aware"
OURS = "extproc-a"
MUST_CELL_KB = 4
MIN_RPS_RATIO = 0.8
AIM_RPS_RATIO = 1.0
MAX_ADDED_MS = 1.0
QUIET_RATIO = 0.1  # of the machine's CPU


@dataclass(frozen=True, slots=True)
class Verdict:
    """One must: whether it is met (None: not measured) and the sentence with the numbers."""

    met: bool | None
    text: str

    def __str__(self) -> str:
        word = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"**{word}**: {self.text}"


def ratio(value: float | None, base: float | None) -> float | None:
    """value / base; None when one is unknown or the base is 0."""
    return None if value is None or not base else value / base


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """The two musts for shape A at 4 KB: throughput at concurrency 32, added median at concurrency 1."""
    by_key = {(row.arm, row.body_kb, row.concurrency): row for row in rows}
    result = []
    ours, peer = by_key.get((OURS, MUST_CELL_KB, 32)), by_key.get((REFERENCE, MUST_CELL_KB, 32))
    wanted = f"{OURS} reaches at least {MIN_RPS_RATIO:g} of {REFERENCE}'s requests/s at 4 KB, concurrency 32"
    if ours is None or peer is None:
        result.append(Verdict(None, wanted))
    else:
        share = ours.rps / peer.rps
        aim = f"the aim of {AIM_RPS_RATIO:.1f} is {'reached' if share >= AIM_RPS_RATIO else 'not reached'}"
        result.append(
            Verdict(share >= MIN_RPS_RATIO, f"{wanted}: {ours.rps:,.0f} / {peer.rps:,.0f} = {share:.2f}; {aim}")
        )
    ours, alone = by_key.get((OURS, MUST_CELL_KB, 1)), by_key.get((ENVOY_ALONE, MUST_CELL_KB, 1))
    wanted = f"{OURS} adds at most {MAX_ADDED_MS:.1f} ms to Envoy's median at 4 KB, concurrency 1"
    if ours is None or alone is None:
        result.append(Verdict(None, wanted))
    else:
        added = ours.p50_ms - alone.p50_ms
        result.append(
            Verdict(added <= MAX_ADDED_MS, f"{wanted}: {ours.p50_ms:.2f} - {alone.p50_ms:.2f} = {added:.2f} ms")
        )
    return result


def table(rows: Sequence[Row]) -> str:
    """A Markdown table a cell; arms in the order measured."""
    by_cell: dict[Cell, dict[str, Row]] = {}
    for row in rows:
        by_cell.setdefault(Cell(row.body_kb, row.concurrency), {})[row.arm] = row
    return "\n\n".join(
        f"### {cell.body_kb} KB, concurrency {cell.concurrency}\n\n{_cell_table(by_cell[cell])}"
        for cell in sorted(by_cell)
    )


def _cell_table(rows: Mapping[str, Row]) -> str:
    alone, peer = rows.get(ENVOY_ALONE), rows.get(REFERENCE)
    lines = [
        "| arm | requests/s | to Envoy alone | to vllm-router cache_aware | p50 ms | added to Envoy alone, ms | p99 ms"
        " | service CPU, µs/request | Envoy CPU, µs/request |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows.values():
        cells = (
            row.arm,
            f"{row.rps:,.0f}",
            _number(ratio(row.rps, alone.rps if alone else None), ".2f"),
            _number(ratio(row.rps, peer.rps if peer else None), ".2f"),
            f"{row.p50_ms:.2f}",
            _number(row.p50_ms - alone.p50_ms if alone and row is not alone else None, "+.2f"),
            f"{row.p99_ms:.2f}",
            _number(row.service_cpu_us, ",.0f"),
            _number(row.envoy_cpu_us, ",.0f"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def cpu_table(measured: Measurements, cell: Cell) -> str:
    """Where one request's CPU time goes in one cell, by process. All of them share the machine's cores."""
    lines = [
        "| arm | service | Envoy | servers | load generator | sum, µs/request | requests to servers per request |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for (arm, where), windows in measured.windows.items():
        if where != cell:
            continue
        parts = [
            _median([window.service_cpu_us or 0.0 for window in windows]),
            _median([window.envoy_cpu_us or 0.0 for window in windows]),
            _median([window.servers_cpu_us for window in windows]),
            _median([window.client_cpu_us for window in windows]),
        ]
        texts = [f"{part:,.0f}" if part else "" for part in parts]
        to_servers = _median([window.server_requests for window in windows])
        lines.append("| " + " | ".join([arm, *texts, f"{sum(parts):,.0f}", f"{to_servers:.2f}"]) + " |")
    return "\n".join(lines)


def disturbed(measured: Measurements) -> str | None:
    """A warning when other processes took so much CPU that throughput and latency are not the arms' own; else None."""
    other = _median([window.other_cpu_ratio for series in measured.windows.values() for window in series])
    if other <= QUIET_RATIO:
        return None
    return (
        f"> **This run was disturbed:** other processes took {other:.0%} of the machine's CPU. Throughput, latency and"
        " the verdict are not to be relied on; run it again on a quiet machine."
    )


def noise(measured: Measurements) -> str:
    """How much the machine was busy with other things, and how far the rounds lie apart."""
    windows = [window for series in measured.windows.values() for window in series]
    other = [window.other_cpu_ratio for window in windows]
    text = (
        f"Processes that are no part of the benchmark took {_median(other):.0%} of the machine's CPU in the median"
        f" window and {max(other):.0%} in the worst."
    )
    spreads = [_spread(series) for series in measured.windows.values() if len(series) > 1]
    if spreads:
        text += (
            f" Between the slowest and the fastest round of the same arm and cell, requests/s differ by"
            f" {_median(spreads):.0%} in the median and {max(spreads):.0%} in the worst case."
        )
    return text


def missed_picks(measured: Measurements) -> str:
    """How many requests of our arms went without a pick; Envoy then chose by its fallback policy."""
    lines = []
    for arm in SHAPES:
        windows = [window for (name, _), series in measured.windows.items() if name == arm for window in series]
        if missed := sum(window.without_pick for window in windows):
            lines.append(f"{missed} requests of {arm} went without a pick, the service being late.")
    return " ".join(lines) or "Every request of the extproc arms got its pick."


def _spread(windows: Sequence[Window]) -> float:
    rates = [window.rps for window in windows]
    return max(rates) / min(rates) - 1


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
