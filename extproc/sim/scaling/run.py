"""How do the requests fare while a fleet follows its load?

A discrete-event run in virtual time: nothing sleeps, and the same seed gives the same result. What happens, in order of
its time: a request comes and the router picks at once; it reaches its engine a hop later; engines work, and the end of
a stream is told to the router; metrics pages are read; the access log comes in batches. Every 5 s the scaler looks at
the pool, every 15 s the platform asks it. A server that is asked for is seen after `node_s`, refuses connections while
it loads, then serves; each takes a little more or less. One that goes is drained first: it leaves when the pool says
that it may be stopped.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random

from extproc.autoscale.cold_start import ColdStart
from extproc.autoscale.recommendation import Recommendation
from extproc.config.settings import ScrapeSettings
from extproc.pool.victim import NoVictim
from extproc.sim.bodies import MODEL
from extproc.sim.engine import Engine
from extproc.sim.events import Finished, FirstToken, Request
from extproc.sim.fleet import FLUSH_S, HOP_S, POLL_JITTER, SCRAPE_S
from extproc.sim.readings import sample_of
from extproc.sim.scaling.hpa import SYNC_S, TOLERANCE, Hpa
from extproc.sim.scaling.scalers import Maker, Ours
from extproc.sim.scaling.service import Service
from extproc.sim.scaling.traffic import Coming
from extproc.sim.spec import EngineSpec

LOOK_S = 5.0  # between two looks of the scaler at the pool
_TICK_S = 0.5  # between two looks at the drains
_LEAD_S = 1.0  # pages are read for so long before the first request: a service is not ready without samples
_STARTED_UNIX_S = 1.7e9  # what the pages tell as the start of the process; all that counts is that it stays
_SPREAD = 0.1  # of a cold start, to either side

Progress = Callable[[float, float], None]  # virtual seconds done, and in all


@dataclass(frozen=True, slots=True)
class Loss:
    """The metrics pages of the first so many servers are broken for a while; requests are served."""

    from_s: float
    to_s: float
    servers: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A run. Raises ValueError for one that cannot be."""

    spec: EngineSpec
    arrivals: Sequence[Coming]  # by time
    seconds: float  # the platform acts, and replicas are counted, for so long
    servers: int  # that are ready at first
    cold_start: ColdStart
    min_replicas: int = 1
    max_replicas: int = 16
    losses: tuple[Loss, ...] = ()
    tolerance: float = TOLERANCE  # of the platform

    def __post_init__(self) -> None:
        if not self.min_replicas <= self.servers <= self.max_replicas:
            raise ValueError(f"{self.servers} servers are not within {self.min_replicas} and {self.max_replicas}")
        longest = max((each.prompt_tokens + each.answer_tokens for each in self.arrivals), default=0)
        if longest > self.spec.max_model_len:
            raise ValueError(
                f"its longest request has {longest:,} tokens, the engine takes {self.spec.max_model_len:,}"
                " (max_model_len)"
            )


