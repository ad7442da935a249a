"""How does the server do at one rate?

An open loop: requests come when their time has come, however slow the answers are. A closed loop would wait for the
server, and so hide the queue. Requests of the warm-up do not count. While a step runs its requests are judged again and
again; once it is clear, a step that met the target lets its requests end, one that missed it breaks them off. Then the
server is waited for until it is idle, so that no step has the last one's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from extproc.autoscale.profile import StepRow
from extproc.calibrate.client import Server
from extproc.calibrate.errors import CalibrationError, ClientError, ServerError
from extproc.calibrate.gauges import read
from extproc.calibrate.judge import Judge, Judgement, Verdict
from extproc.calibrate.plan import Plan
from extproc.calibrate.sent import Sent, decided, quantile
from extproc.calibrate.step import Now, step_row
from extproc.pool.sample import LoadSample

MOST_OPEN = 4096  # requests at once: the queue grows without end
TICK_S = 0.1  # between two looks at what came
_IDLE_POLL_S = 0.1
_FINISH_LEAST_S = 30.0  # for the requests of a step that met its target
_FAILED_RATIO = 0.1  # of at least so many requests: then the server is broken, not slow
_FAILED_LEAST = 20
_FOREIGN_RATIO = 0.2  # of at least so many pages
_FOREIGN_LEAST = 5
_FULL = (408, 429, 503)  # refused since there is too much: over the target, no fault

NextRequest = Callable[[Random], bytes]  # the body of the next one


class NotIdleError(CalibrationError):
    """The server has work that is not of this test."""


@dataclass(slots=True)
class _Step:
    """What is known of a step while it runs."""

    sent: list[Sent] = field(default_factory=list)  # that count, in order of arrival
    samples: list[LoadSample] = field(default_factory=list)  # likewise
    tasks: dict[asyncio.Task[None], Sent] = field(default_factory=dict)
    last: LoadSample | None = None
    pages: int = 0
    foreign: int = 0  # pages on which there was more than this test has sent
    failure: BaseException | None = None  # of a request's task: no matter of the server


class StepRunner:
    """Runs steps against one server. `path`: what is asked for; `stay_s`: how long a request takes on an idle one."""

    def __init__(
        self, server: Server, plan: Plan, path: str, next_request: NextRequest, stay_s: float, has_metrics: bool
    ) -> None:
        self._server = server
        self._plan = plan
        self._path = path
        self._next_request = next_request
        self._stay_s = stay_s
        self._has_metrics = has_metrics
        self._now = asyncio.get_running_loop().time
        self._warm_up_s = max(plan.warm_up_s, 1.5 * stay_s)

    async def run(self, rate_per_s: float, attempt: int, watch: Callable[[Now], None]) -> StepRow:
        """One step, to the idle server. Each attempt has other arrivals. Raises CalibrationError."""
        step = _Step()
        begin_s = self._now() + self._warm_up_s
        seed = f"{self._plan.seed} {rate_per_s:g} {attempt}"
        workers = [
            asyncio.create_task(self._arrive(step, rate_per_s, seed, begin_s), name="arrivals"),
            asyncio.create_task(self._poll(step, begin_s), name="metrics"),
        ]
        try:
            judgement = await self._judge(step, begin_s, workers, watch)
            until_s = self._now()
            for worker in workers:
                worker.cancel()
            judged = step.sent[: judgement.of]
            samples = list(step.samples)
            await self._finish(step, judgement, watch)
        finally:
            await _cancel([*workers, *step.tasks])
        row = step_row(rate_per_s, until_s - begin_s, judged, until_s, read(samples, self._plan.poll_s), judgement)
        self._check(row, step, samples)
        await self.idle(watch)
        return row

    async def idle(self, watch: Callable[[Now], None], within_s: float | None = None) -> None:
        """Wait until the server has nothing to do. Raises NotIdleError if it has for too long."""
        if not self._has_metrics:
            await asyncio.sleep(2.0 * self._stay_s)
            return
        begin_s = self._now()
        limit_s = self._plan.cool_down_s if within_s is None else within_s
        quiet = 0
        while True:
            sample = await self._server.sample()
            busy: float | None = None
            if isinstance(sample, LoadSample):
                busy = (sample.running or 0.0) + (sample.waiting or 0.0)
                watch(Now("cooling down", self._now() - begin_s, 0, 0, sample.waiting, sample.running))
            quiet = quiet + 1 if busy == 0.0 else 0
            if quiet == 2:
                return
            if self._now() - begin_s > limit_s:
                said = sample if isinstance(sample, str) else f"{busy:g} requests are on it"
                raise NotIdleError(
                    f"{self._server.url} is not idle after {limit_s:g} s without a request of this test ({said}). It"
                    " needs a server that nobody else uses: `extproc drain` takes one out of the fleet"
                )
            await asyncio.sleep(_IDLE_POLL_S)

    async def _arrive(self, step: _Step, rate_per_s: float, seed: str, begin_s: float) -> None:
        rng = Random(seed)
        due_s = self._now()
        while True:
            due_s += rng.expovariate(rate_per_s)
            body = self._next_request(rng)
            await asyncio.sleep(max(0.0, due_s - self._now()))
            sent = Sent(due_s)
            if due_s >= begin_s:
                step.sent.append(sent)
            task = asyncio.create_task(self._server.ask(self._path, body, sent), name="request")
            step.tasks[task] = sent
            task.add_done_callback(lambda done: _ended(step, done))

    async def _poll(self, step: _Step, begin_s: float) -> None:
        while True:
            asked_s, before = self._now(), len(step.tasks)
            sample = await self._server.sample(within_s=max(2.0, self._plan.poll_s))
            if isinstance(sample, LoadSample):
                step.last = sample
                ours = max(before, len(step.tasks))
                step.pages += 1
                step.foreign += (sample.running or 0.0) + (sample.waiting or 0.0) > 1.05 * ours + 1.0
                if sample.taken_at_s >= begin_s:
                    step.samples.append(sample)
            await asyncio.sleep(max(0.0, asked_s + self._plan.poll_s - self._now()))

    async def _judge(
        self, step: _Step, begin_s: float, workers: list[asyncio.Task[None]], watch: Callable[[Now], None]
    ) -> Judgement:
        """Look until it is clear."""
        judge, last, p50_s = Judge(self._plan.rule), None, None
        target_s = self._plan.rule.target_s
        while True:
            await asyncio.sleep(TICK_S)
            for worker in workers:
                if worker.done():
                    worker.result()  # raises: it has no other end
            if step.failure is not None:
                raise step.failure
            now = self._now()
            self._fail_if_broken(step)
            times = decided(step.sent, now, target_s)
            found = judge.look(times, now - begin_s)
            if found is not None:
                last, p50_s = found, quantile(times, 0.5)
            sample = step.last
            gauges = (None, None, None) if sample is None else (sample.waiting, sample.running, sample.kv_usage_ratio)
            phase = "measuring" if now >= begin_s else "warming up"
            seconds = now - begin_s if now >= begin_s else now - begin_s + self._warm_up_s
            watch(Now(phase, seconds, len(step.tasks), len(times), *gauges, p50_s, last))
            if found is not None and found.verdict is not None:
                return found
            if len(step.tasks) > MOST_OPEN:
                over = sum(each > target_s for each in times)
                why = f"{len(step.tasks):,} requests are open: the queue grows without end"
                return Judgement(Verdict.MISSED, over, len(times), 0.0, 1.0, certain=True, why=why)

    async def _finish(self, step: _Step, judgement: Judgement, watch: Callable[[Now], None]) -> None:
        """Let the open requests end, if the server is well; else break them off."""
        if judgement.verdict is not Verdict.MET:
            for sent in step.tasks.values():
                sent.abandoned = True
            return
        begin_s = self._now()
        limit_s = max(_FINISH_LEAST_S, 5.0 * self._stay_s)
        while step.tasks and self._now() - begin_s < limit_s:
            watch(Now("cooling down", self._now() - begin_s, len(step.tasks), judgement.of))
            await asyncio.wait(step.tasks, timeout=TICK_S)
        for sent in step.tasks.values():
            sent.error = f"its answer had not ended {limit_s:g} s after the step"

    def _fail_if_broken(self, step: _Step) -> None:
        """Raises ServerError: what it answers is no matter of load."""
        wrong = [each for each in step.sent if each.error is not None and each.status not in _FULL]
        refused = next((each for each in wrong if each.status is not None and 400 <= each.status < 500), None)
        if refused is not None:
            raise ServerError(f"{self._server.url} answers {refused.status}: {refused.error}")
        ended = sum(each.error is not None or each.first_s is not None for each in step.sent)
        if ended >= _FAILED_LEAST and len(wrong) > _FAILED_RATIO * ended:
            status = "" if wrong[-1].status is None else f"status {wrong[-1].status}, "
            raise ServerError(
                f"{len(wrong)} of {ended} requests failed, the last with: {status}{wrong[-1].error}. That is no matter"
                f" of load; look at the log of {self._server.url}"
            )

    def _check(self, row: StepRow, step: _Step, samples: list[LoadSample]) -> None:
        """Whether the figures are of the server and of this test. Raises CalibrationError."""
        if step.pages >= _FOREIGN_LEAST and step.foreign > _FOREIGN_RATIO * step.pages:
            raise NotIdleError(
                f"{self._server.url} has more requests than this test sends. It needs a server that nobody else uses:"
                " `extproc drain` takes one out of the fleet"
            )
        if read(samples, self._plan.poll_s).restarted:
            raise ServerError(f"{self._server.url} was started anew during a step; look at its log")
        late_s, limit_s = row.late_p99_s, self._plan.late_ratio * self._plan.rule.target_s
        if late_s is not None and late_s > limit_s:
            raise ClientError(
                f"at {row.rate_per_s:g} requests/s this client is the bottleneck: 1 % of its requests went out"
                f" {late_s * 1000:.0f} ms late or more, which is over {self._plan.late_ratio:.0%} of the target. Run it"
                " on an idle machine of its own; --max-lateness says how much is borne"
            )


def _ended(step: _Step, task: asyncio.Task[None]) -> None:
    step.tasks.pop(task, None)
    if not task.cancelled():
        step.failure = step.failure or task.exception()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
