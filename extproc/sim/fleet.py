"""How long do the requests of a workload wait, when these engines serve them and this policy chooses?

A discrete-event run in virtual time: nothing sleeps, and the same seed gives the same result. What happens, in order of
its time: a request arrives and the policy picks at once; it reaches its engine `HOP_S` later; engines work, and the end
of a stream is told to the policy; metrics pages are read every half second; the access log comes in batches.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from random import Random

from extproc.config.settings import ScrapeSettings
from extproc.pool.sample import LoadSample
from extproc.sim.bodies import MODEL, BodyWriter
from extproc.sim.engine import Engine
from extproc.sim.events import Finished, FirstToken, Request
from extproc.sim.policies import Asked, Maker, Policy, Site
from extproc.sim.prompts import PromptCutter
from extproc.sim.readings import sample_of
from extproc.sim.spec import EngineSpec
from extproc.sim.workloads import Arrival

HOP_S = 0.002  # from the pick to the engine: Envoy, network, HTTP and tokeniser; assumed
SCRAPE_S = 0.005  # from asking for a page to having read it; assumed
FLUSH_S = 0.25  # between batches of the access log, as in the shipped envoy.yaml
POLL_JITTER = 0.1  # of the interval, to either side, as telemetry.poller has it
LEAD_S = 1.0  # pages are read for so long before the first request: a service is not ready without samples
_STARTED_UNIX_S = 1.7e9  # what the pages tell as the start of the process; all that counts is that it stays
_TELL_EVERY = 512  # requests ended between two reports of progress

Progress = Callable[[int, int], None]  # requests ended, and in all


@dataclass(frozen=True, slots=True)
class Change:
    """From a time on, by the clock of the arrivals, requests go to these servers alone.

    A server that is not among them any more is drained: it finishes what it has, then it leaves the fleet.
    """

    at_s: float
    servers: tuple[int, ...]  # by number, at least one


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gave. Times of requests are from the arrival at the router, in order of arrival."""

    ttft_s: array[float]  # to the first token
    answered_s: array[float]  # to the end of the answer
    server: array[int]  # its number
    cached: array[int]  # prompt tokens found in the engine's cache
    served: tuple[int, ...]  # requests, by server
    prompts: tuple[int, ...]  # prompt tokens of these, cached or not
    prompt_tokens: int
    cached_tokens: int  # of these, found in the engines' caches
    answer_tokens: int
    preemptions: int
    seconds: float  # from the first arrival to the end of the last answer
    in_flight_left: int  # what the policy believes under way when all is over; 0 if its account is right


