"""What do the rows say? Tables with an arm a column, and where the arm in question wins and loses."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.routing.results import Row
from bench.routing.run import TIMINGS

SUBJECT = "extproc-cache-aware"
MIN_WINS = 7  # workloads, of all ten, with the lowest mean and the lowest p90
MAX_RATIO = 1.05  # to the best of the others, on any workload
QUIET_RATIO = 0.1  # of the machine's CPU, taken by others
LATE_S = 0.02  # requests sent later than this are no longer the workload's


@dataclass(frozen=True, slots=True)
class Summary:
    """One workload and arm, the mean over seeds of each figure."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    hit_ratio: float
    max_over_mean: float
    output_tok_s: float
    errors: int  # of all seeds together

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Summary:
        return cls(
            mean_s=statistics.fmean(row.ttft_mean_s for row in rows),
            p50_s=statistics.fmean(row.ttft_p50_s for row in rows),
            p90_s=statistics.fmean(row.ttft_p90_s for row in rows),
            p99_s=statistics.fmean(row.ttft_p99_s for row in rows),
            hit_ratio=statistics.fmean(row.hit_ratio for row in rows),
            max_over_mean=statistics.fmean(row.max_over_mean for row in rows),
            output_tok_s=statistics.fmean(row.output_tok_s for row in rows),
            errors=sum(row.errors for row in rows),
        )


def summaries(rows: Iterable[Row]) -> dict[str, dict[str, Summary]]:
    """By workload, then arm; of a workload only seeds that all its arms have, so that they are compared on the same."""
    grouped: dict[str, dict[str, dict[int, Row]]] = {}
    for row in rows:
        grouped.setdefault(row.workload, {}).setdefault(row.arm, {})[row.seed] = row
    result: dict[str, dict[str, Summary]] = {}
    for workload in sorted(grouped, key=_place):
        arms = grouped[workload]
        common = set.intersection(*(set(by_seed) for by_seed in arms.values()))
        if common:
            result[workload] = {
                arm: Summary.of([by_seed[seed] for seed in sorted(common)]) for arm, by_seed in arms.items()
            }
    return result


def _place(workload: str) -> int:
    return list(TIMINGS).index(workload)


