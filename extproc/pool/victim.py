"""If one server must go, which?

The one with the fewest tokens in flight (they are what a drain waits for), and of equal ones the one whose cache is
worth least: what no other server holds would have to be computed anew. A server that is dead has neither, so it goes
first.

None is named while another drain goes on (one at a time), when fewer ready servers than the floor would be left, when
the others have no room for what runs now, or when nothing is known of their load. An empty queue is no room: what runs
must fit. Nor is a server named that alone serves a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from extproc.pool.deadline import Bounds
from extproc.pool.drain import By, Phase
from extproc.pool.member import KV_TIGHT_RATIO, Member, State

SERVING = frozenset({State.READY, State.RETURNING})  # in any number


@dataclass(frozen=True, slots=True)
class Proposal:
    """Take this one out. Nothing is done yet."""

    member: Member
    tokens: int  # in flight there: at most so many will yet be generated
    alone_tokens: float  # in its cache and in no other
    why: str


@dataclass(frozen=True, slots=True)
class NoVictim:
    """None should go now."""

    why: str


def propose(
    members: Sequence[Member],
    now: float,
    *,
    alone_tokens: Callable[[Member], float],
    bounds: Bounds,
    floor: int = 1,
    server_requests: int | None = None,
) -> Proposal | NoVictim:
    """Name a victim, or say why there is none.

    `alone_tokens`: of a server's cache, what no other holds. `floor`: ready servers that must be left. A server can run
    `server_requests` at once; None: unknown.
    """
    draining = [m for m in members if m.drain and m.drain.phase is Phase.DRAINING and m.drain.by is not By.CONFIG]
    if draining:
        return NoVictim(f"{draining[0].address} is draining; one at a time")
    staying = [member for member in members if member.out is None]
    serving = [member for member in staying if member.state(now) in SERVING]
    dead = [member for member in staying if member.state(now) is State.UNHEALTHY]
    spare = len(serving) > floor
    eligible = [m for m in (dead + serving if spare else dead) if not _alone_serves(m, staying)]
    if not eligible:
        if spare:
            return NoVictim("each server is the only one for a model")
        return NoVictim(f"{len(serving)} ready, and the floor is {floor}")
    weighed = {member: (tokens_in_flight(member, bounds), alone_tokens(member)) for member in eligible}
    victim = min(eligible, key=lambda member: (*weighed[member], member.address))
    if victim in serving:
        tight = no_room([m for m in serving if m is not victim], serving, now, server_requests)
        if tight is not None:
            return NoVictim(tight)
    tokens, alone = weighed[victim]
    return Proposal(victim, tokens, alone, _why(victim, weighed, now))


def tokens_in_flight(member: Member, bounds: Bounds) -> int:
    """At most so many tokens will its requests yet generate; of those that are not ours nothing is known."""
    ours = sum(bounds.max_tokens if r.max_tokens is None else min(r.max_tokens, bounds.max_tokens) for r in member.open)
    others = max(0, int(member.reported) - member.in_flight) if member.health.last_error is None else 0
    return ours + others * bounds.max_tokens


def _alone_serves(member: Member, staying: Sequence[Member]) -> bool:
    if member.models is None:
        return False
    others = [other.models for other in staying if other is not member]
    if any(models is None for models in others):
        return False
    return bool(member.models - frozenset().union(*(models or () for models in others)))


def no_room(
    rest: Sequence[Member], serving: Sequence[Member], now: float, server_requests: int | None = None
) -> str | None:
    """Why `rest`, of which there is at least one, cannot be relied on to take what runs on all of `serving`; None: it
    can."""
    unknown = [member for member in serving if member.fresh_sample(now) is None]
    if unknown:
        return f"the load of {unknown[0].address} is not known"
    queued = sum(member.waiting or 0.0 for member in serving)
    if queued:
        return f"{queued:g} requests wait"
    running = sum(max(member.reported, member.in_flight) for member in serving)
    if server_requests is not None and running > server_requests * len(rest):
        return f"{running:g} requests run, and the others have room for {server_requests * len(rest)}"
    kv = sum(member.kv_usage_ratio or 0.0 for member in serving) / len(rest)
    if kv > KV_TIGHT_RATIO:
        return f"what runs would fill {kv:.0%} of the others' KV caches"
    return None


def _why(victim: Member, weighed: dict[Member, tuple[int, float]], now: float) -> str:
    tokens, alone = weighed[victim]
    if victim.state(now) is State.UNHEALTHY:
        return f"it serves nobody ({victim.problem(now)})"
    others = [each for member, each in weighed.items() if member is not victim]
    head = f"at most {tokens:,} tokens in flight"
    if others:
        head = f"fewest tokens in flight: at most {tokens:,} (next {min(each[0] for each in others):,})"
    return f"{head}; holds about {alone:,.0f} tokens that no other does"