def run(
    arrivals: Sequence[Arrival],
    specs: Sequence[EngineSpec],
    maker: Maker,
    *,
    seed: int = 0,
    changes: Sequence[Change] = (),
    full_bodies: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Serve `arrivals` (in order of time) by one engine for each of `specs`, which share their block size.

    `changes`: who is in the fleet when, in order of time; the first may be at 0. Before it all are. An engine has
    nothing cached when it joins for the first time.
    `full_bodies`: hand the router real bodies to read and hash, which takes several times as long.

    Raises:
        ValueError: a request is longer than an engine's `max_model_len`; there are no arrivals or engines.
    """
    if not arrivals or not specs:
        raise ValueError("a run needs at least one arrival and one engine")
    longest = max(arrival.prompt_tokens + arrival.answer_tokens for arrival in arrivals)
    shortest = min(spec.max_model_len for spec in specs)
    if longest > shortest:
        raise ValueError(f"its longest request has {longest:,} tokens, the engine takes {shortest:,} (max_model_len)")
    policy = maker(Site(len(specs), Random(f"policy {seed}")))
    return _Run(arrivals, specs, policy, seed, changes, full_bodies, progress).to_the_end()


class _Run:
    """The state of one run. Handlers are put on the heap with their time and two numbers."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        specs: Sequence[EngineSpec],
        policy: Policy,
        seed: int,
        changes: Sequence[Change],
        full_bodies: bool,
        progress: Progress | None,
    ) -> None:
        self._arrivals = arrivals
        self._engines = [Engine(spec, seed=number) for number, spec in enumerate(specs)]
        self._policy = policy
        self._rng = Random(f"polls {seed}")
        self._progress = progress
        self._cutter = PromptCutter(arrivals, specs[0].block_size_tokens)
        self._bodies = BodyWriter(arrivals) if full_bodies else None
        self._poll_s = ScrapeSettings().interval_s
        self._order = itertools.count()  # events of one time happen in the order they were put there
        self._heap: list[tuple[float, int, Callable[[float, int, int], None], int, int]] = []
        self._wake = [0] * len(specs)  # by engine: the number of its wake-up that counts
        self._hashes: dict[int, list[int]] = {}  # on the way to the engine
        self._server = array("i", bytes(4 * len(arrivals)))  # by request
        self._ttft_s = array("d", bytes(8 * len(arrivals)))
        self._answered_s = array("d", bytes(8 * len(arrivals)))
        self._pages: dict[int, LoadSample] = {}  # asked for and not read yet, by server
        self._log: list[int] = []  # requests ended, by number
        self._left = len(arrivals)
        self._cached = array("i", bytes(4 * len(arrivals)))
        self._under_way = [0] * len(specs)  # requests chosen and not ended
        self._changes = changes
        self._servers = tuple(range(len(specs)))  # that get requests
        self._draining: set[int] = set()
        self._end_s = 0.0

    def to_the_end(self) -> Result:
        if self._policy.scrapes:
            for server in range(len(self._engines)):
                self._put(self._rng.uniform(0.0, 0.2 * self._poll_s), self._poll, server)
        for number, change in enumerate(self._changes):
            if change.at_s <= 0:
                self._change(0.0, number, 0)
            else:
                self._put(change.at_s + LEAD_S, self._change, number)
        self._put(self._arrivals[0].at_s + LEAD_S, self._arrive, 0)
        heapify(self._heap)
        while self._left or self._log:
            now, _, handler, a, b = heappop(self._heap)
            handler(now, a, b)
        if self._progress:
            self._progress(len(self._arrivals), len(self._arrivals))
        served, prompts = [0] * len(self._engines), [0] * len(self._engines)
        for arrival, server in zip(self._arrivals, self._server, strict=True):
            served[server] += 1
            prompts[server] += arrival.prompt_tokens
        return Result(
            ttft_s=self._ttft_s,
            answered_s=self._answered_s,
            server=self._server,
            cached=self._cached,
            served=tuple(served),
            prompts=tuple(prompts),
            prompt_tokens=sum(prompts),
            cached_tokens=sum(self._cached),
            answer_tokens=sum(arrival.answer_tokens for arrival in self._arrivals),
            preemptions=sum(engine.stats.preemptions for engine in self._engines),
            seconds=self._end_s - LEAD_S - self._arrivals[0].at_s,
            in_flight_left=self._policy.in_flight,
        )

    def _put(self, at_s: float, handler: Callable[[float, int, int], None], a: int = 0, b: int = 0) -> None:
        heappush(self._heap, (at_s, next(self._order), handler, a, b))

    # A request ------------------------------------------------------------------------------------------------------

    def _arrive(self, now: float, number: int, _: int) -> None:
        arrival = self._arrivals[number]
        cut = self._cutter.cut(arrival)
        raw = self._bodies.request(arrival) if self._bodies else None
        server = self._policy.choose(Asked(number, arrival, cut.blocks, raw), now)
        self._hashes[number] = cut.engine_hashes
        self._server[number] = server
        self._under_way[server] += 1
        self._put(now + HOP_S, self._reach, number)
        if number + 1 < len(self._arrivals):
            self._put(self._arrivals[number + 1].at_s + LEAD_S, self._arrive, number + 1)

    def _reach(self, now: float, number: int, _: int) -> None:
        server, arrival = self._server[number], self._arrivals[number]
        request = Request(str(number), arrival.prompt_tokens, arrival.answer_tokens, self._hashes.pop(number))
        self._advance(server, now)
        self._engines[server].submit(request, now)
        self._wake_at_next_event(server)

    # Engines --------------------------------------------------------------------------------------------------------

    def _work(self, now: float, server: int, wake: int) -> None:
        if wake == self._wake[server]:
            self._advance(server, now)
            self._wake_at_next_event(server)

    def _wake_at_next_event(self, server: int) -> None:
        self._wake[server] += 1
        at_s = self._engines[server].next_event_at()
        if at_s is not None:
            self._put(at_s, self._work, server, self._wake[server])

    def _advance(self, server: int, now: float) -> None:
        for event in self._engines[server].advance(now):
            if isinstance(event, FirstToken):
                number = int(event.request_id)
                self._ttft_s[number] = event.at_s - self._arrivals[number].at_s - LEAD_S
                self._cached[number] = event.cached_tokens
                self._policy.first_token(number, now)
            elif isinstance(event, Finished):
                self._finish(int(event.request_id), now)

    def _finish(self, number: int, now: float) -> None:
        self._policy.ended(number, now)
        server = self._server[number]
        self._under_way[server] -= 1
        if server in self._draining and not self._under_way[server]:
            self._draining.remove(server)
            self._policy.members(self._servers, tuple(sorted(self._draining)))
        if not self._log:
            self._put((now // FLUSH_S + 1.0) * FLUSH_S, self._flush)
        self._log.append(number)
        self._answered_s[number] = now - self._arrivals[number].at_s - LEAD_S
        self._end_s = now
        self._left -= 1
        if self._progress and self._left % _TELL_EVERY == 0:
            self._progress(len(self._arrivals) - self._left, len(self._arrivals))

    def _flush(self, now: float, _: int, __: int) -> None:
        log, self._log = self._log, []
        for number in log:
            self._policy.logged(number, self._answered_s[number], now)

    # Who is in the fleet --------------------------------------------------------------------------------------------

    def _change(self, now: float, number: int, _: int) -> None:
        servers = self._changes[number].servers
        self._draining |= set(self._servers) - set(servers)
        self._draining = {server for server in self._draining - set(servers) if self._under_way[server]}
        self._servers = servers
        self._policy.members(servers, tuple(sorted(self._draining)))

    # Metrics pages --------------------------------------------------------------------------------------------------

    def _poll(self, now: float, server: int, _: int) -> None:
        self._advance(server, now)
        self._wake_at_next_event(server)
        engine = self._engines[server]
        self._pages[server] = sample_of(engine, now, model=MODEL, started_unix_s=_STARTED_UNIX_S)
        self._put(now + SCRAPE_S, self._read, server)
        self._put(now + self._poll_s * self._rng.uniform(1 - POLL_JITTER, 1 + POLL_JITTER), self._poll, server)

    def _read(self, now: float, server: int, _: int) -> None:
        self._policy.sampled(server, self._pages.pop(server), now)
