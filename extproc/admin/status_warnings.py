"""What should a person know at once? In words, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from extproc.admin.status_history import Lately
from extproc.autoscale.latest import Explained
from extproc.autoscale.recommendation import Verdict
from extproc.pool.member import Member, State
from extproc.pool.victim import SERVING
from extproc.router import Router
from extproc.unknown import NamedBy

NAMED = 3  # servers, in one sentence; others are counted
QUIET_S = 60.0  # without a question from Envoy since the start: that is worth a word
_OFTEN = 0.05  # of the picks
_NAMED_BY = {NamedBy.ROUTE_POOL: "route's pool", NamedBy.ROUTE_PROFILE: "route's profile"}
_ANSWERED = {
    "no_endpoints": "there was no server for them",
    "overloaded": "all servers were full",
    "model_not_found": "no server has their model",
    "invalid": "they were not valid",
}
_VERDICTS = {
    Verdict.LATE: "it is over its target, and no signal asked for more servers: the thresholds are too high",
    Verdict.EARLY: "it is far below its target with more load than the profile allows: the thresholds are too low",
    Verdict.AT_CAPACITY: "it is over its target, and max_replicas allows no more servers",
}


class Level(IntEnum):
    """How bad it is."""

    CRITICAL = 0  # requests fail, or will with the next server that goes
    WARNING = 1  # it works, and not as it should
    NOTE = 2  # worth knowing


@dataclass(frozen=True, slots=True)
class Warned:
    """One thing to know."""

    level: Level
    text: str


def warnings(
    router: Router,
    now: float,
    *,
    ready: bool,
    uptime_s: float,
    streams: Mapping[str, int],
    access_log: Mapping[str, int],
    failing: Mapping[str, Mapping[str, str]],
    eds: Mapping[str, Any],
    config_file: Mapping[str, Any],
    autoscale: Explained | None,
    lately: Lately | None,
) -> list[Warned]:
    """All there are. The parameters are those of `status.status`; `lately`: what the last minutes have counted, None:
    not known."""
    found = [
        *_asked(router, ready=ready, uptime_s=uptime_s, streams=streams, access_log=access_log, lately=lately),
        *_unknown_names(router),
        *_discovery(failing),
        *(each for name, plan in router.plans.items() for each in _pool(name, plan.pool.members, now)),
        *(_lately(router, lately) if lately is not None else ()),
        *_envoys(eds),
        *_unfollowed(config_file),
        *_recommendations(autoscale),
    ]
    return sorted(found, key=lambda each: each.level)  # stable


def _asked(
    router: Router,
    *,
    ready: bool,
    uptime_s: float,
    streams: Mapping[str, int],
    access_log: Mapping[str, int],
    lately: Lately | None,
) -> Iterator[Warned]:
    """Does Envoy ask us, tell us how it went, and do what we say?"""
    ledger = router.ledger
    if not ready:
        yield Warned(Level.WARNING, "the service is not ready: Envoy routes without it")
    if streams.get("errors"):
        yield Warned(
            Level.WARNING,
            f"{streams['errors']} requests met an error in the service and went on without a pick; its log has them",
        )
    unasked = lately is not None and not lately.counts.streams and lately.counts.unpicked > 0
    if unasked and lately is not None:
        yield Warned(
            Level.WARNING,
            f"Envoy does not ask: it has routed {lately.counts.unpicked} requests by itself in the last"
            f" {ago(lately.of_s)}, and asked about none. Does its ext_proc filter apply to their routes, and does it"
            " hold the service for healthy?",
        )
    elif ready and streams.get("total") == 0 and uptime_s >= QUIET_S:
        yield Warned(
            Level.NOTE,
            f"Envoy has not asked about any request since the service has started, {ago(uptime_s)} ago. If clients send"
            " some: does its ext_proc filter apply to their routes, and does its cluster have the address of this"
            " service?",
        )
    if ledger.picks.total() and not access_log["connected"]:
        yield Warned(
            Level.WARNING,
            "no access log is received: how requests end is unknown, and with exchange.response=close the requests in"
            " flight are estimated from samples",
        )
    if ledger.served_elsewhere:
        yield Warned(
            Level.WARNING,
            f"{ledger.served_elsewhere} requests were served by a host that was not named: do the endpoints here and"
            " in Envoy's cluster agree?",
        )


def _unknown_names(router: Router) -> Iterator[Warned]:
    for (by, name), count in router.unknown.names.items():
        yield Warned(
            Level.WARNING,
            f"{count} requests were routed as if their {_NAMED_BY[by]} {name!r} were not set: there is none",
        )


def _discovery(failing: Mapping[str, Mapping[str, str]]) -> Iterator[Warned]:
    for name, reasons in failing.items():
        for what, reason in reasons.items():
            told = reason if reason.startswith(what) else f"{what}: {reason}"
            yield Warned(Level.WARNING, f"pool {name}: {told}")


def _pool(name: str, members: Sequence[Member], now: float) -> Iterator[Warned]:
    """Its servers: is there one, are they well, is their load known, do their drains end?"""
    if not members:
        yield Warned(Level.CRITICAL, f"pool {name} has no endpoints")
        return
    states = [(member, member.state(now)) for member in members]
    unhealthy = [member for member, state in states if state is State.UNHEALTHY]
    if len(unhealthy) == len(members):
        yield Warned(Level.CRITICAL, f"pool {name}: no endpoint is healthy: {_named(unhealthy, now)}")
    elif not any(state in SERVING for _, state in states):
        words = ", ".join(f"{_count(states, state)} {state}" for state in State if _count(states, state))
        level = Level.WARNING if _count(states, State.STARTING) else Level.CRITICAL
        yield Warned(level, f"pool {name}: no endpoint is ready: {words}")
    elif unhealthy:
        yield Warned(Level.WARNING, f"pool {name}: {_part(unhealthy, members)} unhealthy: {_named(unhealthy, now)}")
    stale = [
        member
        for member, state in states
        if (state in SERVING or state is State.DRAINING) and member.fresh_sample(now) is None
    ]
    if not any(member.fresh_sample(now) for member in members):
        yield Warned(Level.WARNING, f"pool {name}: no endpoint's load is known; routing by our own requests in flight")
    elif stale:
        yield Warned(
            Level.WARNING,
            f"pool {name}: the load of {len(stale)} of {len(members)} endpoints is not known: {_aged(stale, now)}",
        )
    for member, state in states:
        if state is State.EXPIRED and member.drain is not None:
            still = member.in_flight or member.drain.open_at_end or 0
            yield Warned(
                Level.WARNING,
                f"pool {name}: the deadline of the drain of {member.address} has passed, with {still} requests there",
            )


def _lately(router: Router, lately: Lately) -> Iterator[Warned]:
    """What went wrong in the last minutes."""
    counts, span = lately.counts, f"in the last {ago(lately.of_s)}"
    for name in router.plans:
        if counts.panics[name]:
            yield Warned(
                Level.CRITICAL,
                f"pool {name}: {counts.panics[name]} of {counts.picks[name]} requests {span} were routed although every"
                " endpoint looked bad",
            )
    for reason, count in counts.rejections.items():
        level = Level.CRITICAL if reason == "no_endpoints" else Level.WARNING
        why = _ANSWERED.get(reason, reason)
        yield Warned(level, f"{count} requests {span} were answered with an error by the service: {why}")
    if counts.moved > _OFTEN * counts.picks.total():
        yield Warned(
            Level.WARNING,
            f"{counts.moved} of {counts.picks.total()} requests {span} were declined where they were sent first, and"
            " ran elsewhere",
        )


def _envoys(eds: Mapping[str, Any]) -> Iterator[Warned]:
    for each in eds.get("streams", ()):
        if each["refusal"] is not None:
            names = ", ".join(each["names"])
            yield Warned(
                Level.WARNING,
                f"Envoy {each['node']!r} refuses the endpoints of {names}, keeps those it had: {each['refusal']}",
            )
        if each["unknown"]:
            yield Warned(
                Level.WARNING,
                f"Envoy {each['node']!r} asks for the endpoints of {', '.join(each['unknown'])}: no pool here",
            )


def _unfollowed(config_file: Mapping[str, Any]) -> Iterator[Warned]:
    if config_file.get("failing"):
        yield Warned(
            Level.WARNING,
            f"the configuration file cannot be used, what was read before holds: {config_file['failing']}",
        )
    if config_file.get("after_restart"):
        changed = ", ".join(config_file["after_restart"])
        yield Warned(Level.NOTE, f"{config_file['path']} has changed; this counts only after a restart: {changed}")


def _recommendations(latest: Explained | None) -> Iterator[Warned]:
    if latest is None:
        return
    for name in latest.names:
        pool = f"pool {name}: autoscaling"
        yield from (Warned(Level.WARNING, f"{pool}: {each}") for each in latest.remarks(name).warnings)
        found = latest.get(name)
        if found is None:
            continue
        if found.doubt is not None and found.age_s is not None:  # else nothing was known yet
            yield Warned(Level.WARNING, f"{pool}: nothing is recommended: {found.doubt}")
        elif found.verdict in _VERDICTS and found.ttft_p99_s is not None and found.ttft_target_s is not None:
            first_token = f"time to first token {found.ttft_p99_s:.3g} s (p99), target {found.ttft_target_s:.3g} s"
            yield Warned(Level.WARNING, f"{pool}: {first_token}: {_VERDICTS[found.verdict]}")
        if found.min_too_low is not None:
            yield Warned(
                Level.NOTE,
                f"{pool}: min_replicas, {latest.policy(name).min_replicas}, is too low: the fastest ramp within"
                f" {found.lead_s:.0f} s, which a server takes to come, needs {found.min_too_low}",
            )


def ago(seconds: float) -> str:
    """A length of time for a person: `40 s`, `5 min`, `3 h`, `2 days`."""
    for most, unit_s, unit in ((100.0, 1.0, "s"), (100 * 60.0, 60.0, "min"), (48 * 3600.0, 3600.0, "h")):
        if seconds < most:
            return f"{max(1, round(seconds / unit_s))} {unit}"
    return f"{seconds / 86400.0:.0f} days"


def _count(states: Iterable[tuple[Member, State]], wanted: State) -> int:
    return sum(state is wanted for _, state in states)


def _part(some: Sequence[Member], members: Sequence[Member]) -> str:
    return f"{len(some)} of {len(members)} endpoints {'is' if len(some) == 1 else 'are'}"


def _named(members: Sequence[Member], now: float) -> str:
    return _listing([f"{member.address} ({member.health.problem(now)})" for member in members])


def _aged(members: Sequence[Member], now: float) -> str:
    said = []
    for member in members:
        told = "never told" if member.sample is None else f"told {ago(now - member.sample.taken_at_s)} ago"
        error = member.health.last_error
        said.append(f"{member.address} ({told}{'; ' + error[:200] if error else ''})")
    return _listing(said)


def _listing(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
