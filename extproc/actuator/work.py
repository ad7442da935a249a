"""How is one step after the other taken? Look, decide, write down what will be done, do it.

What is written down comes first: whoever finds it after a crash knows what may have happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from extproc.actuator import advice as advices
from extproc.actuator import servers as servers_page
from extproc.actuator.account import Change, Coming, Event, Leaving, Pause, Retiring, observe
from extproc.actuator.advice import Advice, NoAdviceError
from extproc.actuator.book import Book
from extproc.actuator.command import Commands, Ended
from extproc.actuator.decide import Do, Rules, Step, count, next_step
from extproc.actuator.drains import Drain, Stand, together
from extproc.actuator.journal import Journal
from extproc.actuator.servers import SERVING, Server, find
from extproc.actuator.service import AwayError, RefusedError, Service
from extproc.endpoint import split_host_port

_MOST_STEPS = 1000  # of a round: more than any fleet has servers


class Result(StrEnum):
    """What a round came to."""

    DONE = "done"  # all that could be done now
    FAILED = "failed"  # a step failed
    NO_ADVICE = "no advice"  # there is nothing to go by: the service is away, or has no recommendation


@dataclass(frozen=True, slots=True)
class _Seen:
    advice: Advice
    servers: Sequence[Server]
    drain: Drain | None


class Actuator:
    """Of one pool. `book` must be locked, except for `would`."""

    def __init__(
        self,
        pool: str,
        service: Service,
        commands: Commands,
        book: Book,
        rules: Rules,
        journal: Journal,
        *,
        deadline_s: float | None = None,
        env: dict[str, str] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`deadline_s`: of a drain; None: the service says. `env`: for the commands. `stopping`: no more steps."""
        self._pool = pool
        self._service = service
        self._commands = commands
        self._book = book
        self._rules = rules
        self._journal = journal
        self._deadline_s = deadline_s
        self._env = env or {}
        self._stopping = stopping
        self._clock = clock
        self._kept = book.load()  # as in the file
        self.account = self._kept

    def round(self) -> Result:
        """Do all that can be done without waiting for a server. Raises BookError."""
        for _ in range(_MOST_STEPS):
            seen = self._look(keep=True)
            if seen is None:
                return Result.NO_ADVICE
            step = next_step(self.account, seen.advice, seen.servers, seen.drain, self._rules, self._clock())
            if step.do is Do.WAIT:
                self._journal.waits(step.topic, f"waits: {step.why}", **self._numbers(seen))
                return Result.DONE
            if self._stopping():
                return Result.DONE
            try:
                result = self._take(step, seen)
            except (AwayError, RefusedError) as error:
                self._journal.waits(f"away {error}", f"could not {step.do}: {error}")
                return Result.FAILED
            if result is not None:
                return result
        return Result.DONE

    def would(self) -> Result:
        """Tell the next step, and take none."""
        seen = self._look(keep=False)
        if seen is None:
            return Result.NO_ADVICE
        step = next_step(self.account, seen.advice, seen.servers, seen.drain, self._rules, self._clock())
        text = {
            Do.WAIT: f"would wait: {step.why}",
            Do.START: f"would start a server ({self._which(seen)}): {step.why}",
            Do.CLEAR: f"would see that no drain is left at {step.endpoint}",
            Do.RETIRE: f"would drain and stop {step.endpoint or 'a server'}: {step.why}",
            Do.DRAIN: f"would drain {step.endpoint} again: {step.why}",
            Do.UNDRAIN: f"would undrain {step.endpoint}: {step.why}",
            Do.RELEASE: f"would leave {step.endpoint} alone: {step.why}",
            Do.STOP: f"would stop {step.endpoint}: {step.why}",
        }[step.do]
        topic = step.topic or f"{step.do} {step.endpoint} {seen.advice.desired}"
        if step.do is Do.RETIRE and step.endpoint is None:
            try:
                endpoint, why = self._service.victim(self._pool)
                text = f"would drain and stop {endpoint} ({why}): {step.why}"
                topic += endpoint
            except (AwayError, RefusedError) as error:
                text = f"would wait: {step.why}; but {error}"
        self._journal.waits(f"would {topic}", text, step=str(step.do), **self._numbers(seen))
        return Result.DONE

    def left(self) -> str:
        """What is under way when nobody goes on: a sentence for a person; "" if nothing is."""
        parts = []
        if self.account.coming:
            coming = ", ".join(each.endpoint or "one without an address" for each in self.account.coming)
            parts.append(f"still to come: {coming}")
        retiring = self.account.retiring
        if retiring is not None and retiring.leaving is Leaving.DRAINING:
            parts.append(
                f"{retiring.endpoint} goes on draining (the next extproc scale goes on from there; extproc undrain"
                f" {retiring.endpoint} brings it back)"
            )
        elif retiring is not None:
            parts.append(f"{retiring.endpoint} is drained and its stop command has not succeeded yet")
        return "; ".join(parts)

    # Looking --------------------------------------------------------------------------------------------------------

    def _look(self, *, keep: bool) -> _Seen | None:
        """What there is; None: there is nothing to go by, which is told."""
        now = self._clock()
        try:
            # The servers first: one that appears in between is then counted as coming, not as missing.
            servers = servers_page.read(self._service.status(), self._pool)
            retiring = self.account.retiring
            drain = None
            if retiring is not None:
                drain = together(self._service.shown(self._pool, retiring.endpoint), retiring.told)
            problem, advice = "", None
            try:
                advice = advices.read(self._service.recommendation(self._pool))
            except NoAdviceError as error:
                problem = str(error)
        except (AwayError, NoAdviceError) as error:
            self._journal.waits(f"away {error}", f"does nothing: {error}")
            return None
        self.account, events = observe(self.account, servers, now, self._rules.late_after_s(advice))
        if drain is not None:
            self._note_gone(drain, now)
        if keep:
            self._keep()
            for event in events:
                self._tell(event)
        if advice is None:
            self._journal.waits(f"no advice {problem}", f"does nothing: {problem}")
            return None
        return _Seen(advice, servers, drain)

    def _note_gone(self, drain: Drain, now: float) -> None:
        retiring = self.account.retiring
        assert retiring is not None
        since = (retiring.gone_since or now) if drain.stand is Stand.GONE else None
        if since != retiring.gone_since:
            self.account = replace(self.account, retiring=replace(retiring, gone_since=since))

    def _keep(self) -> None:
        if self.account != self._kept:
            self._book.save(self.account)
            self._kept = self.account

    def _tell(self, event: Event) -> None:
        who, after_s = event.coming.endpoint, event.after_s
        if event.change is Change.APPEARED:
            text = f"{who} has appeared: it is the one that was started {after_s:.0f} s ago"
        elif event.change is Change.READY:
            text = f"{who} serves, {after_s:.0f} s after its start"
        elif event.change is Change.TAKEN:
            text = f"{who} is drained by somebody else before it served: it is left to them"
        elif who is not None:
            text = f"{who} does not serve {after_s:.0f} s after its start"
        else:
            text = (
                f"the server that was started {after_s:.0f} s ago has not appeared. It is no longer counted on, but"
                f" counts for max_replicas; if there is none, end this command and move {self._book.path} away"
            )
        self._journal.tell(str(event.change), text, endpoint=who, after_s=round(after_s, 3))

    def _numbers(self, seen: _Seen) -> dict[str, Any]:
        there = count(self.account, seen.servers)
        return {"desired": seen.advice.desired, "provisioned": there.provisioned, "ready": there.ready}

    def _which(self, seen: _Seen) -> str:
        return f"{count(self.account, seen.servers).provisioned + 1} of {seen.advice.desired}"

    # The steps. None: it is done, and the next one may follow -------------------------------------------------------

    def _take(self, step: Step, seen: _Seen) -> Result | None:
        if step.do is Do.START:
            return self._start(step, seen)
        if step.do is Do.RETIRE:
            return self._retire(step, seen)
        assert step.endpoint is not None
        if step.do is Do.CLEAR:
            return self._clear(step.endpoint)
        retiring = self.account.retiring
        assert retiring is not None
        if step.do is Do.DRAIN:
            self._journal.tell("drain", f"drains {step.endpoint} again: {step.why}", endpoint=step.endpoint)
            self._drain(retiring)
            return None
        if step.do is Do.UNDRAIN:
            return self._undrain(step, seen)
        if step.do is Do.RELEASE:
            pause = self.account.retire_pause.longer(self._clock())
            self.account = replace(self.account, retiring=None, retire_pause=pause)
            self._keep()
            self._journal.tell("release", f"leaves {step.endpoint} alone: {step.why}", endpoint=step.endpoint)
            return None
        return self._stop(retiring, step, seen)

    def _start(self, step: Step, seen: _Seen) -> Result | None:
        number, now = self.account.starts + 1, self._clock()
        before = tuple(server.address for server in seen.servers)
        text = f"starts a server ({self._which(seen)}): {step.why}"
        coming = Coming(number, now, before)
        self.account = replace(self.account, starts=number, coming=(*self.account.coming, coming))
        self._keep()
        self._journal.tell("start", text, why=step.why, **self._numbers(seen))
        ended = self._commands.run("start", (), self._environment("start", None, step.why, seen))
        # One that was broken off may have started a server all the same.
        unsure = ended.timed_out or (ended.status is not None and ended.status < 0)
        misnamed = self._misnamed(ended, number, seen)
        problem = ended.problem or misnamed
        if problem is not None:
            pause = self.account.start_pause.longer(self._clock())
            self.account = replace(self.account, start_pause=pause)
            if not unsure:
                self.account = self.account.without_coming(number)
            elif misnamed is None:
                self.account = self.account.with_coming(replace(coming, endpoint=ended.endpoint))
            self._keep()
            then = "a server may come of it, and is waited for" if unsure else "no server is counted on"
            again = f"the next try is in {pause.left_s(self._clock()):.0f} s"
            self._journal.tell("failed", f"the start command failed: {problem}; {then}; {again}", **_how(ended))
            return Result.FAILED
        self.account = self.account.with_coming(replace(coming, endpoint=ended.endpoint))
        self._keep()
        who = ended.endpoint or "a server whose address it did not tell"
        text = f"started {who} in {ended.took_s:.1f} s; now it must come to serve"
        if ended.endpoint is None and ended.last_line:
            text += f" (its last line is no host:port: {ended.last_line[:80]})"
        self._journal.tell("started", text, endpoint=ended.endpoint, **_how(ended))
        self._warn_left_open(ended)
        return None

    def _misnamed(self, ended: Ended, number: int, seen: _Seen) -> str | None:
        """Why the address that the start command told cannot be that of a new server."""
        endpoint = ended.endpoint
        if endpoint is None:
            return None
        if self.account.retiring is not None and self.account.retiring.endpoint == endpoint:
            return f"it named {endpoint}, which is on its way out"
        if any(each.endpoint == endpoint and each.number != number for each in self.account.coming):
            return f"it named {endpoint}, which was started before and does not serve yet"
        server = find(seen.servers, endpoint)
        if server is not None and server.state in SERVING:
            return f"it named {endpoint}, which serves already"
        return None

    def _clear(self, endpoint: str) -> Result | None:
        """A server that stays listed when it is stopped stays drained; the new one at its address must not be."""
        if any(view is not None and view.get("phase") for view in self._service.shown(self._pool, endpoint).values()):
            try:
                self._service.undrain(self._pool, endpoint)
                self._journal.tell(
                    "undrain", f"ends the drain of the server that was at {endpoint} before", endpoint=endpoint
                )
            except RefusedError as error:
                self._journal.tell("failed", f"{endpoint} was started and stays drained: {error}", endpoint=endpoint)
        for each in self.account.coming:
            if each.endpoint == endpoint:
                self.account = self.account.with_coming(replace(each, cleared=True))
        self._keep()
        return None

    def _retire(self, step: Step, seen: _Seen) -> Result | None:
        endpoint, chosen = step.endpoint, ""
        if endpoint is None:
            try:
                endpoint, chosen = self._service.victim(self._pool)
            except RefusedError as error:
                there = count(self.account, seen.servers).provisioned
                wanted = f"{seen.advice.desired} are wanted and {there} are there"
                self._journal.waits(
                    f"no victim {seen.advice.desired}", f"waits: {wanted}, but {error}", **self._numbers(seen)
                )
                return Result.DONE
        retiring = Retiring(endpoint, self._clock(), step.why, serves=step.endpoint is None)
        numbers = self._numbers(seen)
        self.account = replace(self.account, retiring=retiring)
        self._keep()
        text = f"drains {endpoint} ({chosen}): {step.why}" if chosen else f"drains {endpoint}, to stop it: {step.why}"
        self._journal.tell("drain", text, endpoint=endpoint, why=step.why, chosen=chosen, **numbers)
        self._drain(retiring)
        return None

    def _drain(self, retiring: Retiring) -> None:
        left_s = None
        if self._deadline_s is not None:
            left_s = max(0.0, retiring.since + self._deadline_s - self._clock())
        told = self._service.drain(self._pool, retiring.endpoint, left_s)
        self.account = replace(self.account, retiring=replace(retiring, told=dict(told)))
        self._keep()

    def _undrain(self, step: Step, seen: _Seen) -> Result | None:
        assert step.endpoint is not None
        try:
            self._service.undrain(self._pool, step.endpoint)
        except RefusedError as error:
            self.account = replace(self.account, retiring=None)
            self._keep()
            self._journal.tell("failed", f"{step.endpoint} cannot be brought back: {error}", endpoint=step.endpoint)
            return None
        self.account = replace(self.account, retiring=None)
        self._keep()
        text = f"undrains {step.endpoint} in place of a start: {step.why}"
        self._journal.tell("undrain", text, endpoint=step.endpoint, why=step.why, **self._numbers(seen))
        return None

    def _stop(self, retiring: Retiring, step: Step, seen: _Seen) -> Result | None:
        endpoint = retiring.endpoint
        self.account = replace(self.account, retiring=replace(retiring, leaving=Leaving.STOPPING))
        self._keep()
        took_s = self._clock() - retiring.since
        self._journal.tell(
            "stop",
            f"stops {endpoint}, {took_s:.0f} s after its drain began: {step.why}",
            endpoint=endpoint,
            drained=seen.drain is not None and seen.drain.stand is Stand.DRAINED,
        )
        ended = self._commands.run("stop", (endpoint,), self._environment("stop", endpoint, retiring.why, seen))
        if ended.problem is not None:
            pause = self.account.retire_pause.longer(self._clock())
            self.account = replace(self.account, retire_pause=pause)
            self._keep()
            again = f"{endpoint} stays drained, the next try is in {pause.left_s(self._clock()):.0f} s"
            text = f"the stop command failed: {ended.problem}; {again}"
            self._journal.tell("failed", text, endpoint=endpoint, **_how(ended))
            return Result.FAILED
        coming = tuple(each for each in self.account.coming if each.endpoint != endpoint)
        self.account = replace(self.account, coming=coming, retiring=None, retire_pause=Pause())
        self._keep()
        self._journal.tell("stopped", f"stopped {endpoint} in {ended.took_s:.1f} s", endpoint=endpoint, **_how(ended))
        self._warn_left_open(ended)
        return None

    def _environment(self, action: str, endpoint: str | None, why: str, seen: _Seen) -> dict[str, str]:
        """What the command may want to know; all of it is text."""
        values = {
            "EXTPROC_ACTION": action,
            "EXTPROC_POOL": self._pool,
            "EXTPROC_DESIRED": str(seen.advice.desired),
            "EXTPROC_REASON": why,
        }
        if endpoint is not None:
            host, port = split_host_port(endpoint)
            values |= {"EXTPROC_ENDPOINT": endpoint, "EXTPROC_HOST": host, "EXTPROC_PORT": str(port)}
        return self._env | values

    def _warn_left_open(self, ended: Ended) -> None:
        if ended.left_open:
            self._journal.tell(
                "warning",
                "the command left a process running that would write to its output, which nobody reads any more: send"
                " that of the process elsewhere, as with >server.log 2>&1",
            )


def _how(ended: Ended) -> dict[str, Any]:
    return {"status": ended.status, "took_s": round(ended.took_s, 3)}
