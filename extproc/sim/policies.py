"""Which ways to choose a server can a simulated fleet be run with?

The profiles, through the real `Router`, which is told what it would be told in service: the request, samples of the
metrics pages, the end of each stream, and the access log's entry some time later. And baselines that know less, or, to
see what knowing is worth, more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from xxhash import xxh3_64_intdigest

from extproc.affinity.ring import Ring
from extproc.config.settings import SchedulingSettings, ScrapeSettings
from extproc.decision import Completion, Pick
from extproc.endpoint import Address, Endpoint
from extproc.placement import Placement
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.prefix.turns import NOTHING, PromptBlocks
from extproc.request import ApiKind, InferenceRequest, RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES, Profile
from extproc.sim.bodies import SESSION_HEADER
from extproc.sim.workloads import Arrival
from extproc.value import value

_POOL = "vllm"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request on its way to a server."""

    number: int
    arrival: Arrival
    blocks: PromptBlocks
    raw: RawRequest | None = None  # as a client sends it; None: in a run without bodies


@dataclass(frozen=True, slots=True)
class Site:
    """What a policy is made for."""

    servers: int
    rng: Random


class Policy(Protocol):
    """Chooses servers by number, and is told what happens. Times are virtual, in seconds."""

    @property
    def scrapes(self) -> bool:
        """Whether it wants samples."""

    @property
    def in_flight(self) -> int:
        """Requests it believes under way."""

    def members(self, servers: Sequence[int], draining: Sequence[int]) -> None:
        """The fleet has changed: these may be chosen, and those finish what they have. At first all may be."""

    def choose(self, asked: Asked, now: float) -> int:
        """A request is here: the server it goes to, at once."""

    def first_token(self, number: int, now: float) -> None:
        """A prompt is computed. No router without the response in its hands sees that."""

    def ended(self, number: int, now: float) -> None:
        """The stream of a request ended."""

    def logged(self, number: int, duration_s: float, now: float) -> None:
        """The access log came, with the time a request took."""

    def sampled(self, server: int, sample: LoadSample, now: float) -> None:
        """The metrics page of a server was read."""


# The router -----------------------------------------------------------------------------------------------------------


@value
class CutRequest(RawRequest):
    """A request whose prompt is cut already, in place of its body."""

    arrival: Arrival | None = None
    blocks: PromptBlocks = NOTHING


@value
class _CutInference(InferenceRequest):
    """What is understood of one."""

    blocks: PromptBlocks = NOTHING
    prompt_tokens: float = 0.0


class CutPlacement(Placement):
    """Placement that takes a prompt's blocks as they come with the request. All else is the service's own."""

    def read(self, raw: RawRequest) -> InferenceRequest:
        if not isinstance(raw, CutRequest) or raw.arrival is None:
            return super().read(raw)
        return _CutInference(
            ApiKind.CHAT,
            prompt=b"cut",
            session_key=raw.arrival.session,
            blocks=raw.blocks,
            prompt_tokens=raw.arrival.prompt_tokens,
        )

    def cut(self, request: InferenceRequest) -> tuple[PromptBlocks, float]:
        if isinstance(request, _CutInference):
            return request.blocks, request.prompt_tokens
        return super().cut(request)


class RouterPolicy:
    """A profile, by the router as it is in service, with the service's default settings."""

    scrapes = True

    def __init__(self, profile: Profile, site: Site) -> None:
        pool = Pool(_POOL, stale_after_s=ScrapeSettings().stale_after_s)
        addresses = [Address.of(f"10.0.{n >> 8}.{n & 255}", 8000) for n in range(site.servers)]
        pool.set_endpoints([Endpoint(address) for address in addresses])
        plan = PoolPlan(pool, profile, SchedulingSettings().hosts, session_headers=(SESSION_HEADER,))
        self.router = Router([plan], rng=site.rng, placement=CutPlacement)
        self._pool = pool
        self._addresses = addresses
        self._numbers = {address: n for n, address in enumerate(addresses)}
        self._picks: dict[int, Pick] = {}  # by the request's number, until the log tells of it

    @property
    def in_flight(self) -> int:
        return sum(member.in_flight for member in self._pool.members)

    def members(self, servers: Sequence[int], draining: Sequence[int]) -> None:
        endpoints = [Endpoint(self._addresses[n], drained=n in draining) for n in sorted((*servers, *draining))]
        self._pool.set_endpoints(endpoints)

    def choose(self, asked: Asked, now: float) -> int:
        raw = asked.raw or CutRequest(path="/v1/chat/completions", arrival=asked.arrival, blocks=asked.blocks)
        decision = self.router.route(raw, now)
        assert isinstance(decision, Pick), decision  # no simulated server is ever away
        self._picks[asked.number] = decision
        return self._numbers[decision.address]

    def first_token(self, number: int, now: float) -> None:
        pass

    def ended(self, number: int, now: float) -> None:
        self.router.stream_ended(self._picks[number].pick_id, now)

    def logged(self, number: int, duration_s: float, now: float) -> None:
        pick = self._picks.pop(number)
        completion = Completion(
            pick.pick_id, pick.address, status=200, details="via_upstream", duration_s=duration_s, cluster=_POOL
        )
        self.router.complete(completion, now)

    def sampled(self, server: int, sample: LoadSample, now: float) -> None:
        self.router.observe(_POOL, self._addresses[server], sample, now)


