"""Is the pool too full for a request of this priority?

A rule says: when every server that could be picked has so many requests waiting, requests of this priority or a less
important one (as for vLLM, a higher number) are turned away. The bound of a priority is the least of the rules that
are about it, so a more important request is never turned away where a less important one is not.

A server's queue is what its last sample shows waiting, and what was sent there since. Of the latter no more counts than
the sample shows waiting: where nothing waits there is room, and what is sent there begins at once. So a burst into an
idle pool passes whole, and is seen by the next sample. A server whose queue is unknown is never full.

Without rules nothing is turned away: a queue in vLLM starves nobody, and only it knows when there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1, 30


class Endpoint(Protocol):
    """What the operator says of a server."""

    @property
    def weight(self) -> float: ...


class Queue(Protocol):
    """A server and what waits there. `waiting` (None: the page did not tell) and `begun_per_s` are of its last sample,
    which is believed until `usable_until_s` (monotonic clock)."""

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def waiting(self) -> float | None: ...
    @property
    def unseen(self) -> int: ...
    @property
    def usable_until_s(self) -> float: ...
    @property
    def begun_per_s(self) -> float | None: ...


@dataclass(frozen=True, slots=True)
class ShedRule:
    """Requests of this priority and less important ones are turned away from `waiting` requests on."""

    waiting: float  # at each server, by its weight; above 0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Shed:
    """A request is turned away."""

    priority: int  # the request's
    waiting: float  # the bound of that priority: every server has that many, by its weight
    retry_after_s: int


def shed(rules: Sequence[ShedRule], servers: Sequence[Queue], priority: Callable[[], int], now: float) -> Shed | None:
    """Whether to turn a request away that one of `servers` (at least one) would get; None: no.

    `priority` is asked only when the pool is full by the lowest rule: it may have to read the request.
    """
    if not rules or not full(servers, min([rule.waiting for rule in rules]), now):
        return None
    asked = priority()
    bound = bound_of(asked, rules)
    if bound is None or not full(servers, bound, now):
        return None
    return Shed(asked, bound, retry_after_s(servers, bound))


def bound_of(priority: int, rules: Sequence[ShedRule]) -> float | None:
    """From how many waiting requests on this priority is turned away; None: never."""
    return min((rule.waiting for rule in rules if priority >= rule.priority), default=None)


def full(servers: Sequence[Queue], waiting: float, now: float) -> bool:
    """Whether each of the servers is known to have that many requests waiting, by its weight."""
    for server in servers:
        shown = server.waiting
        if shown is None or now > server.usable_until_s or _queued(server) < waiting * server.endpoint.weight:
            return False
    return True


def retry_after_s(servers: Sequence[Queue], waiting: float) -> int:
    """Whole seconds until the pool will have worked its queues off to below the bound, at the rate at which it began
    requests lately; 1 where no server tells that rate."""
    excess, rate_per_s, known = 1.0, 0.0, False
    for server in servers:
        if server.begun_per_s is not None:
            known = True
            rate_per_s += server.begun_per_s
            excess += _queued(server) - waiting * server.endpoint.weight
    if not known:
        return MIN_RETRY_AFTER_S
    if excess >= MAX_RETRY_AFTER_S * rate_per_s:
        return MAX_RETRY_AFTER_S
    return max(MIN_RETRY_AFTER_S, ceil(excess / rate_per_s))


def _queued(server: Queue) -> float:
    shown = server.waiting or 0.0
    return shown + min(server.unseen, shown)
