"""What do the results of runs say, in figures that can be compared?"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean

from extproc.sim.fleet import Result


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, or the mean of some. The whole run counts, its cold caches too."""

    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    answered_mean_s: float  # to the end of the answer
    hit_ratio: float  # prompt tokens found in the engines' caches over all prompt tokens
    max_share: float  # requests of the server that got most, over the mean of all servers
    answer_tokens_per_s: float  # until the last answer has ended
    requests_per_s: float  # likewise


@dataclass(frozen=True, slots=True)
class Cell:
    """A run: what it was of, and what came out."""

    workload: str
    policy: str
    servers: int
    seed: int
    requests: int
    figures: Figures
    preemptions: int
    served: tuple[int, ...]  # requests, by server
    prompts: tuple[int, ...]  # prompt tokens of these, cached or not
    ttft_s: Sequence[float]  # ascending


@dataclass(frozen=True, slots=True)
class Column:
    """A figure in a table."""

    title: str
    of: Callable[[Figures], float]
    text: Callable[[float], str]
    best: Callable[[Iterable[float]], float]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f}" if seconds >= 0.01 else f"{seconds * 1000:.1f}"


COLUMNS: tuple[Column, ...] = (
    Column("mean", lambda f: f.ttft_mean_s, _ms, min),
    Column("p50", lambda f: f.ttft_p50_s, _ms, min),
    Column("p90", lambda f: f.ttft_p90_s, _ms, min),
    Column("p99", lambda f: f.ttft_p99_s, _ms, min),
    Column("answer", lambda f: f.answered_mean_s, _ms, min),
    Column("hits %", lambda f: f.hit_ratio, lambda ratio: f"{ratio * 100:.1f}", max),
    Column("share", lambda f: f.max_share, lambda share: f"{share:.2f}", min),
    Column("tokens/s", lambda f: f.answer_tokens_per_s, lambda rate: f"{rate:,.0f}", max),
)


def quantile(ascending: Sequence[float], part: float) -> float:
    """The smallest value that at least this part of all does not exceed."""
    return ascending[max(0, math.ceil(part * len(ascending)) - 1)]


def cell_of(workload: str, policy: str, seed: int, result: Result) -> Cell:
    """Reckon the figures of a run."""
    ttft_s = sorted(result.ttft_s)
    figures = Figures(
        ttft_mean_s=fmean(ttft_s),
        ttft_p50_s=quantile(ttft_s, 0.5),
        ttft_p90_s=quantile(ttft_s, 0.9),
        ttft_p99_s=quantile(ttft_s, 0.99),
        answered_mean_s=fmean(result.answered_s),
        hit_ratio=result.cached_tokens / result.prompt_tokens,
        max_share=max(result.served) / fmean(result.served),
        answer_tokens_per_s=result.answer_tokens / result.seconds,
        requests_per_s=len(ttft_s) / result.seconds,
    )
    servers = len(result.served)
    return Cell(
        workload, policy, servers, seed, len(ttft_s), figures, result.preemptions, result.served, result.prompts, ttft_s
    )


def mean_of(figures: Sequence[Figures]) -> Figures:
    """Each figure's mean, over seeds; of percentiles too."""
    return Figures(**{f.name: fmean(getattr(each, f.name) for each in figures) for f in fields(Figures)})


Table = Mapping[str, Figures]  # by policy


def tables(cells: Iterable[Cell]) -> dict[tuple[str, int], dict[str, Figures]]:
    """Figures by workload and servers, then by policy, each in the order of the cells."""
    groups: dict[tuple[str, int], dict[str, list[Figures]]] = {}
    for cell in cells:
        groups.setdefault((cell.workload, cell.servers), {}).setdefault(cell.policy, []).append(cell.figures)
    return {key: {name: mean_of(each) for name, each in rows.items()} for key, rows in groups.items()}


def rows_of(table: Table) -> list[tuple[str, list[tuple[str, bool]]]]:
    """The table as text: policy, and for each of COLUMNS the figure and whether it is the best, as far as is shown.

    Where all are equal, or alone, none is the best.
    """
    texts = {policy: [column.text(column.of(figures)) for column in COLUMNS] for policy, figures in table.items()}
    best: list[str | None] = []
    for place, column in enumerate(COLUMNS):
        good = column.text(column.best(column.of(figures) for figures in table.values()))
        best.append(good if any(row[place] != good for row in texts.values()) else None)
    return [
        (policy, [(text, text == good) for text, good in zip(row, best, strict=True)]) for policy, row in texts.items()
    ]


def markdown(table: Table) -> str:
    """The table for a page, the best of each column in bold."""
    lines = ["| policy | " + " | ".join(column.title for column in COLUMNS) + " |", "|---|" + "--:|" * len(COLUMNS)]
    for policy, row in rows_of(table):
        lines.append(f"| {policy} | " + " | ".join(f"**{text}**" if best else text for text, best in row) + " |")
    return "\n".join(lines) + "\n"


def as_record(cell: Cell) -> dict[str, object]:
    """A run as plain values, without the single times."""
    return {
        "workload": cell.workload,
        "policy": cell.policy,
        "servers": cell.servers,
        "seed": cell.seed,
        "requests": cell.requests,
        **asdict(cell.figures),
        "preemptions": cell.preemptions,
        "requests_by_server": list(cell.served),
        "prompt_tokens_by_server": list(cell.prompts),
    }


def as_csv(cells: Iterable[Cell]) -> str:
    """A line a run, with a heading. What is told by server is left out."""
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for cell in cells:
        record = {name: value for name, value in as_record(cell).items() if not isinstance(value, list)}
        if writer is None:
            writer = csv.DictWriter(out, list(record), lineterminator="\n")
            writer.writeheader()
        writer.writerow(record)
    return out.getvalue()
