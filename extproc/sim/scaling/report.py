"""What do runs of one scenario under several policies say, in figures that can be compared?"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from extproc.sim.scaling import clairvoyant
from extproc.sim.scaling.run import Plan, Ran, run
from extproc.sim.scaling.scenarios import Scenario, keda, maker

CLAIRVOYANT = "clairvoyant"
NO_FORESIGHT = "no-foresight"
TUNED = "keda-tuned"
_TRIED = (CLAIRVOYANT, NO_FORESIGHT, TUNED)  # found by runs
ATTAINED = 0.99  # of the requests, within the target: what the clairvoyant must reach

Progress = Callable[[float, float], None]  # virtual seconds done, and in all


@dataclass(frozen=True, slots=True)
class Cell:
    """A run: what it was of, and what came out."""

    scenario: str
    policy: str
    seed: int
    requests: int
    slo_attainment: float  # the part of the requests with their first token within the target
    ttft_p99_s: float  # inf: more than one of a hundred was refused
    replica_hours: float
    clairvoyant_replica_hours: float | None  # None: it was not looked for, or nothing it tries reaches the target
    reversals: int  # changes of the wanted number against the one before, within ten minutes
    refused: int
    ran: Ran

    @property
    def ratio(self) -> float | None:
        """Of the clairvoyant's replica-hours."""
        bound = self.clairvoyant_replica_hours
        return self.replica_hours / bound if bound else None


def play(
    name: str,
    scenario: Scenario,
    policies: Sequence[str],
    seed: int,
    *,
    starting: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> list[Cell]:
    """Run a scenario under each of these policies, the same requests for all. The clairvoyant comes first, if it is
    among them; one that is found by runs is left out where none of them does.

    Raises:
        KeyError: an unknown policy.
    """
    plan = scenario.plan(seed)
    target_s = scenario.fleet.target_s
    cells: list[Cell] = []
    hours: float | None = None
    for policy in sorted(policies, key=lambda each: each != CLAIRVOYANT):
        if starting is not None:
            starting(policy)
        if policy in _TRIED:
            rule, most = _rule(policy, scenario, plan)
            bound = clairvoyant.least(plan, rule, target_s, most=most, attained=ATTAINED, seed=seed, progress=progress)
            if bound is None:
                continue
            ran = bound.ran
        else:
            ran = run(plan, maker(policy, scenario, plan), seed=seed, progress=progress)
        if policy == CLAIRVOYANT:
            hours = ran.replica_hours
        cells.append(
            Cell(
                scenario=name,
                policy=policy,
                seed=seed,
                requests=len(ran.arrivals),
                slo_attainment=ran.attained(target_s),
                ttft_p99_s=ran.ttft_p99_s(),
                replica_hours=ran.replica_hours,
                clairvoyant_replica_hours=hours,
                reversals=ran.reversals(),
                refused=ran.refused,
                ran=ran,
            )
        )
    return sorted(cells, key=lambda cell: list(policies).index(cell.policy))


def _rule(policy: str, scenario: Scenario, plan: Plan) -> tuple[clairvoyant.Rule, float]:
    """What is tried, and the greatest factor."""
    if policy == TUNED:
        return partial(keda, scenario), clairvoyant.MOST_BLIND
    rule = clairvoyant.by_load(plan, scenario.knee_per_s, foresight=policy == CLAIRVOYANT)
    return rule, clairvoyant.MOST


def as_record(cell: Cell) -> dict[str, object]:
    """A run as plain values, without what happened when."""
    return {
        name: getattr(cell, name)
        for name in (
            "scenario",
            "policy",
            "seed",
            "requests",
            "slo_attainment",
            "ttft_p99_s",
            "replica_hours",
            "clairvoyant_replica_hours",
            "reversals",
            "refused",
        )
    }


COLUMNS: tuple[tuple[str, Callable[[Cell], str]], ...] = (
    ("in target", lambda cell: f"{100 * cell.slo_attainment:.2f} %"),
    ("TTFT p99", lambda cell: f"{cell.ttft_p99_s:.2f} s"),
    ("replica-h", lambda cell: f"{cell.replica_hours:.2f}"),
    ("of bound", lambda cell: "" if cell.ratio is None else f"{cell.ratio:.2f}"),
    ("reversals", lambda cell: str(cell.reversals)),
    ("most", lambda cell: str(max((moment.there for moment in cell.ran.moments), default=0))),
)


def rows(cells: Iterable[Cell]) -> list[list[str]]:
    """The table as text: the policy, then each of COLUMNS."""
    return [[cell.policy, *(text(cell) for _, text in COLUMNS)] for cell in cells]


def as_csv(cells: Iterable[Cell]) -> str:
    """The fleet over time: a line each policy and look, with a heading."""
    out = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for cell in cells:
        desired = {said.at_s: said.desired for said in cell.ran.seen}
        for moment in cell.ran.moments:
            record = {
                "scenario": cell.scenario,
                "policy": cell.policy,
                "seed": cell.seed,
                **asdict(moment),
                "desired": desired.get(moment.at_s, ""),
            }
            if writer is None:
                writer = csv.DictWriter(out, list(record), lineterminator="\n")
                writer.writeheader()
            writer.writerow(record)
    return out.getvalue()
