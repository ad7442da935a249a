"""What is to be done next, by what is recommended, which servers there are, and what is under way?

One step at a time, and the next after another look:

- More servers are wanted than there are or are coming: a drain that goes on is called off; else one is started.
- Fewer are wanted, and nothing else is under way: one is chosen, drained, and stopped when it is.
- What is not known is no reason to do anything. Nothing is stopped that was not drained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from extproc.actuator.account import Account, Leaving, Retiring
from extproc.actuator.advice import Advice
from extproc.actuator.drains import Drain, Stand
from extproc.actuator.servers import OUT, PROVISIONED, SERVING, Server, find
from extproc.pool.member import State

LEAST_START_S = 300.0
COLD_STARTS = 3.0  # as many times the expected start: then it is late
GONE_AFTER_S = 15.0  # a service that has just started may not have found its servers yet


class Do(StrEnum):
    """The steps."""

    WAIT = "wait"
    START = "start"  # run the start command
    CLEAR = "clear"  # end the drain that a former server at this address may have left
    RETIRE = "retire"  # choose a server (none is named), and drain it
    DRAIN = "drain"  # tell the services of the drain (again)
    UNDRAIN = "undrain"  # call it off
    RELEASE = "release"  # somebody else did
    STOP = "stop"  # run the stop command


@dataclass(frozen=True, slots=True)
class Step:
    """One of them, and why."""

    do: Do
    why: str
    endpoint: str | None = None
    # Of a wait: what it is about. The words change with every look, this only when something happens.
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator says. Seconds, where not said otherwise."""

    start_timeout_s: float | None = None  # a server that does not serve by then is late; None: by its expected start
    stop_expired: bool = True  # stop a server whose drain did not end by its deadline; else wait until it has
    most_starting: int | None = None  # servers that may be starting at once; None: any number

    def late_after_s(self, advice: Advice | None) -> float:
        if self.start_timeout_s is not None:
            return self.start_timeout_s
        expected_s = advice.cold_start_s if advice is not None and advice.cold_start_s is not None else 0.0
        return max(LEAST_START_S, COLD_STARTS * expected_s)


@dataclass(frozen=True, slots=True)
class Count:
    """The servers of a pool."""

    provisioned: int  # they serve or will, those that were started and have not appeared included
    ready: int
    unseen: int  # of the provisioned, those that have not appeared
    lost: int  # started, late, and nowhere to be seen: they may cost money, and are no capacity
    out: int  # draining, or drained with requests that still run


def count(account: Account, servers: Sequence[Server]) -> Count:
    """`servers` as of one look. One that is on its way out is none of those that serve."""
    leaving = None if account.retiring is None else account.retiring.endpoint
    staying = [server for server in servers if leaving is None or not server.is_at(leaving)]
    coming = [each for each in account.coming if leaving is None or each.endpoint != leaving]
    absent = [each for each in coming if each.endpoint is None or find(servers, each.endpoint) is None]
    unseen = sum(not each.late for each in absent)
    return Count(
        provisioned=sum(server.state in PROVISIONED for server in staying) + unseen,
        ready=sum(server.state in SERVING for server in staying),
        unseen=unseen,
        lost=len(absent) - unseen,
        out=sum(server.state in (State.DRAINING, State.EXPIRED) for server in servers),
    )


def next_step(
    account: Account, advice: Advice, servers: Sequence[Server], drain: Drain | None, rules: Rules, now: float
) -> Step:
    """What to do. `account`: after `observe`. `drain`: how that of the retiring server stands; None: none retires."""
    there = count(account, servers)
    more = advice.desired > there.provisioned
    retiring = account.retiring
    if retiring is not None and drain is not None:
        step = _retiring(retiring, drain, advice, there, rules, account, now, more=more)
        if step.do is not Do.WAIT or not more:
            return step
    for each in account.coming:
        if each.endpoint is not None and not each.cleared:
            return Step(Do.CLEAR, "a server before it may have been drained at this address", each.endpoint)
    if more:
        return _start(account, advice, there, rules, now)
    if retiring is not None:
        return Step(Do.WAIT, "a server is on its way out", topic="retiring")
    late = next((each for each in account.coming if each.late and each.endpoint is not None), None)
    if late is not None:
        took = f"it was started {now - late.since:.0f} s ago and does not serve"
        return _unless_paused(account, now, Step(Do.RETIRE, took, late.endpoint))
    if advice.desired < there.provisioned:
        return _fewer(account, advice, there, servers, now)
    still = f", {there.provisioned - there.ready} of them not ready yet" if there.ready < there.provisioned else ""
    why = f"{there.provisioned} servers, as recommended{still}: {advice.reason}"
    return Step(Do.WAIT, why, topic=f"as recommended {there.provisioned} {there.ready}")