@dataclass(frozen=True, slots=True)
class Standing:
    """How the subject stands on one workload, in one figure."""

    value_s: float
    best_other: str
    best_other_s: float

    @property
    def ratio(self) -> float:
        """Below 1: the subject is the best."""
        return self.value_s / self.best_other_s


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the subject stands on one workload."""

    mean: Standing
    p90: Standing

    @property
    def won(self) -> bool:
        """Lowest mean and lowest p90 of all arms."""
        return self.mean.ratio < 1 and self.p90.ratio < 1

    @property
    def worst_ratio(self) -> float:
        return max(self.mean.ratio, self.p90.ratio)


def compare(table: dict[str, dict[str, Summary]]) -> dict[str, Comparison]:
    """The subject against the best of the others, for the workloads on which both were measured."""
    result = {}
    for workload, arms in table.items():
        others = {arm: each for arm, each in arms.items() if arm != SUBJECT}
        if SUBJECT not in arms or not others:
            continue
        ours = arms[SUBJECT]
        by_mean = min(others, key=lambda arm: others[arm].mean_s)
        by_p90 = min(others, key=lambda arm: others[arm].p90_s)
        result[workload] = Comparison(
            Standing(ours.mean_s, by_mean, others[by_mean].mean_s),
            Standing(ours.p90_s, by_p90, others[by_p90].p90_s),
        )
    return result


@dataclass(frozen=True, slots=True)
class Verdict:
    """One aim: whether it is reached (None: not all of it was measured) and the sentence with the numbers."""

    met: bool | None
    text: str

    def __str__(self) -> str:
        word = {True: "met", False: "MISSED", None: "not measured"}[self.met]
        return f"**{word}**: {self.text}"


def verdicts(comparisons: dict[str, Comparison]) -> list[Verdict]:
    """The two aims of the subject."""
    complete = set(comparisons) == set(TIMINGS)
    wins = [workload for workload, each in comparisons.items() if each.won]
    text = f"{SUBJECT} has the lowest mean and p90 TTFT of all arms on at least {MIN_WINS} of {len(TIMINGS)} workloads"
    reached = f": {len(wins)} of {len(comparisons)} measured" + (f" ({', '.join(wins)})" if wins else "")
    enough = len(wins) >= MIN_WINS
    first = Verdict(enough if complete or enough else None, text + (reached if comparisons else ""))
    text = f"{SUBJECT} is on none more than {MAX_RATIO - 1:.0%} behind the best, in mean or p90"
    behind = {workload: each.worst_ratio for workload, each in comparisons.items() if each.worst_ratio > MAX_RATIO}
    if behind:
        listed = ", ".join(f"{workload} {ratio:.2f}" for workload, ratio in behind.items())
        return [first, Verdict(False, f"{text}; it is on {listed} times the best")]
    if comparisons:
        text += f"; the worst ratio is {max(each.worst_ratio for each in comparisons.values()):.2f}"
    return [first, Verdict(True if complete else None, text)]


def wins_and_losses(table: dict[str, dict[str, Summary]], rows: Sequence[Row]) -> str:
    """A Markdown table, a workload a line."""
    lines = [
        "| workload | mean, ms | best of the others | ratio (lowest to highest seed) | p90, ms | best of the others |"
        " ratio (lowest to highest seed) | |",
        "|---|--:|---|--:|--:|---|--:|---|",
    ]
    by_seed = {
        seed: compare(summaries([row for row in rows if row.seed == seed])) for seed in {row.seed for row in rows}
    }
    for workload, each in compare(table).items():
        seeds = [comparisons[workload] for comparisons in by_seed.values() if workload in comparisons]
        word = (
            "lowest of all"
            if each.won
            else f"within {MAX_RATIO - 1:.0%}"
            if each.worst_ratio <= MAX_RATIO
            else "behind"
        )
        cells = [workload]
        for standing, ratios in (
            (each.mean, [one.mean.ratio for one in seeds]),
            (each.p90, [one.p90.ratio for one in seeds]),
        ):
            cells += [
                _ms(standing.value_s),
                f"{standing.best_other} {_ms(standing.best_other_s)}",
                f"{standing.ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            ]
        lines.append("| " + " | ".join([*cells, word]) + " |")
    return "\n".join(lines)


def times_table(table: dict[str, dict[str, Summary]], arms: Sequence[str]) -> str:
    """Mean / p90 TTFT in ms and the hit ratio; the lowest mean and the lowest p90 of a workload in bold."""

    def text(each: Summary, workload: dict[str, Summary]) -> str:
        mean, p90 = _ms(each.mean_s), _ms(each.p90_s)
        if each.mean_s == min(other.mean_s for other in workload.values()):
            mean = f"**{mean}**"
        if each.p90_s == min(other.p90_s for other in workload.values()):
            p90 = f"**{p90}**"
        errors = f", {each.errors} errors" if each.errors else ""
        return f"{mean} / {p90} ({each.hit_ratio:.0%}{errors})"

    return _grid(table, arms, text)


def figure_table(table: dict[str, dict[str, Summary]], arms: Sequence[str], figure: Callable[[Summary], str]) -> str:
    """One figure of each workload and arm."""
    return _grid(table, arms, lambda each, _: figure(each))


def _grid(
    table: dict[str, dict[str, Summary]],
    arms: Sequence[str],
    text: Callable[[Summary, dict[str, Summary]], str],
) -> str:
    present = [arm for arm in arms if any(arm in workload for workload in table.values())]
    lines = ["| | " + " | ".join(present) + " |", "|---" + "|--:" * len(present) + "|"]
    for name, workload in table.items():
        cells = [text(workload[arm], workload) if arm in workload else "" for arm in present]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    """Milliseconds, three digits."""
    ms = seconds * 1000
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}"


def cells_table(rows: Sequence[Row]) -> str:
    """How each workload's cells ran, over seeds and arms: the median, and in parentheses the highest."""
    lines = [
        "| workload | requests | arrivals, s | real s per s | side by side | a cell, real s | CPU of a cell |"
        " of it servers / arm / clients | CPU of others | sent late (p99), ms |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for workload in sorted({row.workload for row in rows}, key=_place):
        mine = [row for row in rows if row.workload == workload]

        def both(figure: Callable[[Row], float], form: str, mine: list[Row] = mine) -> str:
            values = [figure(row) for row in mine]
            return f"{statistics.median(values):{form}} ({max(values):{form}})"

        parts = (
            statistics.median(row.cpu_servers_ratio for row in mine),
            statistics.median(row.cpu_arm_ratio for row in mine),
            statistics.median(row.cpu_clients_ratio for row in mine),
        )
        cells = (
            workload,
            f"{statistics.median(row.requests for row in mine):,.0f}",
            f"{mine[0].seconds:g}",
            f"{mine[0].factor:g}",
            str(max(row.at_once for row in mine)),
            both(lambda row: row.real_s, ".0f"),
            both(lambda row: row.cpu_ratio, ".1%"),
            " / ".join(f"{part:.1%}" for part in parts),
            both(lambda row: row.cpu_others_ratio, ".0%"),
            both(lambda row: row.late_p99_s * 1000, ".1f"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def disturbed(rows: Sequence[Row]) -> str | None:
    """A warning when the CPU was so busy that times are not the arms' own; else None."""
    others = statistics.median(row.cpu_others_ratio for row in rows)
    late = sum(row.late_p99_s > LATE_S for row in rows)
    if others <= QUIET_RATIO and not late:
        return None
    return (
        f"> **This run was disturbed:** other processes took {others:.0%} of the machine's CPU in the median cell, and"
        f" in {late} of {len(rows)} cells one request in a hundred was sent more than {LATE_S * 1000:g} ms late."
        " Times of tens of milliseconds are not to be relied on; run it again on a quiet machine, or with --factor 2."
    )
