"""Where does a request go? The whole decision, and what is remembered of it.

Decide, then act: `route` is one synchronous step from looking at the fleet to holding a place on the chosen server, so
each request of a burst sees all those before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from random import Random

from extproc.decision import Completion, Decision, Outcome, Pick, Rejection, RejectionReason
from extproc.endpoint import Address
from extproc.explanation import Explanation, Logged, explain
from extproc.openai.understand import SESSION_FIELDS
from extproc.placement import Placed, Placement
from extproc.pool.ledger import RECENT, Ledger
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.reservation import Reservation
from extproc.pool.sample import LoadSample
from extproc.prefix.approximate import DEFAULT_MAX_BLOCKS
from extproc.request import RawRequest
from extproc.scheduling.filters import eligible, subset_of
from extproc.scheduling.profiles import PROFILES, Profile

# The decision log: so many explained a second, with so many servers each. An explanation takes 0.1 to 1 ms to write.
LOGGED_PER_S = 5
LOGGED_ENDPOINTS = 16


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """A pool and how its requests are placed."""

    pool: Pool
    profile: Profile
    hosts: int  # named per pick: the first choice and its fallbacks
    max_blocks: int = DEFAULT_MAX_BLOCKS  # bound of the prefix index, over all servers of the pool
    session_headers: tuple[str, ...] = ()
    session_fields: tuple[str, ...] = SESSION_FIELDS  # of the body
    profile_header: str | None = None  # lower case; names the profile of a request; None: clients have no say


@dataclass(frozen=True, slots=True)
class Considered:
    """What a decision goes by."""

    plan: PoolPlan
    profile: Profile
    candidates: Sequence[Member]
    panic: bool  # every endpoint looked bad, so all are candidates
    placed: Placed | None  # with all candidates in order; None: there is none


class Router:
    """Routes requests over pools and keeps the account of them. Time comes in as `now`: monotonic, in seconds."""

    def __init__(
        self,
        plans: Iterable[PoolPlan],
        *,
        default_pool: str | None = None,
        rng: Random,
        id_prefix: str = "",
        placement: type[Placement] = Placement,
    ) -> None:
        """`id_prefix` makes pick ids unique over processes. Without `default_pool` the first pool is it.

        `placement`: another class where prompts come cut already, as in simulations.
        """
        self.plans: Mapping[str, PoolPlan] = {plan.pool.name: plan for plan in plans}
        if not self.plans:
            raise ValueError("a router needs at least one pool")
        self.placements: Mapping[str, Placement] = {
            name: _placement(plan, placement) for name, plan in self.plans.items()
        }
        self.ledger = Ledger()
        self.decisions: deque[Logged] = deque(maxlen=RECENT)  # a sample of the picks
        self._log_from_s = float("-inf")
        self._default = self.plans[default_pool if default_pool is not None else next(iter(self.plans))]
        self._rng = rng
        self._id_prefix = id_prefix
        self._picked = 0

    @property
    def pools(self) -> list[Pool]:
        return [plan.pool for plan in self.plans.values()]

    def route(self, raw: RawRequest, now: float) -> Decision:
        """Pick a server and reserve a place there, or say why not. Never raises for anything in the request."""
        plan = self._plan(raw)
        profile = self._profile(plan, raw)
        pool = plan.pool
        placement = self.placements[pool.name]
        request = placement.read(raw) if profile.reads_body else None
        found = eligible(pool.members, now, raw.subset)
        candidates = found.candidates
        if not candidates:
            return self._reject(RejectionReason.NO_ENDPOINTS, "No server is available for this request.")
        if found.panic:
            self.ledger.panics[pool.name] += 1
        placed = placement.place(request, profile, candidates, plan.hosts, now, self._rng)
        members = [candidates[i] for i in placed.order]
        addresses = [member.endpoint.address for member in members]
        self._picked += 1
        pick = Pick(
            pick_id=f"{self._id_prefix}{self._picked:x}",
            address=addresses[0],
            fallbacks=tuple(addresses[1:]),
            destination=",".join([address.text for address in addresses]),
        )
        explanation = None
        if now >= self._log_from_s:  # most picks, and a burst of them, when they are few
            self._log_from_s = max(self._log_from_s, now - 1.0) + 1.0 / LOGGED_PER_S
            explanation = _explain(
                Considered(plan, profile, candidates, found.panic, placed), raw, now, LOGGED_ENDPOINTS
            )
        uncached = placed.uncached_tokens(members[0])
        reservation = Reservation(pick, members[0], pool.name, raw.path, now, uncached)
        self.ledger.add(reservation)
        if explanation is not None:
            self.decisions.append(Logged(reservation, explanation))
        placement.learn(placed, members[0])
        return pick

    def consider(self, raw: RawRequest, now: float) -> Considered:
        """What `route` would go by for this request now, without doing anything: later picks draw the same lots."""
        plan, placed = self._plan(raw), None
        profile = self._profile(plan, raw)
        placement = self.placements[plan.pool.name]
        request = placement.read(raw) if profile.reads_body else None
        found = eligible(plan.pool.members, now, raw.subset)
        if found.candidates:
            placed = placement.place(request, profile, found.candidates, len(found.candidates), now, copy(self._rng))
        return Considered(plan, profile, tuple(found.candidates), found.panic, placed)

    def explain(self, raw: RawRequest, now: float) -> Explanation:
        """Where this request would go now, and why; see `consider`."""
        return _explain(self.consider(raw, now), raw, now)

    def _plan(self, raw: RawRequest) -> PoolPlan:
        return self.plans.get(raw.route.pool, self._default) if raw.route.pool is not None else self._default

    @staticmethod
    def _profile(plan: PoolPlan, raw: RawRequest) -> Profile:
        """The route's choice counts more than the pool's, and the client's, where it may have one, more than both."""
        profile = plan.profile
        if raw.route.profile is not None:
            profile = PROFILES.get(raw.route.profile, profile)
        if plan.profile_header is not None:
            profile = PROFILES.get(raw.headers.get(plan.profile_header, ""), profile)
        return profile

    def stream_ended(self, pick_id: str, now: float) -> None:
        """The stream of a pick ended, however. Its charge ends too, unless it was detached."""
        self.ledger.stream_ended(pick_id, now)

    def detach(self, pick_id: str) -> None:
        """The stream will end before the request does; see `Ledger.detach`."""
        self.ledger.detach(pick_id)

    def complete(self, completion: Completion, now: float) -> None:
        """Take in what the access log tells of a request, and let it count for the server's health."""
        reservation = self.ledger.complete(completion, self.pools, now)
        if reservation is None or not completion.final or completion.served != reservation.member.address:
            return  # the last: no server was reached, or one that is not ours
        health = reservation.member.health
        if reservation.outcome is Outcome.FAILED:
            health.request_fault(now)
        elif reservation.outcome is Outcome.OK and (completion.status or 0) < 400:
            health.request_ok(reservation.picked_at_s)  # a 4xx says nothing: a broken engine can still refuse politely

    def observe(self, pool: str, address: Address, sample: LoadSample, now: float) -> None:
        """Take in a sample of one endpoint."""
        member = self.plans[pool].pool.member(address)
        if member is None:
            return  # the scrape outlived the member
        before = member.sample
        self.ledger.presume_ended(member.observe(sample), now)
        self.placements[pool].observed(member, before, sample)

    def _reject(self, reason: RejectionReason, message: str) -> Rejection:
        self.ledger.rejections[reason] += 1
        return Rejection(reason, 503, message, retry_after_s=1)


def _explain(found: Considered, raw: RawRequest, now: float, most: int | None = None) -> Explanation:
    subset = None if raw.subset is None else subset_of(raw.subset)
    return explain(
        found.plan.pool, found.profile, found.candidates, found.placed, now, panic=found.panic, subset=subset, most=most
    )


def _placement(plan: PoolPlan, kind: type[Placement]) -> Placement:
    return kind(
        plan.pool,
        max_blocks=plan.max_blocks,
        session_headers=plan.session_headers,
        session_fields=plan.session_fields,
    )
