"""Where does a request go? The whole decision, and what is remembered of it.

Decide, then act: `route` is one synchronous step from looking at the fleet to holding a place on the chosen server, so
each request of a burst sees all those before it. Only the prefix index learns of a pick later, by `settle` or by the
next look at it, whichever comes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import Protocol

from extproc.decision import Completion, Decision, Outcome, Pick, Rejection, RejectionReason
from extproc.endpoint import Address
from extproc.explanation import Explanation, Logged, explain
from extproc.note import Note
from extproc.openai.answer import response_id_of
from extproc.openai.priority import priority_of
from extproc.openai.understand import SESSION_FIELDS
from extproc.placement import Placed, Placement, restarted
from extproc.pool.drain import By
from extproc.pool.ledger import RECENT, Ledger
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.reservation import Prompt, Reservation
from extproc.pool.sample import LoadSample
from extproc.prefix.approximate import DEFAULT_MAX_BLOCKS
from extproc.request import ANY_ROUTE, InferenceRequest, RawRequest
from extproc.scheduling.filters import eligible, subset_of
from extproc.scheduling.profiles import PROFILES, Profile
from extproc.scheduling.shedding import Shed, ShedRule, shed
from extproc.serving import members_for, no_such_model
from extproc.unknown import NamedBy, UnknownNames

# The decision log: so many explained a second, and at once, with so many servers each. An explanation takes 0.1 to 1 ms
# to write, and the answer waits for it: at ten requests a second, five explained ones were half of all.
LOGGED_PER_S = 1
LOGGED_AT_ONCE = 5
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
    shed: tuple[ShedRule, ...] = ()  # whom to turn away when all servers are full; empty: nobody
    priority_header: str | None = None  # lower case; names a request's priority, before its body does
    # A server's list of models older than this is no ground to refuse a request; None: nothing is.
    refuse_models_within_s: float | None = None


@dataclass(frozen=True, slots=True)
class Considered:
    """What a decision goes by."""

    plan: PoolPlan
    profile: Profile
    candidates: Sequence[Member]
    panic: bool  # every endpoint looked bad, so all are candidates
    placed: Placed | None  # with all candidates in order; None: there is none
    shed: Shed | None = None  # the request is turned away all the same
    model: str | None = None  # servers that do not serve it are out; None: none is, for that
    refused: bool = False  # which is sure of all of them


class Witness(Protocol):
    """Is told of what is decided here and heard of requests, at once, so that other processes can be told."""

    def picked(self, reservation: Reservation, held_ratio: float) -> None:
        """`held_ratio`: the part of its prompt that the server holds, 0 to 1."""

    def ended(self, reservation: Reservation) -> None:
        """Its charge ended, also of one that was picked elsewhere."""

    def completed(self, completion: Completion) -> None: ...

    def answered(self, pick_id: str, served: Address | None, status: int | None) -> None: ...

    def stored(self, pick_id: str, response_id: str) -> None:
        """The server that serves this request keeps its response under that id."""


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
        self.unknown = UnknownNames()
        self.decisions: deque[Logged] = deque(maxlen=RECENT)  # a sample of the picks
        self._log_from_s = float("-inf")
        self._default = self.plans[default_pool if default_pool is not None else next(iter(self.plans))]
        self._rng = rng
        self.id_prefix = id_prefix
        self._witness: Witness | None = None
        self._picked = 0

    @property
    def picked(self) -> int:
        """Requests that it has routed itself."""
        return self._picked

    @property
    def pools(self) -> list[Pool]:
        return [plan.pool for plan in self.plans.values()]

    def route(self, raw: RawRequest, now: float, note: Note | None = None) -> Decision:
        """Pick a server and reserve a place there, or say why not. Never raises for anything in the request.

        `note`: is filled in with what the decision goes by; None: nobody asks for that.
        """
        plan = self._plan(raw)
        profile = self._profile(plan, raw)
        if raw.route is not ANY_ROUTE or plan.profile_header is not None:
            self._count_unknown(plan, raw)
        pool = plan.pool
        placement, request, members = self._read(plan, profile, raw, now)
        if note is not None:
            note.asked(pool.name, profile.name, request)
        if not members and request is not None and request.model is not None and pool.members:
            self.ledger.rejections[RejectionReason.MODEL_NOT_FOUND] += 1
            return no_such_model(pool, request.model)
        found = eligible(members, now, raw.subset, all_ready=pool.all_ready)
        candidates = found.candidates
        if not candidates:
            doubtful = None if pool.known else pool.name
            return self._reject(
                pool, RejectionReason.NO_ENDPOINTS, "No server is available for this request.", doubtful=doubtful
            )
        if found.panic:
            self.ledger.panics[pool.name] += 1
        elif plan.shed:
            away = _shed(plan, raw, request, candidates, now)
            if away is not None:
                return self._reject(
                    pool,
                    RejectionReason.OVERLOADED,
                    "All servers are busy; please retry later.",
                    status=429,
                    retry_after_s=away.retry_after_s,
                )
        placed = placement.place(request, profile, candidates, plan.hosts, now, self._rng)
        if note is not None:
            note.placed(placed, candidates, now, panic=found.panic)
        named = [candidates[i] for i in placed.order]
        addresses = [member.endpoint.address for member in named]
        self._picked += 1
        pick = Pick(
            pick_id=f"{self.id_prefix}{self._picked:x}",
            address=addresses[0],
            fallbacks=tuple(addresses[1:]),
            destination=",".join([address.text for address in addresses]),
            stores=placed.request is not None and placed.request.stores,
        )
        explanation = None
        if now >= self._log_from_s:  # most picks, and a burst of them, when they are few
            self._log_from_s = max(self._log_from_s, now - LOGGED_AT_ONCE / LOGGED_PER_S) + 1.0 / LOGGED_PER_S
            explanation = _explain(
                Considered(plan, profile, candidates, found.panic, placed, model=_sieve(pool, members, request)),
                raw,
                now,
                LOGGED_ENDPOINTS,
            )
        uncached, held_ratio = placed.uncached_tokens(named[0]), placed.work.held_ratio_at(named[0].slot)
        reservation = Reservation(pick, named[0], pool.name, raw.path, now, uncached, held_ratio)
        self.ledger.add(reservation)
        if explanation is not None:
            self.decisions.append(Logged(reservation, explanation))
        placement.learn(placed, named[0], now)
        if placed.blocks.hashes:
            reservation.prompt = placed.blocks
        reservation.conversation = placed.conversation
        if placed.request is not None:
            reservation.max_tokens = placed.request.max_tokens
        if pick.stores and placed.request is not None:
            reservation.response_id = placed.request.own_response_id
        if self._witness is not None:
            self._witness.picked(reservation, held_ratio)
        return pick

    def settle(self) -> None:
        """Do what is left to do of the last picks: teach the prefix index.

        To be called when the answer is on its way; what was not done by then, the next look at the index does first. So
        it makes no difference to any decision, but that no answer waits for it.
        """
        for placement in self.placements.values():
            placement.settle()

    def consider(self, raw: RawRequest, now: float) -> Considered:
        """What `route` would go by for this request now, without doing anything: later picks draw the same lots."""
        plan, placed = self._plan(raw), None
        profile = self._profile(plan, raw)
        pool = plan.pool
        placement, request, members = self._read(plan, profile, raw, now)
        found = eligible(members, now, raw.subset, all_ready=pool.all_ready)
        if found.candidates:
            placed = placement.place(request, profile, found.candidates, len(found.candidates), now, copy(self._rng))
        away, model = None, _sieve(pool, members, request)
        if plan.shed and found.candidates and not found.panic:
            away = _shed(plan, raw, request, found.candidates, now)
        refused = bool(pool.members) and not members
        return Considered(plan, profile, tuple(found.candidates), found.panic, placed, away, model, refused)

    def explain(self, raw: RawRequest, now: float) -> Explanation:
        """Where this request would go now, and why; see `consider`."""
        return _explain(self.consider(raw, now), raw, now)

    def _plan(self, raw: RawRequest) -> PoolPlan:
        return self.plans.get(raw.route.pool, self._default) if raw.route.pool is not None else self._default

    def _read(
        self, plan: PoolPlan, profile: Profile, raw: RawRequest, now: float
    ) -> tuple[Placement, InferenceRequest | None, tuple[Member, ...]]:
        """What the request asks for (None: it need not be known), and who serves that."""
        pool = plan.pool
        placement = self.placements[pool.name]
        request = placement.read(raw) if profile.reads_body or pool.mixed else None
        return placement, request, members_for(pool, request, plan.refuse_models_within_s, now)

    @staticmethod
    def _profile(plan: PoolPlan, raw: RawRequest) -> Profile:
        """The route's choice counts more than the pool's, and the client's, where it may have one, more than both."""
        profile = plan.profile
        if raw.route.profile is not None:
            profile = PROFILES.get(raw.route.profile, profile)
        if plan.profile_header is not None:
            profile = PROFILES.get(raw.headers.get(plan.profile_header, ""), profile)
        return profile

    def _count_unknown(self, plan: PoolPlan, raw: RawRequest) -> None:
        pool, profile = raw.route
        if pool is not None and pool not in self.plans:
            self.unknown.add(NamedBy.ROUTE_POOL, pool)
        if profile is not None and profile not in PROFILES:
            self.unknown.add(NamedBy.ROUTE_PROFILE, profile)
        if plan.profile_header is not None:
            profile = raw.headers.get(plan.profile_header)
            if profile and profile not in PROFILES:
                self.unknown.add(NamedBy.HEADER_PROFILE, profile)

    def testify(self, witness: Witness) -> None:
        """Tell this one, too, from now on."""
        self._witness = witness
        self.ledger.on_end = witness.ended

    def picked_elsewhere(
        self,
        pool: str,
        pick: Pick,
        *,
        path: str,
        at_s: float,
        uncached_tokens: float | None,
        held_ratio: float,
        prompt: Prompt | None,
        conversation: int | None,
        max_tokens: int | None,
        response_id: str | None,
        charged: bool = True,
    ) -> Reservation | None:
        """Another process has made this pick: hold its place here, too, and learn its prompt. None: no such server is
        known here, or it is not to be `charged`, having ended already."""
        plan = self.plans.get(pool)
        member = None if plan is None else plan.pool.member(pick.address)
        if member is None:
            return None
        placement = self.placements[pool]
        if prompt is not None:
            placement.learn_prompt(prompt, member)
        if conversation is not None:
            placement.conversations.add(conversation)
        if response_id is not None:
            placement.stored.put(response_id, member, at_s)
        if not charged:
            return None
        reservation = Reservation(pick, member, pool, path, at_s, uncached_tokens, held_ratio)
        reservation.prompt, reservation.conversation = prompt, conversation
        reservation.max_tokens, reservation.response_id = max_tokens, response_id
        self.ledger.add(reservation)
        return reservation

    def stored_elsewhere(self, pick_id: str, response_id: str, now: float) -> None:
        """As `response_began`, seen by another process."""
        reservation = self.ledger.find(pick_id)
        if reservation is not None:
            reservation.response_id = response_id
            self._stored(reservation, now)

    def ended_elsewhere(self, reservation: Reservation, now: float) -> None:
        """The process that made this pick says that its charge ended."""
        self.ledger.end(reservation, now)

    def response_began(self, pick_id: str, head: bytes, now: float) -> None:
        """The body of a response begins so: it may tell the id under which its server keeps it."""
        reservation = self.ledger.find(pick_id)
        if reservation is not None and reservation.response_id is None:
            reservation.response_id = response_id_of(head)
            self._stored(reservation, now)
            if self._witness is not None and reservation.response_id is not None:
                self._witness.stored(pick_id, reservation.response_id)

    def answered(self, pick_id: str, served: Address | None, status: int | None, now: float) -> None:
        """A response begins, as a gateway shows it: of which server (None: it does not say), with which status."""
        self.answered_elsewhere(pick_id, served, status, now)
        if self._witness is not None:
            self._witness.answered(pick_id, served, status)

    def answered_elsewhere(self, pick_id: str, served: Address | None, status: int | None, now: float) -> None:
        """The same, as another process says."""
        reservation = self.ledger.answered(pick_id, served, status, self.pools, now)
        if reservation is not None:
            self._learn_where_it_went(reservation)

    def withdraw(self, rejection: Rejection, *, again: bool = True) -> None:
        """It was not sent: another decision on the same request follows, at once; or else (`again` is false) it is left
        to Envoy."""
        self.ledger.rejections[rejection.reason] -= 1
        if again and rejection.doubtful is not None and rejection.reason is not RejectionReason.MODEL_NOT_FOUND:
            self.ledger.turned_away[rejection.doubtful] -= 1

    def stream_ended(self, pick_id: str, now: float) -> None:
        """The stream of a pick ended, however. Its charge ends too, unless it was detached."""
        self.ledger.stream_ended(pick_id, now)

    def detach(self, pick_id: str) -> None:
        """The stream will end before the request does; see `Ledger.detach`."""
        self.ledger.detach(pick_id)

    def complete(self, completion: Completion, now: float) -> None:
        """Take in what the access log tells of a request, and let it count for the server's health."""
        self.completed_elsewhere(completion, now)
        if self._witness is not None:
            self._witness.completed(completion)

    def completed_elsewhere(self, completion: Completion, now: float) -> None:
        """The same, where the log was received by another process."""
        reservation = self.ledger.complete(completion, self.pools, now)
        if reservation is None:
            return
        self._learn_where_it_went(reservation)
        if not completion.final:
            return
        reservation.prompt = None
        answered = completion.served == reservation.member.address and (completion.status or 0) < 400
        if answered and reservation.outcome is Outcome.OK:
            self._stored(reservation, now)  # perhaps by another server than the one it was picked for

    def observe(self, pool: str, address: Address, sample: LoadSample, now: float) -> bool:
        """Take in a sample of one endpoint; true when the server has come up or was restarted since the last."""
        of = self.plans[pool].pool
        member = of.member(address)
        if member is None:
            return False  # the scrape outlived the member
        before, failing = member.sample, member.health.last_error is not None
        anew = before is not None and restarted(before, sample)
        self.ledger.presume_ended(of.observe(address, sample), now)
        self.placements[pool].observed(member, before, sample, anew=anew)
        if anew:
            of.doubt_models(address)
            of.drains.cancel(member, now, By.SELF)  # who asked for it has stopped, as it wished
        return before is None or failing or anew

    def _learn_where_it_went(self, reservation: Reservation) -> None:
        if reservation.prompt is not None and reservation.member.address != reservation.pick.address:
            self.placements[reservation.pool].learn_prompt(reservation.prompt, reservation.member)

    def _stored(self, reservation: Reservation, now: float) -> None:
        if reservation.response_id is not None:
            self.placements[reservation.pool].stored.put(reservation.response_id, reservation.member, now)

    def _reject(
        self,
        pool: Pool,
        reason: RejectionReason,
        message: str,
        *,
        status: int = 503,
        retry_after_s: int = 1,
        doubtful: str | None = None,
    ) -> Rejection:
        self.ledger.rejections[reason] += 1
        self.ledger.turned_away[pool.name] += 1
        return Rejection(reason, status, message, retry_after_s, doubtful)


def _shed(
    plan: PoolPlan, raw: RawRequest, request: InferenceRequest | None, candidates: Sequence[Member], now: float
) -> Shed | None:
    """Not to be asked in panic: what the candidates' samples say is then not to be relied on."""
    return shed(plan.shed, candidates, lambda: priority_of(raw, plan.priority_header, request), now)


def _sieve(pool: Pool, members: Sequence[Member], request: InferenceRequest | None) -> str | None:
    """The model by which `members` were chosen; None: they were not."""
    return None if request is None or members is pool.members else request.model


def _explain(found: Considered, raw: RawRequest, now: float, most: int | None = None) -> Explanation:
    subset = None if raw.subset is None else subset_of(raw.subset)
    return explain(
        found.plan.pool,
        found.profile,
        found.candidates,
        found.placed,
        now,
        panic=found.panic,
        shed=found.shed,
        subset=subset,
        model=found.model,
        refused=found.refused,
        most=most,
    )


def _placement(plan: PoolPlan, kind: type[Placement]) -> Placement:
    return kind(
        plan.pool,
        max_blocks=plan.max_blocks,
        session_headers=plan.session_headers,
        session_fields=plan.session_fields,
    )