# Baselines ------------------------------------------------------------------------------------------------------------


class Baseline:
    """Knows how many requests it has under way where, and nothing of the servers."""

    scrapes = False

    def __init__(self, site: Site) -> None:
        self.rng = site.rng
        self.loads = [0] * site.servers  # requests under way
        self.servers: Sequence[int] = range(site.servers)  # that may be chosen
        self._server: dict[int, int] = {}  # by the request's number

    @property
    def in_flight(self) -> int:
        return sum(self.loads)

    def members(self, servers: Sequence[int], draining: Sequence[int]) -> None:
        self.servers = sorted(servers)

    def choose(self, asked: Asked, now: float) -> int:
        server = self._server[asked.number] = self.pick(asked)
        self.loads[server] += 1
        return server

    def pick(self, asked: Asked) -> int:
        raise NotImplementedError

    def first_token(self, number: int, now: float) -> None:
        pass

    def ended(self, number: int, now: float) -> None:
        self.loads[self._server.pop(number)] -= 1

    def logged(self, number: int, duration_s: float, now: float) -> None:
        pass

    def sampled(self, server: int, sample: LoadSample, now: float) -> None:
        pass


class RoundRobin(Baseline):
    """Each server in turn."""

    _last = -1

    def pick(self, asked: Asked) -> int:
        self._last = (self._last + 1) % len(self.servers)
        return self.servers[self._last]


class Random_(Baseline):  # noqa: N801 - the name is taken
    """Any server."""

    def pick(self, asked: Asked) -> int:
        return self.servers[self.rng.randrange(len(self.servers))]


class LeastRequest(Baseline):
    """The one with fewer requests under way of two drawn at random, possibly the same twice: Envoy's default."""

    def pick(self, asked: Asked) -> int:
        first, second = [self.servers[self.rng.randrange(len(self.servers))] for _ in range(2)]
        return second if self.loads[second] < self.loads[first] else first


class RingHash(Baseline):
    """Consistent hashing of the session, without a load bound; without a session a random server, as Envoy does."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._ring = Ring(str(n) for n in range(site.servers))

    def members(self, servers: Sequence[int], draining: Sequence[int]) -> None:
        super().members(servers, draining)
        self._ring.update(str(n) for n in servers)

    def pick(self, asked: Asked) -> int:
        session = asked.arrival.session
        if session is None:
            return self.servers[self.rng.randrange(len(self.servers))]
        return int(self._ring.preference(session, 1)[0])


class ModuloHash(Baseline):
    """The hash of the session, modulo the number of servers; without a session a random one.

    What consistent hashing is better than: as long as the servers stay the same there is no difference.
    """

    def pick(self, asked: Asked) -> int:
        session = asked.arrival.session
        if session is None:
            return self.servers[self.rng.randrange(len(self.servers))]
        return self.servers[xxh3_64_intdigest(session.encode()) % len(self.servers)]


class ClairvoyantLoad(Baseline):
    """The server with the fewest prompt tokens sent and not answered, seen at once; equal: the fewest requests.

    No router knows first tokens without delay. It is blind to caches, so a prompt counts in full: what load alone can
    tell.
    """

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self._owed = [0] * site.servers  # tokens
        self._prompts: dict[int, int] = {}  # tokens, by the request's number

    def pick(self, asked: Asked) -> int:
        costs = list(zip(self._owed, self.loads, strict=True))
        least = min(costs[n] for n in self.servers)
        server = self.rng.choice([n for n in self.servers if costs[n] == least])
        self._prompts[asked.number] = asked.arrival.prompt_tokens
        self._owed[server] += asked.arrival.prompt_tokens
        return server

    def first_token(self, number: int, now: float) -> None:
        self._owed[self._server[number]] -= self._prompts.pop(number)


Maker = Callable[[Site], Policy]


def _of_profile(profile: Profile) -> Maker:
    return lambda site: RouterPolicy(profile, site)


PROFILE_POLICIES: Mapping[str, Maker] = {name: _of_profile(profile) for name, profile in PROFILES.items()}
BASELINES: Mapping[str, Maker] = {
    "round-robin": RoundRobin,
    "random": Random_,
    "least-request": LeastRequest,
    "ring-hash": RingHash,
    "clairvoyant-load": ClairvoyantLoad,
}
POLICIES: Mapping[str, Maker] = {**PROFILE_POLICIES, **BASELINES}
