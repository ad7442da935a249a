"""A simulated server, a plan for it, and who watches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from extproc.autoscale.profile import Profile, Server, StepRow
from extproc.calibrate.bracket import Try
from extproc.calibrate.judge import Rule
from extproc.calibrate.kept import Kept
from extproc.calibrate.lengths import Independent, Lengths, read_shape
from extproc.calibrate.plan import Plan
from extproc.calibrate.run import calibrate
from extproc.calibrate.step import Now
from extproc.sim.server import SimServer
from extproc.sim.spec import EngineSpec

# Four at once, 5 ms a step: about 76 requests/s of the lengths below.
SPEC = EngineSpec(
    base_step_s=0.005,
    per_prefill_token_s=2e-5,
    per_decode_seq_s=1e-4,
    max_num_seqs=4,
    num_gpu_blocks=2001,
    max_model_len=2048,
)
LENGTHS = Independent(read_shape("uniform:20:180"), read_shape("uniform:4:12"))
# Wide and unsure: for tests of what happens on the way, not of the figure.
QUICK = Rule(target_s=0.15, confidence=0.5, tolerance=0.5, least_s=0.5, most=200)


class Watch:
    """Remembers what it is told. `stop_after`: steps, then the test is interrupted."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.notes: list[str] = []
        self.rows: list[StepRow] = []
        self.begun: list[float] = []
        self.phases: set[str] = set()
        self._stop_after = stop_after

    def note(self, text: str) -> None:
        self.notes.append(text)

    def probed(self, server: Server, ttft_s: float, stay_s: float) -> None:
        self.idle = (server, ttft_s, stay_s)

    def begins(self, number: int, step: Try) -> None:
        if self._stop_after is not None and number > self._stop_after:
            raise KeyboardInterrupt
        self.begun.append(step.rate_per_s)

    def now(self, now: Now) -> None:
        self.phases.add(now.phase)

    def ended(self, row: StepRow) -> None:
        self.rows.append(row)


def plan_of(server: SimServer | str, lengths: Lengths = LENGTHS, rule: Rule = QUICK, **values: Any) -> Plan:
    url = server if isinstance(server, str) else server.url
    plan = Plan(
        url=url,
        lengths=lengths,
        rule=rule,
        lengths_source=lengths.text,
        first_per_s=20.0,
        warm_up_s=0.5,
        cool_down_s=5.0,
    )
    return replace(plan, **values)


async def first_steps(plan: Plan, folder: Path, count: int) -> list[StepRow]:
    """Measure no more than so many."""
    watch = Watch(stop_after=count)
    try:
        await calibrated(plan, folder, watch)
    except KeyboardInterrupt:
        pass
    return watch.rows


async def calibrated(plan: Plan, folder: Path, watch: Watch | None = None, kept: Kept | None = None) -> Profile:
    kept = Kept(parameters=plan.parameters()) if kept is None else kept
    return await calibrate(plan, kept, folder / "profile.json.steps", Watch() if watch is None else watch)
