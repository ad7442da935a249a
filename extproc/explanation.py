"""What did a decision go by, server by server?

The numbers are those of the decision itself: the match it used, the terms its cost was summed from. Nothing here holds
any of the prompt, the session key or the cache salt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from extproc.placement import UNIT_TOKENS, Placed
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.reservation import Reservation
from extproc.prefix.blocks import blocks_within
from extproc.request import InferenceRequest
from extproc.scheduling.costs import Terms, first_token_s
from extproc.scheduling.filters import Subset, drop_reason
from extproc.scheduling.profiles import Profile
from extproc.scheduling.shedding import Shed
from extproc.serving import NAME_CHARS
from extproc.why import why, why_nobody, why_refused, why_shed


@dataclass(frozen=True, slots=True)
class Understood:
    """What is known of the request."""

    kind: str
    model: str | None  # cut off after 100 characters; None: not given
    prompt_tokens: int  # estimated from its length
    blocks: int  # full ones
    no_prompt: str | None  # why nothing is known of its prompt; None: it is known
    session_key: bool  # whether it names a conversation or user


@dataclass(frozen=True, slots=True)
class Weighed:
    """One server, as the decision saw it. What played no part in it, or is unknown, is None."""

    address: str
    state: str  # as on the status page
    rank: int | None  # in the order of preference, from 1; None: not in it
    dropped: str | None  # why it could not be picked; None: it could
    held_tokens: float | None  # of this prompt; None: nothing is known of it
    held_blocks: int | None
    uncached_tokens: float | None  # what it would have to compute
    owed_tokens: float  # prompt tokens it has to compute before
    prefill_tokens_per_s: float
    prefill_s: float | None  # the terms of the cost, and their sum; None: another way decided
    others_s: float | None
    kv_wait_s: float | None
    load_s: float | None
    expected_s: float | None
    in_flight: int
    waiting: float | None  # None: no fresh sample
    kv_usage_ratio: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision."""

    pool: str
    profile: str
    by: str | None  # the way of the profile that decided; None: there was nothing to decide
    panic: bool  # every server looked bad, so all of them were used
    request: Understood | None  # None: the profile does not read bodies
    chosen: str | None  # None: nobody can be picked, or the request would be turned away
    why: str  # one sentence
    endpoints: tuple[Weighed, ...]  # the chosen first, the dropped last
    left_out: int  # servers that are not listed


@dataclass(frozen=True, slots=True)
class Logged:
    """A pick with its explanation; how it ended is in the reservation."""

    reservation: Reservation
    explanation: Explanation


def explain(
    pool: Pool,
    profile: Profile,
    candidates: Sequence[Member],
    placed: Placed | None,
    now: float,
    *,
    panic: bool = False,
    shed: Shed | None = None,
    subset: Subset | None = None,
    model: str | None = None,
    refused: bool = False,
    most: int | None = None,
) -> Explanation:
    """Explain what `placed` says, before anything is done about it. `placed` is None when there are no candidates.

    `shed`: the request is turned away; the servers stand in the order that it would have them in otherwise.
    `model`: servers that do not serve it are dropped; None: none is for that. `refused`: that is all of them, for sure.
    `most` bounds the servers listed; None: all.
    """
    members = _in_order(pool.members, candidates, placed)
    listed = members if most is None else members[:most]
    place = {id(member): i for i, member in enumerate(candidates)}
    ranks = {} if placed is None else {i: rank for rank, i in enumerate(placed.order, start=1)}
    terms: list[Terms] = []
    if placed is not None and placed.costs_s:
        first_token_s(candidates, placed.work, now, terms=terms)
    rows = []
    for member in listed:
        i = place.get(id(member))
        if i is None or placed is None:
            rows.append(_weighed(member, now, dropped=_dropped(member, now, subset, model)))
        else:
            cost = (terms[i], placed.costs_s[i]) if terms else None
            rows.append(_weighed(member, now, rank=ranks.get(i), placed=placed, cost=cost))
    if placed is None:
        chosen, sentence = None, why_nobody(_dropped(member, now, subset, model) for member in pool.members)
        if refused and model is not None:
            sentence = why_refused(model)
    elif shed is not None:
        chosen, sentence = None, why_shed(shed)
    else:
        chosen = str(candidates[placed.order[0]].address)
        panics = "every endpoint looks bad, so all are used: " if panic else ""
        sentence = f"{chosen}: {panics}{why(placed, profile, candidates, placed.order[0])}"
    return Explanation(
        pool=pool.name,
        profile=profile.name,
        by=None if placed is None else placed.by.name.lower(),
        panic=panic,
        request=None if placed is None or placed.request is None else _understood(placed.request, placed),
        chosen=chosen,
        why=sentence,
        endpoints=tuple(rows),
        left_out=len(members) - len(listed),
    )


def _in_order(members: Sequence[Member], candidates: Sequence[Member], placed: Placed | None) -> list[Member]:
    """The order of preference, the other candidates by what they cost, the dropped ones."""
    if placed is None:
        return list(members)
    known = set(placed.order)
    rest = [i for i in range(len(candidates)) if i not in known]
    costs: Sequence[float] | Sequence[tuple[float, ...]] = placed.costs_s or placed.load_costs or placed.loads
    rest.sort(key=costs.__getitem__)
    used = {id(member) for member in candidates}
    dropped = [member for member in members if id(member) not in used]
    return [*(candidates[i] for i in (*placed.order, *rest)), *dropped]


def _weighed(
    member: Member,
    now: float,
    *,
    rank: int | None = None,
    dropped: str | None = None,
    placed: Placed | None = None,
    cost: tuple[Terms, float] | None = None,
) -> Weighed:
    fresh = now <= member.usable_until_s
    terms, expected_s = cost if cost is not None else (None, None)
    work = None
    if placed is not None and placed.request is not None and placed.request.no_prompt is None:
        work = placed.work
    return Weighed(
        address=str(member.address),
        state=str(member.state(now)),
        rank=rank,
        dropped=dropped,
        held_tokens=None if work is None else min(work.held_at(member.slot), work.prompt_tokens),
        held_blocks=None if work is None else blocks_within(int(work.held_at(member.slot)) // UNIT_TOKENS),
        uncached_tokens=None if work is None else work.uncached_at(member.slot),
        owed_tokens=member.prefill.owed(now),
        prefill_tokens_per_s=member.prefill.rate,
        prefill_s=None if terms is None else terms.prefill_s,
        others_s=None if terms is None else terms.others_s,
        kv_wait_s=None if terms is None else terms.kv_wait_s,
        load_s=None if terms is None else terms.load_s,
        expected_s=expected_s,
        in_flight=member.in_flight,
        waiting=member.waiting if fresh else None,
        kv_usage_ratio=member.kv_usage_ratio if fresh else None,
    )


def _dropped(member: Member, now: float, subset: Subset | None, model: str | None) -> str:
    return drop_reason(member, now, subset, model) or "another is preferred"


def _understood(request: InferenceRequest, placed: Placed) -> Understood:
    return Understood(
        kind=str(request.kind),
        model=None if request.model is None else request.model[:NAME_CHARS],
        prompt_tokens=round(placed.work.prompt_tokens),
        blocks=len(placed.blocks.hashes),
        no_prompt=None if request.no_prompt is None else str(request.no_prompt),
        session_key=request.session_key is not None,
    )
