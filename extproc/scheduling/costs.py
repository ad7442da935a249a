"""How attractive is each candidate? Lower is better; equal costs are equal candidates.

Every function here is monotone: more load on a server never lowers its cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from extproc.scheduling.candidate import Candidate, Standing
from extproc.scheduling.work import Work

Cost = tuple[float, ...]

# What each request on a server adds to the first token of another: a decode step gets longer by 50 µs for the sequence
# and 82 ns for each of some thousand tokens of its context (a large card, see the simulator's a100-8b), and a first
# token waits for one and a half steps.
LOAD_S = 0.001
# A request that begins a conversation decides where the following ones go, which will all meet the load that is there:
# 0.03 s is some ten turns of it and more (by experiment; docs/decisions/cost-in-seconds.md). Without a session key
# there may be no following ones.
LOAD_OF_SESSION_S = 0.03
LOAD_OF_BEGINNING_S = 0.01
# The first request of a conversation decides for so many that come after it, though a server hold most of its prompt
# already, as with the tools of an agent: what each request that is there costs them, a turn (by experiment, likewise).
LOAD_OF_TURN_S = 0.016
# What a prompt costs those who come for what an idle server holds, at most, as a part of its own time: by experiment
# (docs/decisions/cost-in-seconds.md). Where many come for what all hold, they can go to another server meanwhile.
OTHERS_MOST = 0.3


def least_loaded(candidates: Sequence[Candidate], now: float) -> list[Cost]:
    """Fewest waiting requests; equal: lowest KV usage; equal: fewest in flight.

    A waiting request means the server has taken all it can, so it comes first. Requests sent since the sample was
    taken count as waiting on top of it: each request of a burst between two samples sees those before it. Waiting and
    in-flight requests count by the server's weight: of two servers with as many, the one of weight 2 is half as loaded.

    Where a sample is missing or stale its load is unknown, not zero: the pool's mean stands in for both figures, and
    since the sample says nothing of any request, all our requests in flight there count on top. At the same waiting
    count a known server is preferred to an unknown one.
    """
    costs: list[Cost] = []
    for candidate in candidates:
        waiting, kv_usage = candidate.waiting, candidate.kv_usage_ratio
        if waiting is None or kv_usage is None or now > candidate.usable_until_s:
            return _with_unknown_loads(candidates, now)
        weight = candidate.endpoint.weight
        costs.append(((waiting + candidate.unseen) / weight, 0, kv_usage, candidate.in_flight / weight))
    return costs


def _with_unknown_loads(candidates: Sequence[Candidate], now: float) -> list[Cost]:
    """`least_loaded` where a figure is missing somewhere."""
    fresh = [candidate for candidate in candidates if now <= candidate.usable_until_s]
    mean_waiting = _mean([c.waiting for c in fresh if c.waiting is not None])
    mean_kv_usage = _mean([c.kv_usage_ratio for c in fresh if c.kv_usage_ratio is not None])
    costs: list[Cost] = []
    for candidate in candidates:
        waiting = kv_usage = None
        if now <= candidate.usable_until_s:
            waiting, kv_usage = candidate.waiting, candidate.kv_usage_ratio
        kv = mean_kv_usage if kv_usage is None else kv_usage
        weight, in_flight = candidate.endpoint.weight, candidate.in_flight
        if waiting is None:
            costs.append(((mean_waiting + in_flight) / weight, 1, kv, in_flight / weight))
        else:
            costs.append(((waiting + candidate.unseen) / weight, 0, kv, in_flight / weight))
    return costs


class Terms(NamedTuple):
    """What a time to first token is made of, in seconds."""

    prefill_s: float  # of what is owed there, and of this prompt
    others_s: float  # what those who come next wait longer
    kv_wait_s: float  # for KV blocks
    load_s: float  # for what else is running


def first_token_s(
    candidates: Sequence[Candidate],
    work: Work,
    now: float,
    *,
    terms: list[Terms] | None = None,
    complete: bool = False,
) -> list[float]:
    """The time to first token to expect, in seconds, less what is the same everywhere.

        (prompt tokens owed there + uncached tokens of this request) / prefill rate
        + what it costs others that tokens are computed there which another server holds
        + wait for KV blocks + requests there x LOAD_S (by weight)

    The second term: so many tokens more take `w` seconds. Who is sent there while the server works off what it owes
    already (`requests_per_s`, as lately) waits longer by all of it. While it works on this prompt, only those wait who
    come for what it holds (`bound_per_s`), by half of it on average, and OTHERS_MOST of `w` at most: the rest can go
    elsewhere. Without this term each request computes a prefix anew as soon as that is quicker for itself, and near
    saturation all wait for it (docs/decisions/cost-in-seconds.md). Tokens that nobody holds cost others as much
    wherever they go.

    Where the sample is missing or stale, our own account stands in: what we sent there is owed until it should be done,
    and the wait for blocks is taken to be the pool's mean. For an explanation, `terms` takes each candidate's parts.
    `complete`: all who hold any of the prompt are among the candidates.
    """
    each_s = LOAD_S + LOAD_OF_TURN_S * work.turns_to_come
    if work.begins_something:
        each_s = max(each_s, LOAD_OF_SESSION_S if work.in_session else LOAD_OF_BEGINNING_S)
    tokens, held = work.prompt_tokens, work.held
    rows = [candidate.standing for candidate in candidates]
    for row in rows:
        if now > row[8]:
            rows = _by_own_account(rows, now)
            break
    most = work.most_held
    if held and not complete:
        most = max([held.get(row[0], 0.0) for row in rows], default=0.0)
    least = tokens - most  # what even the best of them must compute
    if terms is not None or least < 0.0:
        parts = [_terms(row, tokens - held.get(row[0], 0.0), max(0.0, least), each_s, now) for row in rows]
        if terms is not None:
            terms += parts
        return [sum(each) for each in parts]
    # `_terms` and its sum, written out: here a pick over many servers spends most of its time.
    alike = not held or (complete and len(held) == len(rows) and min(held.values()) == most)
    if alike:  # nobody would compute what another holds
        return [
            (clear_at_s - now if clear_at_s > now else 0.0) + least * token_s + wait_s + each_s * requests
            for _, clear_at_s, token_s, _, _, wait_s, requests, _, _ in rows
        ]
    return [
        owed_s
        + own_s
        + (uncached - least) * token_s * (per_s * owed_s + (bound if bound < OTHERS_MOST else OTHERS_MOST))
        + wait_s
        + each_s * requests
        for slot, clear_at_s, token_s, per_s, half_bound_per_s, wait_s, requests, _, _ in rows
        for owed_s in (clear_at_s - now if clear_at_s > now else 0.0,)
        for uncached in (tokens - held[slot] if slot in held else tokens,)
        for own_s in (uncached * token_s,)
        for bound in (half_bound_per_s * own_s,)
    ]


def _terms(row: Standing, uncached: float, least: float, each_s: float, now: float) -> Terms:
    _, clear_at_s, token_s, per_s, half_bound_per_s, wait_s, requests, _, _ = row
    owed_s = max(0.0, clear_at_s - now)
    own_s = max(0.0, uncached) * token_s
    more = max(0.0, uncached - least)
    others_s = more * token_s * (per_s * owed_s + min(half_bound_per_s * own_s, OTHERS_MOST))
    return Terms(owed_s + own_s, others_s, wait_s, each_s * requests)


def _by_own_account(rows: Sequence[Standing], now: float) -> list[Standing]:
    """The same, with the pool's mean and our own count where a sample is missing or stale."""
    mean_wait_s = _mean([row[5] for row in rows if now <= row[8]])
    return [row if now <= row[8] else (*row[:5], mean_wait_s, row[7], row[7], row[8]) for row in rows]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
