"""How does the service stand in front of a simulated fleet that changes?

The real pool and the real router with the default profile. Servers are numbers here, and none is used twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from random import Random

from extproc.config.settings import SchedulingSettings, ScrapeSettings
from extproc.decision import Completion, Pick
from extproc.endpoint import Address, Endpoint
from extproc.pool.deadline import Bounds
from extproc.pool.drain import By
from extproc.pool.member import Member, State
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.pool.victim import NoVictim, propose, tokens_in_flight
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.sim.policies import CutPlacement, CutRequest
from extproc.sim.scaling.traffic import Coming
from extproc.sim.workloads import Arrival

_POOL = "vllm"
_BOUNDS = Bounds()


class _Router(Router):
    """As it is in service, but it keeps no explanations of its picks: they take as long as the picks."""

    def __init__(self, plan: PoolPlan, rng: Random) -> None:
        super().__init__([plan], rng=rng, placement=CutPlacement)
        self._log_from_s = inf


class Service:
    """Router and pool. Times are virtual, in seconds."""

    def __init__(self, rng: Random, profile: str = SchedulingSettings().profile) -> None:
        self.pool = Pool(_POOL, stale_after_s=ScrapeSettings().stale_after_s)
        plan = PoolPlan(self.pool, PROFILES[profile], SchedulingSettings().hosts)
        self.router = _Router(plan, rng)
        self._picks: dict[int, Pick] = {}  # by the request's number, until the log tells of it
        self._numbers: dict[Address, int] = {}
        self.pool.set_endpoints([])

    @property
    def requests(self) -> float:
        """That have come."""
        return float(self.router.ledger.requests(_POOL))

    @property
    def in_flight(self) -> int:
        return sum(member.in_flight for member in (*self.pool.members, *self.pool.leaving))

    def members(self, servers: Iterable[int]) -> None:
        """These are there now."""
        addresses = {_address(number): number for number in servers}
        self._numbers |= addresses
        self.pool.set_endpoints([Endpoint(address) for address in addresses])

    # Requests -------------------------------------------------------------------------------------------------------

    def route(self, number: int, coming: Coming, now: float) -> int | None:
        """The server for a request; None: there is none."""
        arrival = Arrival(coming.at_s, ((number, coming.prompt_tokens),), -number, coming.answer_tokens)
        decision = self.router.route(CutRequest(path="/v1/chat/completions", arrival=arrival), now)
        if not isinstance(decision, Pick):
            return None
        self._picks[number] = decision
        return self._numbers[decision.address]

    def ended(self, number: int, now: float) -> None:
        self.router.stream_ended(self._picks[number].pick_id, now)

    def logged(self, number: int, duration_s: float, now: float, *, reached: bool = True) -> None:
        """The access log tells of a request. Not `reached`: nobody listened at the server."""
        pick = self._picks.pop(number)
        flags = () if reached else ("upstream_connection_failure",)
        self.router.complete(
            Completion(
                pick.pick_id,
                pick.address,
                status=200 if reached else 503,
                flags=flags,
                duration_s=duration_s,
                cluster=_POOL,
            ),
            now,
        )

    # Servers --------------------------------------------------------------------------------------------------------

    def sampled(self, server: int, sample: LoadSample, now: float) -> None:
        self.router.observe(_POOL, _address(server), sample, now)

    def refused(self, server: int, now: float) -> None:
        """Nobody listens there."""
        self.pool.scrape_failed(_address(server), "connection refused", now, answered=False, refused=True)

    def page_broken(self, server: int, now: float) -> None:
        """It answers, but tells no metrics."""
        self.pool.scrape_failed(_address(server), "HTTP 404", now, answered=True, refused=False)

    def victim(self, now: float) -> int | NoVictim:
        """The server that should go, by the rules of the pool."""
        proposal = propose(self.pool.members, now, alone_tokens=lambda _: 0.0, bounds=_BOUNDS, floor=0)
        return proposal if isinstance(proposal, NoVictim) else self._numbers[proposal.member.address]

    def least_busy(self) -> int | None:
        """The server with the least in flight of those that are not drained, whatever the others have."""
        staying = [member for member in self.pool.members if member.drain is None]
        if not staying:
            return None
        least = min(staying, key=lambda member: (tokens_in_flight(member, _BOUNDS), member.address))
        return self._numbers[least.address]

    def drain(self, server: int, now: float) -> None:
        """It gets no new requests; those that run there are waited for, however long that takes."""
        self.pool.drains.ask(self._member(server), By.OPERATOR, now)

    def drained(self, now: float) -> list[int]:
        """Servers that may be stopped."""
        self.pool.drains.tick(now)
        return [
            self._numbers[member.address] for member in self.pool.drains.members if member.state(now) is State.DRAINED
        ]

    def _member(self, server: int) -> Member:
        member = self.pool.member(_address(server))
        assert member is not None
        return member


def _address(server: int) -> Address:
    return Address.of(f"10.{server >> 16}.{(server >> 8) & 255}.{server & 255}", 8000)