@dataclass(frozen=True, slots=True)
class Moment:
    """The fleet at one look."""

    at_s: float
    wanted: int  # what the platform was told
    ready: int
    starting: int
    draining: int
    waiting: int  # requests in the queues of all engines
    running: int
    requests: float  # that have come

    @property
    def there(self) -> int:
        """Servers that are paid for."""
        return self.ready + self.starting + self.draining


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run gave. Times of requests are from the arrival at the router, in order of arrival."""

    arrivals: Sequence[Coming]
    ttft_s: array[float]  # to the first token; inf: it was refused
    seconds: float
    moments: Sequence[Moment]  # every `LOOK_S`
    seen: Sequence[Recommendation]  # every `LOOK_S`; empty where no recommender runs
    wanted: Sequence[tuple[float, int]]  # what the platform was told, each change, from 0 on
    gone: Sequence[tuple[float, int]]  # when a server left, and how many requests it had then
    replica_hours: float  # from when a server was asked for until it was gone
    refused: int
    in_flight_left: int  # what the router believes under way when all is over; 0 if its account is right

    def attained(self, target_s: float) -> float:
        """The part of the requests that had their first token within the target; 1 if none came."""
        return sum(ttft_s <= target_s for ttft_s in self.ttft_s) / len(self.ttft_s) if len(self.ttft_s) else 1.0

    def ttft_p99_s(self, from_s: float = 0.0, to_s: float = inf) -> float:
        """Of the requests that came in this time; nan if none did."""
        ordered = sorted(
            ttft_s for each, ttft_s in zip(self.arrivals, self.ttft_s, strict=True) if from_s <= each.at_s < to_s
        )
        return ordered[-(-99 * len(ordered) // 100) - 1] if ordered else float("nan")

    def reversals(self, within_s: float = 600.0) -> int:
        """Changes of the wanted number against the direction of the one before, so soon after it."""
        changes = [
            (at_s, (after > before) - (after < before))
            for (_, before), (at_s, after) in itertools.pairwise(self.wanted)
        ]
        return sum(
            one != other and later_s - at_s <= within_s for (at_s, one), (later_s, other) in itertools.pairwise(changes)
        )


def run(plan: Plan, maker: Maker, *, seed: int = 0, progress: Progress | None = None) -> Ran:
    """Serve the arrivals by a fleet whose size the scaler sets."""
    return _Run(plan, maker, seed, progress).to_the_end()


@dataclass(slots=True)
class _Server:
    number: int
    asked_s: float
    ready_s: float  # from then on it answers
    engine: Engine
    seen: bool = False  # its address is known
    draining: bool = False
    failures: int = 0  # scrapes in a row
    wake: int = 0  # the number of its wake-up that counts
    under_way: set[int] = field(default_factory=set)  # requests, by number


class _Run:
    """The state of one run. Handlers are put on the heap with their time and two numbers."""

    def __init__(self, plan: Plan, maker: Maker, seed: int, progress: Progress | None) -> None:
        self._plan = plan
        self._service = Service(Random(f"router {seed}"))
        self._scaler = maker(self._service.pool, lambda: self._service.requests)
        self._hpa = Hpa(
            plan.servers,
            min_replicas=plan.min_replicas,
            max_replicas=plan.max_replicas,
            tolerance=plan.tolerance,
            stabilisation_s=self._scaler.stabilisation_s,
        )
        self._rng = Random(f"platform {seed}")
        self._progress = progress
        self._poll_s = ScrapeSettings().interval_s
        self._most_backoff_s = ScrapeSettings().max_backoff_s
        self._order = itertools.count()  # events of one time happen in the order they were put there
        self._heap: list[tuple[float, int, Callable[[float, int, int], None], int, int]] = []
        self._numbers = itertools.count(1)
        self._servers: dict[int, _Server] = {}  # that are paid for, by number, in the order they were asked for
        self._server = array("i", bytes(4 * len(plan.arrivals)))  # by request
        self._ttft_s = array("d", [inf]) * len(plan.arrivals)
        self._left = len(plan.arrivals)
        self._log: list[tuple[int, bool]] = []  # requests ended, and whether a server was reached
        self._moments: list[Moment] = []
        self._wanted = [(0.0, plan.servers)]
        self._gone: list[tuple[float, int]] = []
        self._paid_s = 0.0  # of the servers that have gone
        self._refused = 0

    def to_the_end(self) -> Ran:
        for _ in range(self._plan.servers):
            server = self._add(0.0, -_LEAD_S)
            self._seen(-_LEAD_S, server.number)
        self._put(0.0, self._tick)
        self._put(0.0, self._look)
        self._put(SYNC_S, self._sync)
        if self._plan.arrivals:
            self._put(self._plan.arrivals[0].at_s, self._arrive)
        while self._heap and (self._left or self._log or self._heap[0][0] <= self._plan.seconds):
            now, _, handler, a, b = heappop(self._heap)
            handler(now, a, b)
        end_s = self._plan.seconds
        return Ran(
            arrivals=self._plan.arrivals,
            ttft_s=self._ttft_s,
            seconds=end_s,
            moments=self._moments,
            seen=self._scaler.seen if isinstance(self._scaler, Ours) else (),
            wanted=self._wanted,
            gone=self._gone,
            replica_hours=(self._paid_s + sum(max(0.0, end_s - each.asked_s) for each in self._servers.values()))
            / 3600.0,
            refused=self._refused,
            in_flight_left=self._service.in_flight,
        )

    def _put(self, at_s: float, handler: Callable[[float, int, int], None], a: int = 0, b: int = 0) -> None:
        heappush(self._heap, (at_s, next(self._order), handler, a, b))

    # A request ------------------------------------------------------------------------------------------------------

    def _arrive(self, now: float, number: int, _: int) -> None:
        chosen = self._service.route(number, self._plan.arrivals[number], now)
        server = self._servers.get(chosen) if chosen is not None else None
        if server is None or now < server.ready_s:
            self._refused += 1
            self._left -= 1
            if chosen is not None:
                self._end(number, now, reached=False)
        else:
            self._server[number] = server.number
            server.under_way.add(number)
            self._put(now + HOP_S, self._reach, number)
        if number + 1 < len(self._plan.arrivals):
            self._put(self._plan.arrivals[number + 1].at_s, self._arrive, number + 1)

    def _reach(self, now: float, number: int, _: int) -> None:
        server, coming = self._servers[self._server[number]], self._plan.arrivals[number]
        self._advance(server, now)
        server.engine.submit(Request(str(number), coming.prompt_tokens, coming.answer_tokens), now)
        self._wake_at_next_event(server)

    def _end(self, number: int, now: float, *, reached: bool) -> None:
        self._service.ended(number, now)
        if not self._log:
            self._put((now // FLUSH_S + 1.0) * FLUSH_S, self._flush)
        self._log.append((number, reached))

    def _flush(self, now: float, _: int, __: int) -> None:
        log, self._log = self._log, []
        for number, reached in log:
            self._service.logged(number, now - self._plan.arrivals[number].at_s, now, reached=reached)

    # Engines --------------------------------------------------------------------------------------------------------

    def _work(self, now: float, number: int, wake: int) -> None:
        server = self._servers.get(number)
        if server is not None and wake == server.wake:
            self._advance(server, now)
            self._wake_at_next_event(server)

    def _wake_at_next_event(self, server: _Server) -> None:
        server.wake += 1
        at_s = server.engine.next_event_at()
        if at_s is not None:
            self._put(at_s, self._work, server.number, server.wake)

    def _advance(self, server: _Server, now: float) -> None:
        for event in server.engine.advance(now):
            if isinstance(event, FirstToken):
                number = int(event.request_id)
                self._ttft_s[number] = event.at_s - self._plan.arrivals[number].at_s
            elif isinstance(event, Finished):
                number = int(event.request_id)
                server.under_way.discard(number)
                self._left -= 1
                self._end(number, now, reached=True)

    # Metrics pages --------------------------------------------------------------------------------------------------

    def _poll(self, now: float, number: int, _: int) -> None:
        server = self._servers.get(number)
        if server is None:
            return
        if now < server.ready_s:
            self._service.refused(number, now)
        elif self._lost(server, now):
            self._service.page_broken(number, now)
        else:
            self._advance(server, now)
            self._wake_at_next_event(server)
            sample = sample_of(server.engine, now, model=MODEL, started_unix_s=_STARTED_UNIX_S)
            server.failures = 0
            self._service.sampled(number, sample, now + SCRAPE_S)
            self._put(now + self._poll_s * self._rng.uniform(1 - POLL_JITTER, 1 + POLL_JITTER), self._poll, number)
            return
        server.failures += 1
        pause_s = min(self._most_backoff_s, self._poll_s * 2.0**server.failures) * self._rng.uniform(0.5, 1.0)
        self._put(now + pause_s, self._poll, number)

    def _lost(self, server: _Server, now: float) -> bool:
        if not self._plan.losses:
            return False
        first = list(itertools.islice(self._servers, max((each.servers for each in self._plan.losses), default=0)))
        return any(
            each.from_s <= now < each.to_s and server.number in first[: each.servers] for each in self._plan.losses
        )

    # The fleet ------------------------------------------------------------------------------------------------------

    def _add(self, now: float, ready_s: float) -> _Server:
        number = next(self._numbers)
        server = _Server(number, now, ready_s, Engine(self._plan.spec, now=now - _LEAD_S, seed=number))
        self._servers[number] = server
        return server

    def _start(self, now: float) -> None:
        """Ask for a server."""
        cold = self._plan.cold_start
        slower = self._rng.uniform(1 - _SPREAD, 1 + _SPREAD)
        server = self._add(now, now + (cold.node_s + cold.seen_s) * slower)
        self._put(now + cold.node_s * slower, self._seen, server.number)

    def _seen(self, now: float, number: int, _: int = 0) -> None:
        server = self._servers.get(number)
        if server is not None:
            server.seen = True
            self._tell_members()
            self._put(now + self._rng.uniform(0.0, 0.2 * self._poll_s), self._poll, number)

    def _tell_members(self) -> None:
        self._service.members(number for number, server in self._servers.items() if server.seen)

    def _remove(self, server: _Server, now: float) -> None:
        self._gone.append((now, len(server.under_way)))
        self._paid_s += min(now, self._plan.seconds) - server.asked_s
        del self._servers[server.number]
        if server.seen:
            self._tell_members()

    def _tick(self, now: float, _: int, __: int) -> None:
        for number in self._service.drained(now):
            self._remove(self._servers[number], now)
        self._put(now + _TICK_S, self._tick)

    def _look(self, now: float, _: int, __: int) -> None:
        if now > self._plan.seconds:
            return
        self._scaler.look(now)
        servers = self._servers.values()
        ready = sum(now >= server.ready_s and not server.draining for server in servers)
        draining = sum(server.draining for server in servers)
        self._moments.append(
            Moment(
                at_s=now,
                wanted=self._hpa.replicas,
                ready=ready,
                starting=len(servers) - ready - draining,
                draining=draining,
                waiting=sum(server.engine.waiting for server in servers),
                running=sum(server.engine.running for server in servers),
                requests=self._service.requests,
            )
        )
        if self._progress is not None:
            self._progress(now, self._plan.seconds)
        self._put(now + LOOK_S, self._look)

    def _sync(self, now: float, _: int, __: int) -> None:
        """The platform asks, and brings the fleet there."""
        if now > self._plan.seconds:
            return
        before = self._hpa.replicas
        wanted = self._hpa.sync(now, self._scaler.ask(now, before))
        if wanted != before:
            self._wanted.append((now, wanted))
        there = sum(not server.draining for server in self._servers.values())
        for _more in range(wanted - there):
            self._start(now)
        for _fewer in range(there - wanted):
            if not self._take_down(now):
                break
        self._put(now + SYNC_S, self._sync)

    def _take_down(self, now: float) -> bool:
        """Begin to take one server down; false: none may go now."""
        starting = [server for server in self._servers.values() if now < server.ready_s]
        if starting:
            self._remove(starting[-1], now)
            return True
        victim = self._service.victim(now) if self._scaler.careful else self._service.least_busy()
        if victim is None or isinstance(victim, NoVictim):
            return False
        self._servers[victim].draining = True
        self._service.drain(victim, now)
        return True
