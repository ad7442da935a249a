"""What does a look at a pool of the router give?

Which of the router's states count as capacity, and how many tokens all servers have worked on together: what a server
counted stays counted when it goes or is restarted.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from extproc.autoscale.known import known
from extproc.autoscale.reading import Offered, PoolReading, ServerReading, ServerState
from extproc.pool.member import Member, State
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample

_COUNTED = ("begun", "prompt_tokens", "uncached_tokens", "output_tokens")


class PoolLook:
    """Looks at one pool, again and again."""

    def __init__(self, pool: Pool, requests: Callable[[], float | None]) -> None:
        """`requests`: how many have come for the pool so far, over all routers; None: not known now."""
        self._pool = pool
        self._requests = requests
        self._numbers = count()
        self._kept: dict[int, _Kept] = {}  # by id of the member, which is kept with it
        self._totals: dict[str, float | None] = dict.fromkeys(_COUNTED)  # None: no server has told of it

    def read(self, now: float) -> PoolReading:
        """The pool now. To be called at least once in the life of a sample, or what it counted is missed."""
        before, self._kept = self._kept, {}
        servers = []
        for member in self._pool.members:
            kept = before.get(id(member)) or _Kept(member, f"{member.address} {next(self._numbers)}")
            self._kept[id(member)] = kept
            self._count(kept, member.sample)
            state = _STATES.get(member.state(now))
            if state is not None:
                servers.append(_reading(kept.key, member, state, now))
        return PoolReading(
            at_s=now,
            servers=tuple(servers),
            known=self._pool.known,
            offered=Offered(self._requests(), **self._totals),
            starts_s=self._pool.starts.last_s,
        )

    def _count(self, kept: _Kept, sample: LoadSample | None) -> None:
        """Add what the server has counted since its last sample. A counter that fell began anew in between."""
        if sample is None or sample is kept.sample:
            return
        kept.sample = sample
        for name, value in zip(_COUNTED, _counters(sample), strict=True):
            then = kept.counters.get(name)
            if value is not None:
                kept.counters[name] = value
                grown = 0.0 if then is None else value - then if value >= then else value
                self._totals[name] = (self._totals[name] or 0.0) + grown


class _Kept:
    """What is kept of one server."""

    __slots__ = ("counters", "key", "member", "sample")

    def __init__(self, member: Member, key: str) -> None:
        self.member = member
        self.key = key
        self.sample: LoadSample | None = None
        self.counters: dict[str, float] = {}


# One that nobody sends requests to, and that has none, is no capacity and nothing to wait for.
_STATES = {
    State.STARTING: ServerState.STARTING,
    State.READY: ServerState.READY,
    State.RETURNING: ServerState.READY,
    State.UNHEALTHY: ServerState.STALE,
    State.DRAINING: ServerState.DRAINING,
    State.EXPIRED: ServerState.DRAINING,
}


def _reading(key: str, member: Member, state: ServerState, now: float) -> ServerReading:
    sample = member.fresh_sample(now)
    if state is ServerState.STALE and not member.health.reached:
        state = ServerState.STARTING  # nobody listens there yet, or not as a server that is well
    if state is ServerState.READY and (sample is None or not sample.usable):
        state = ServerState.STALE
    if sample is None:
        return ServerReading(key, state)
    return ServerReading(
        key,
        state,
        age_s=max(0.0, now - sample.taken_at_s),
        waiting=sample.waiting,
        running=sample.running,
        kv_usage_ratio=sample.kv_usage_ratio,
        preemptions=sample.preemptions,
        ttft=sample.ttft,
    )


def _counters(sample: LoadSample) -> tuple[float | None, ...]:
    """In the order of `_COUNTED`. A server without prefix caching computes all of its prompts."""
    prompt = known(sample.prompt_tokens)
    cached = known(sample.cached_prompt_tokens) or 0.0
    return (
        known(sample.ttft.count) if sample.ttft is not None else None,
        prompt,
        None if prompt is None else max(0.0, prompt - cached),
        known(sample.generation_tokens),
    )
