"""How do several routers that tell each other of their picks choose, in virtual time?

Each is the router of the service with the service's own `Sharing`. Requests come to them in turn, as Envoy spreads
them at best. What one has to tell waits for `FLUSH_S` from the first message on, as in service, and then takes `hop_s`
to each of the others. A router sees nothing between two requests, so what has arrived by then is taken in when it is
next used, at the time at which it arrived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from extproc.config.settings import SchedulingSettings, ScrapeSettings
from extproc.decision import Completion, Pick
from extproc.endpoint import Address, Endpoint
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.sim.bodies import SESSION_HEADER
from extproc.sim.policies import Asked, CutPlacement, CutRequest, Policy, Site
from extproc.workers.messages import decode, encode
from extproc.workers.sharing import Sharing
from extproc.workers.timing import CENSUS_S, FLUSH_S

POOL = "vllm"


class _Process:
    """One of the routers, and what is on the way to it."""

    def __init__(self, router: Router, pool: Pool) -> None:
        self.router = router
        self.pool = pool
        self.sharing = Sharing(router)
        self.flush_s: float | None = None  # when what it has to tell is sent; None: there is nothing
        self.census_s = CENSUS_S
        self.inbox: deque[tuple[float, bytes | Callable[[float], None]]] = deque()  # by time of arrival


class SharedPolicy:
    """Some routers in turn. With `hop_s` None they tell each other nothing."""

    scrapes = True

    def __init__(self, site: Site, routers: int, hop_s: float | None, profile: str = "cache-aware") -> None:
        self._hop_s = hop_s
        self._addresses = [Address.of(f"10.0.{n >> 8}.{n & 255}", 8000) for n in range(site.servers)]
        self._numbers = {address: n for n, address in enumerate(self._addresses)}
        self._processes = [self._process(n, profile, Random(site.rng.random())) for n in range(routers)]
        self._picks: dict[int, tuple[_Process, Pick]] = {}  # by the request's number, until the log tells of it

    def _process(self, number: int, profile: str, rng: Random) -> _Process:
        pool = Pool(POOL, stale_after_s=ScrapeSettings().stale_after_s)
        pool.set_endpoints([Endpoint(address) for address in self._addresses])
        plan = PoolPlan(pool, PROFILES[profile], SchedulingSettings().hosts, session_headers=(SESSION_HEADER,))
        return _Process(Router([plan], rng=rng, id_prefix=f"{number}-", placement=CutPlacement), pool)

    @property
    def in_flight(self) -> int:
        """In the one that believes most of it, when all that is on the way has arrived."""
        for each in self._processes:
            self._send(each, float("inf"))
        for each in self._processes:
            self._take_in(each, float("inf"))
        return max(sum(member.in_flight for member in each.pool.members) for each in self._processes)

    def members(self, servers: Sequence[int], draining: Sequence[int]) -> None:
        raise NotImplementedError("the fleet of this comparison does not change")

    def choose(self, asked: Asked, now: float) -> int:
        self._advance(now)
        process = self._processes[asked.number % len(self._processes)]
        raw = asked.raw or CutRequest(path="/v1/chat/completions", arrival=asked.arrival, blocks=asked.blocks)
        decision = process.router.route(raw, now)
        assert isinstance(decision, Pick), decision  # no simulated server is ever away
        self._picks[asked.number] = process, decision
        self._note(process, now)
        return self._numbers[decision.address]

    def first_token(self, number: int, now: float) -> None:
        pass

    def ended(self, number: int, now: float) -> None:
        process, pick = self._picks[number]
        process.router.stream_ended(pick.pick_id, now)
        self._note(process, now)

    def logged(self, number: int, duration_s: float, now: float) -> None:
        """Envoy's log comes to any of them."""
        self._advance(now)
        _, pick = self._picks.pop(number)
        process = self._processes[(number // 7) % len(self._processes)]
        process.router.complete(
            Completion(
                pick.pick_id, pick.address, status=200, details="via_upstream", duration_s=duration_s, cluster=POOL
            ),
            now,
        )
        self._note(process, now)

    def sampled(self, server: int, sample: LoadSample, now: float) -> None:
        """One reads the page; with several, it is told to all."""
        hop_s = self._hop_s if self._hop_s is not None and len(self._processes) > 1 else 0.0
        for each in self._processes:
            router = each.router

            def take(at_s: float, router: Router = router) -> None:
                router.observe(POOL, self._addresses[server], sample, at_s)

            each.inbox.append((now + hop_s, take))
        self._advance(now)

    def _note(self, process: _Process, now: float) -> None:
        """It may have something to tell by now."""
        if process.sharing.waiting and process.flush_s is None:
            process.flush_s = now + FLUSH_S

    def _advance(self, now: float) -> None:
        if self._hop_s is not None:
            for each in self._processes:
                self._send(each, now)
        for each in self._processes:
            self._take_in(each, now)

    def _send(self, process: _Process, now: float) -> None:
        hop_s, sharing = self._hop_s, process.sharing
        if hop_s is None:
            sharing.take()
            return
        while process.flush_s is not None and process.flush_s <= now:
            sent_s, process.flush_s = process.flush_s, None
            messages = sharing.take()
            if sent_s >= process.census_s:
                process.census_s = sent_s + CENSUS_S
                messages += sharing.census()
            data = encode(messages)
            for each in self._processes:
                if each is not process:
                    each.inbox.append((sent_s + hop_s, data))

    def _take_in(self, process: _Process, now: float) -> None:
        # Not quite in order: what was sent by several may cross by less than a flush.
        while process.inbox and process.inbox[0][0] <= now:
            at_s, found = process.inbox.popleft()
            at_s = min(at_s, now)
            if isinstance(found, bytes):
                process.sharing.apply(decode(found), at_s)
            else:
                found(at_s)


def shared(routers: int, hop_s: float | None) -> Callable[[Site], Policy]:
    """Makes such a policy."""
    return lambda site: SharedPolicy(site, routers, hop_s)
