"""Why did this server get this request? The rule's own numbers at that moment, as a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from extproc.affinity.bound import load_limit
from extproc.placement import Placed
from extproc.pool.member import Member
from extproc.scheduling.costs import Cost
from extproc.scheduling.pickers import tie_limit
from extproc.scheduling.profiles import By, Profile
from extproc.scheduling.shedding import Shed
from extproc.serving import shown

_ONLY = "the only one that can be used"
_STORED = "has the stored response that the request names"
_KEYS = {By.SESSION: "the session's key", By.PREFIX: "the key of the prompt's first blocks"}


def why(placed: Placed, profile: Profile, candidates: Sequence[Member], chosen: int) -> str:
    """Say what decided for `candidates[chosen]`, which the sentence does not name."""
    if placed.by is By.FIRST_TOKEN:
        text = _first_token(placed, candidates, chosen)
    elif placed.by is By.STORED:
        return _STORED
    elif placed.by is By.LOAD:
        text = by_load(placed.load_costs[chosen], [*placed.load_costs[:chosen], *placed.load_costs[chosen + 1 :]])
    else:
        text = _ring(placed, chosen)
    missed = _missed(placed, profile)
    return f"{missed}: {text}" if missed else text


def why_nobody(dropped: Iterable[str]) -> str:
    """Say why no server can be used, by the reason of each."""
    reasons = Counter(dropped).most_common()
    if not reasons:
        return "the pool has no endpoints"
    return "no endpoint can be used: " + ", ".join(f"{count} {reason}" for reason, count in reasons)


def why_refused(model: str) -> str:
    """Say why a request would be refused for the model it names."""
    return f'refused (404): every endpoint says that it does not serve "{shown(model)}"'


def why_shed(shed: Shed) -> str:
    """Say why a request would be turned away although servers could be used."""
    return (
        f"turned away (429, retry-after {shed.retry_after_s} s): every endpoint that can be used has {shed.waiting:g}"
        f" or more requests waiting, the bound for priority {shed.priority}"
    )


def by_load(chosen: Cost, others: Sequence[Cost]) -> str:
    """Say what decided, by the costs of `least_loaded`: waiting, unknown, KV usage, in flight.

    "waiting" includes what was sent since the last look at the server, as in the rule.
    """
    if not others:
        return _ONLY
    same = [other for other in others if other[0] == chosen[0]]
    more = [other[0] for other in others if other[0] != chosen[0]]
    head = f"fewest waiting {chosen[0]:g} (others {_range(more, '{:g}'.format)})" if more else f"{chosen[0]:g} waiting"
    if not same:
        return head
    known = [other for other in same if other[1] == chosen[1]]
    if not known:
        return f"{head}, and its load is known"
    same = [other for other in known if other[2] == chosen[2]]
    if not same:
        return f"{head}, lowest KV {chosen[2]:.1%} ({_range([o[2] for o in known], '{:.1%}'.format)})"
    equal = [other for other in same if other[3] == chosen[3]]
    if not equal:
        in_flight = _range([other[3] for other in same], "{:g}".format)
        return f"{head}, KV {chosen[2]:.1%}, fewest in flight {chosen[3]:g} ({in_flight})"
    return f"{head}, KV {chosen[2]:.1%}: drawn among {len(equal) + 1} equal ones"


def _first_token(placed: Placed, candidates: Sequence[Member], chosen: int) -> str:
    costs_s, work, load = placed.costs_s, placed.work, candidates[chosen].load
    held = min(work.held_at(candidates[chosen].slot), work.prompt_tokens)
    head = f"holds {held:,.0f} of {work.prompt_tokens:,.0f} tokens, {seconds(costs_s[chosen])} expected"
    others = [i for i in range(len(costs_s)) if i != chosen]
    if not others:
        return f"{head}; {_ONLY}"
    limit = tie_limit(min(costs_s))
    tied = [i for i in others if costs_s[i] <= limit]
    if not tied:
        following = min(others, key=costs_s.__getitem__)
        return f"{head}; next {candidates[following].address} with {seconds(costs_s[following])}"
    head = f"{head}; {len(tied)} more within {seconds(limit)} count as equal"
    same = [i for i in tied if candidates[i].load == load]
    if not same:
        in_flight = _range([candidates[i].load for i in tied], "{:g}".format)
        return f"{head}, and it has the fewest in flight, {load:g} ({in_flight})"
    by = "" if placed.drawn_by is None else f" by {_KEYS[placed.drawn_by]}"
    return f"{head}: drawn{by} among {len(same) + 1} with {load:g} in flight"


def _ring(placed: Placed, chosen: int) -> str:
    head = f"the ring's choice for {_KEYS[placed.by]}"
    limit = load_limit(sum(placed.loads), len(placed.loads))
    full = sum(load > limit for load in placed.loads)
    if not full:
        return head
    return f"{head} among those within the load bound ({full} with more than {limit:g} in flight come last)"


def _missed(placed: Placed, profile: Profile) -> str:
    """Why the profile's better ways could not decide; empty when the best did."""
    request = placed.request
    if request is None or placed.by is profile.ways[0]:
        return ""
    missing = []
    for way in profile.ways[: profile.ways.index(placed.by)]:
        if way is By.SESSION:
            missing.append("no session key")
        elif request.no_prompt is not None:
            missing.append(f"no prompt ({request.no_prompt})")
        else:
            missing.append("no full block of prompt")
    return " and ".join(missing)


def seconds(value: float) -> str:
    """To the millisecond: `0.035 s`, `12.61 s`."""
    return f"{value:.3f}".rstrip("0").rstrip(".") + " s"


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low}–{high}"
