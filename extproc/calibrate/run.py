"""Which rate does one server take, and what was read from it on the way?

Look at the server while it is idle, then measure one rate after the other (see `bracket`) until the knee is between two
that are close. Each step is kept as soon as it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from extproc.autoscale.profile import Profile, Server, StepRow
from extproc.calibrate import kept as files
from extproc.calibrate.bracket import Knee, TooLow, Tried, Try, rounded, search
from extproc.calibrate.client import Server as Client
from extproc.calibrate.client import new_session
from extproc.calibrate.errors import ClientError, OtherParametersError, TooSlowError
from extproc.calibrate.fleet import differences
from extproc.calibrate.kept import Kept
from extproc.calibrate.load import StepRunner
from extproc.calibrate.plan import Plan
from extproc.calibrate.probe import Probed, identify, probe
from extproc.calibrate.result import profile_of
from extproc.calibrate.step import Now

_IDLE_FIRST_S = 10.0  # the server is to be idle by then, before anything is sent


class Watcher(Protocol):
    """Who is told how it goes, on the event loop."""

    def note(self, text: str) -> None:
        """Something that a person should know."""

    def probed(self, server: Server, ttft_s: float, stay_s: float) -> None:
        """What the server is, and what a request takes with nothing else to do."""

    def begins(self, number: int, step: Try) -> None:
        """A rate is next; `number`: from 1 on."""

    def now(self, now: Now) -> None:
        """How far it is, several times a second."""

    def ended(self, row: StepRow) -> None:
        """A step is done."""


async def calibrate(
    plan: Plan,
    kept: Kept,
    steps_file: Path,
    watcher: Watcher,
    *,
    like: Sequence[Server] = (),
    api_key: str | None = None,
    ca_file: str | None = None,
) -> Profile:
    """The whole load test. `kept`: what was measured before; written to `steps_file` as it grows. `like`: servers that
    the profile is to be of; it is noted where they are not like this one.

    Raises CalibrationError.
    """
    done = None if kept.server is None or kept.first_per_s is None else _following(plan, kept, kept.first_per_s)
    if isinstance(done, Knee):
        return profile_of(plan, kept, done)
    async with new_session(api_key, ca_file) as session:
        server = Client(session, plan.url, plan.metrics_url, asyncio.get_running_loop().time)
        card, notes, has_metrics = await identify(server, plan)
        _require_same_server(kept, card, steps_file)
        notes += [f"{sentence}: the profile may not fit it" for sentence in differences(card, like)]
        for note in notes:
            watcher.note(note)
        told = len(notes)
        idle = StepRunner(server, plan, "", lambda _: b"", 0.0, has_metrics)
        await idle.idle(watcher.now, _IDLE_FIRST_S)
        probed = await probe(server, plan, (card, notes, has_metrics))
        for note in probed.notes[told:]:
            watcher.note(note)
        if kept.first_per_s is None:
            kept.first_per_s = plan.first_per_s or rounded(1.0 / probed.stay_s)
        kept.server = card
        kept.idle_ttft_s, kept.idle_stay_s = probed.ttft_s, probed.stay_s
        watcher.probed(card, probed.ttft_s, probed.stay_s)
        runner = StepRunner(server, plan, probed.path, probed.next_request, probed.stay_s, has_metrics)
        knee = await _search(plan, kept, steps_file, runner, probed, watcher)
    return profile_of(plan, kept, knee)


async def _search(
    plan: Plan, kept: Kept, steps_file: Path, runner: StepRunner, probed: Probed, watcher: Watcher
) -> Knee:
    assert kept.first_per_s is not None
    while True:
        following = _following(plan, kept, kept.first_per_s)
        if isinstance(following, Knee):
            return following
        if isinstance(following, TooLow):
            p99_s = next(row.ttft_p99_s for row in kept.steps if row.rate_per_s == following.rate_per_s)
            raise TooSlowError(
                f"the target of {plan.rule.target_s:g} s is missed however few requests come: at"
                f" {following.rate_per_s:g} requests/s the 99th percentile is"
                f" {'unknown' if p99_s is None else f'{p99_s:.3g} s'}. With nothing else to do a usual request takes"
                f" {probed.ttft_s:.3g} s to the first token, so it is probably the longest prompts that miss it: a"
                " higher --ttft-p99, or shorter prompts"
            )
        watcher.begins(len(kept.steps) + 1, following)
        attempt = sum(each.rate_per_s == following.rate_per_s for each in kept.steps)
        row = await _step(runner, following.rate_per_s, attempt, watcher)
        kept.steps.append(row)
        files.save(steps_file, kept)
        watcher.ended(row)


def _following(plan: Plan, kept: Kept, first_per_s: float) -> Try | Knee | TooLow:
    return search([Tried(row.rate_per_s, row.met) for row in kept.steps], first_per_s, plan.rule.tolerance)


async def _step(runner: StepRunner, rate_per_s: float, attempt: int, watcher: Watcher) -> StepRow:
    """Once more if the client was late: it may have been an accident."""
    try:
        return await runner.run(rate_per_s, attempt, watcher.now)
    except ClientError as error:
        watcher.note(f"{error}. Measured once more")
    await runner.idle(watcher.now)
    return await runner.run(rate_per_s, attempt, watcher.now)


def _require_same_server(kept: Kept, card: Server, path: Path) -> None:
    if kept.server is None or not kept.steps:
        return
    then, now = kept.server.model_dump(), card.model_dump()
    differ = [f"{name} {then[name]}, now {now[name]}" for name in then if then[name] != now[name]]
    if differ:
        raise OtherParametersError(
            f"{path} has {len(kept.steps)} steps of another server ({'; '.join(differ)}). --anew measures all again"
        )