def _retiring(
    retiring: Retiring,
    drain: Drain,
    advice: Advice,
    there: Count,
    rules: Rules,
    account: Account,
    now: float,
    *,
    more: bool,
) -> Step:
    """What the server on its way out needs."""
    endpoint = retiring.endpoint
    untouched = retiring.serves and retiring.leaving is Leaving.DRAINING
    if more and untouched and drain.stand is not Stand.GONE:
        wanted = f"{advice.desired} are wanted again and {there.provisioned} stay: {advice.reason}"
        return Step(Do.UNDRAIN, wanted, endpoint)
    if drain.stand is Stand.CANCELLED:
        return Step(Do.RELEASE, "somebody else has ended its drain", endpoint)
    if drain.stand is Stand.FORGOTTEN:
        return Step(Do.DRAIN, "a service that was restarted has forgotten its drain", endpoint)
    if drain.stand is Stand.DRAINING:
        return Step(Do.WAIT, f"{endpoint} drains: {drain.words}", endpoint, topic=f"draining {endpoint}")
    if drain.stand is Stand.EXPIRED and not rules.stop_expired:
        return Step(Do.WAIT, f"{endpoint} is not stopped: {drain.words}", endpoint, topic=f"expired {endpoint}")
    if drain.stand is Stand.GONE and now - (retiring.gone_since or now) < GONE_AFTER_S:
        return Step(Do.WAIT, f"{endpoint} has left its pool", endpoint, topic=f"gone {endpoint}")
    why = {Stand.EXPIRED: drain.words, Stand.GONE: "it has left its pool"}.get(drain.stand, "it is drained")
    return _unless_paused(account, now, Step(Do.STOP, why, endpoint))


def _start(account: Account, advice: Advice, there: Count, rules: Rules, now: float) -> Step:
    wanted = f"{advice.desired} are wanted and {there.provisioned} are there or coming"
    stopping = account.retiring is not None
    total = there.provisioned + there.lost + stopping
    if total >= advice.max_replicas:
        kept = f"{there.lost} that were started and never came" if there.lost else "the one that is still to be stopped"
        why = f"{wanted}, but with {kept} that would be more than max_replicas, {advice.max_replicas}"
        return Step(Do.WAIT, why, topic=f"full {there.lost}")
    starting = _starting(account)
    if rules.most_starting is not None and starting >= rules.most_starting:
        why = f"{wanted}; {starting} start, and no more than that may at once"
        return Step(Do.WAIT, why, topic="starting")
    left_s = account.start_pause.left_s(now)
    if left_s:
        failures = account.start_pause.failures
        why = f"{wanted}; after {failures} failed start{'s' * (failures > 1)} the next one is in {left_s:.0f} s"
        return Step(Do.WAIT, why, topic=f"start pause {failures}")
    return Step(Do.START, advice.reason)


def _fewer(account: Account, advice: Advice, there: Count, servers: Sequence[Server], now: float) -> Step:
    wanted = f"{advice.desired} are wanted and {there.provisioned} are there"
    if _starting(account):
        return Step(Do.WAIT, f"{wanted}; first those that start must serve", topic="fewer, starting")
    if there.out:
        who = next(server.address for server in servers if server.state in OUT)
        return Step(Do.WAIT, f"{wanted}; first the drain of {who} must end", topic=f"fewer, draining {who}")
    return _unless_paused(account, now, Step(Do.RETIRE, advice.reason))


def _starting(account: Account) -> int:
    """Servers that were started and are still expected to serve."""
    return sum(not each.late for each in account.coming)


def _unless_paused(account: Account, now: float, step: Step) -> Step:
    left_s = account.retire_pause.left_s(now)
    if not left_s:
        return step
    failures = account.retire_pause.failures
    what = "stop" if step.do is Do.STOP else "retire"
    whom = step.endpoint or "a server"
    why = f"to {what} {whom} has failed {failures} time{'s' * (failures > 1)}; again in {left_s:.0f} s"
    return Step(Do.WAIT, why, step.endpoint, topic=f"{what} pause {failures}")
