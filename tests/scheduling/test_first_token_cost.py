"""The expected time to first token as a cost, and who ties with the cheapest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from extproc.decision import Pick
from extproc.endpoint import Endpoint
from extproc.pool.member import KV_FULL_WAIT_S, KV_TIGHT_RATIO, SETTLE_S, Member, kv_wait_s
from extproc.pool.prefill import ARRIVALS_S
from extproc.pool.reservation import Reservation
from extproc.pool.sample import LoadSample
from extproc.scheduling.costs import (
    LOAD_OF_BEGINNING_S,
    LOAD_OF_SESSION_S,
    LOAD_OF_TURN_S,
    LOAD_S,
    OTHERS_MOST,
    Terms,
    first_token_s,
)
from extproc.scheduling.pickers import TIE_RATIO, TIE_S, cheapest_s
from extproc.scheduling.work import UNKNOWN, Work
from tests.support.fleet import STALE_AFTER_S, address, sample

NOW = 1.0
STALE = NOW - STALE_AFTER_S - 1


def servers(*samples: LoadSample | None, weights: dict[int, float] | None = None) -> list[Member]:
    made = []
    for number, each in enumerate(samples):
        member = Member(
            Endpoint(address(number + 1), weight=(weights or {}).get(number, 1.0)), stale_after_s=STALE_AFTER_S
        )
        member.introduce(number, None)
        if each is not None:
            member.observe(each)
        made.append(member)
    return made


def busy(member: Member, requests: int, tokens: float = 0.0, held_ratio: float = 0.0) -> None:
    """So many requests of so many uncached tokens each are sent there now; so much of their prompts is held there."""
    for _ in range(requests):
        Reservation(Pick("id", member.address, (), ""), member, "p", "", NOW, tokens, held_ratio)


def test_it_is_tokens_owed_and_uncached_over_the_rate() -> None:
    one, other = servers(sample(NOW), sample(NOW))
    one.introduce(0, 1000.0)
    other.introduce(1, 4000.0)
    busy(other, 1, 6000.0)
    costs = first_token_s([one, other], Work(5000.0, {0: 3000.0, 1: 3000.0}), NOW)
    assert costs == [pytest.approx(2.0), pytest.approx(2.0 + LOAD_S)]


def test_computing_again_what_another_holds_costs_those_who_come_next() -> None:
    holder, other = servers(sample(NOW), sample(NOW))
    holder.introduce(0, 1000.0)
    other.introduce(1, 1000.0)
    busy(other, 10, 100.0)  # 10 requests lately: 2 a second, and 1 s of work
    work = Work(5000.0, {0: 4000.0})
    terms: list[Terms] = []
    costs = first_token_s([holder, other], work, NOW, terms=terms)
    assert costs[0] == pytest.approx(1.0)
    again_s, before_s, own_s = 4.0, 1.0, 5.0
    assert terms[1].others_s == pytest.approx(10 / ARRIVALS_S * again_s * before_s)
    assert costs[1] == pytest.approx(before_s + own_s + terms[1].others_s + 10 * LOAD_S)
    assert first_token_s([other], work, NOW) == [pytest.approx(before_s + own_s + 10 * LOAD_S)], (
        "what no candidate holds must be computed anyway"
    )
    other.observe(sample(NOW + 20 * ARRIVALS_S))
    assert first_token_s([holder, other], work, NOW + 20 * ARRIVALS_S)[1] == pytest.approx(own_s + 10 * LOAD_S), (
        "nobody is sent there any more"
    )


def test_an_idle_server_makes_only_those_wait_who_come_for_what_it_holds() -> None:
    holder, free, bound, hot = servers(*[sample(NOW)] * 4)
    for number, each in enumerate((holder, free, bound, hot)):
        each.introduce(number, 1000.0)
    busy(free, 1)
    busy(bound, 1, held_ratio=0.5)
    busy(hot, 20, held_ratio=1.0)
    terms: list[Terms] = []
    first_token_s([holder, free, bound, hot], Work(5000.0, {0: 4000.0}), NOW, terms=terms)
    again_s, own_s = 4.0, 5.0
    assert [each.others_s for each in terms] == [
        0.0,
        0.0,
        pytest.approx(again_s * (0.5 / ARRIVALS_S) * own_s / 2),
        pytest.approx(again_s * OTHERS_MOST),
    ]


def test_holding_more_than_the_prompt_saves_no_more_than_the_prompt() -> None:
    assert first_token_s(servers(sample(NOW)), Work(1000.0, {0: 5000.0}), NOW) == [0.0]


def test_a_prompt_that_is_held_meets_load_as_it_is_and_a_beginning_weighs_it_more() -> None:
    [server] = servers(sample(NOW))
    busy(server, 10)
    own_s = 1000 / server.prefill.rate
    held = first_token_s([server], Work(1000.0, {0: 500.0}, in_session=True), NOW)
    begun = first_token_s([server], Work(1000.0, {0: 499.0}, in_session=True), NOW)
    alone = first_token_s([server], Work(1000.0, {}, in_session=False), NOW)
    assert held == [pytest.approx(own_s / 2 + 10 * LOAD_S)]
    assert begun == [pytest.approx(501 / server.prefill.rate + 10 * LOAD_OF_SESSION_S)]
    assert alone == [pytest.approx(own_s + 10 * LOAD_OF_BEGINNING_S)]


def test_the_first_turn_of_a_conversation_meets_load_as_all_its_turns_will() -> None:
    [server] = servers(sample(NOW))
    busy(server, 10)
    own_s = 200 / server.prefill.rate
    first = first_token_s([server], Work(1000.0, {0: 800.0}, in_session=True, turns_to_come=5.0), NOW)
    later = first_token_s([server], Work(1000.0, {0: 800.0}, in_session=True), NOW)
    assert first == [pytest.approx(own_s + 10 * (LOAD_S + 5 * LOAD_OF_TURN_S))]
    assert later == [pytest.approx(own_s + 10 * LOAD_S)]


def test_an_unknown_prompt_is_no_beginning() -> None:
    assert not UNKNOWN.begins_something
    [server] = servers(sample(NOW))
    busy(server, 1)
    assert first_token_s([server], UNKNOWN, NOW) == [pytest.approx(LOAD_S)]


def test_load_counts_by_weight() -> None:
    one, two = servers(sample(NOW), sample(NOW), weights={1: 2.0})
    busy(one, 4)
    busy(two, 8)
    assert len(set(first_token_s([one, two], UNKNOWN, NOW))) == 1


def test_requests_of_others_count_while_the_sample_is_fresh() -> None:
    fresh, stale = servers(sample(NOW, running=30.0, waiting=2.0), sample(STALE, running=30.0, waiting=2.0))
    assert first_token_s([fresh, stale], UNKNOWN, NOW) == [pytest.approx(32 * LOAD_S), 0.0]


def test_what_the_sample_has_seen_of_ours_is_not_counted_twice() -> None:
    """case e02"""
    [server] = servers(sample(NOW))
    busy(server, 8)
    server.observe(sample(NOW + SETTLE_S, running=8.0))
    assert first_token_s([server], UNKNOWN, NOW + SETTLE_S) == [pytest.approx(8 * LOAD_S)]


def test_an_unknown_wait_for_blocks_is_the_mean_of_the_known_ones_not_none() -> None:
    full, idle, unknown = servers(sample(NOW, kv=1.0), sample(NOW, kv=0.0), None)
    assert first_token_s([full, idle, unknown], UNKNOWN, NOW) == [KV_FULL_WAIT_S, 0.0, KV_FULL_WAIT_S / 2]


def test_nothing_known_of_anybody_is_no_obstacle() -> None:
    """case d10"""
    assert first_token_s(servers(None, None), Work(800.0), NOW) == [0.1, 0.1]


@given(st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None)
def test_the_wait_for_blocks_grows_with_usage(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= kv_wait_s(low) <= kv_wait_s(high) <= KV_FULL_WAIT_S * (1 + 1e-9)
    assert kv_wait_s(min(low, KV_TIGHT_RATIO)) == 0 == kv_wait_s(None)


AMOUNT = st.integers(0, 40).map(float)
SAMPLE = st.builds(
    lambda at_s, waiting, running, kv: sample(at_s, waiting=waiting, running=running, kv=kv),
    st.sampled_from([NOW, STALE]),
    st.one_of(st.none(), AMOUNT),
    st.one_of(st.none(), AMOUNT),
    st.one_of(st.none(), st.floats(0, 1)),
)
SERVERS = st.lists(
    st.tuples(
        st.one_of(st.none(), SAMPLE),
        st.integers(0, 5),
        st.sampled_from([0.0, 100.0, 5000.0]),
        st.sampled_from([0.0, 0.4, 1.0]),
    ),
    min_size=2,
    max_size=5,
)
WORK = st.builds(
    Work,
    st.sampled_from([0.0, 100.0, 6000.0]),
    st.dictionaries(st.integers(0, 4), st.sampled_from([64.0, 5000.0])),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 20.0]),
)


def by_the_book(candidates: Sequence[Member], work: Work, now: float) -> list[float]:
    """The formula as docs/decisions/cost-in-seconds.md has it, server by server, from what the members say."""
    held = [work.held.get(each.slot, 0.0) for each in candidates]
    uncached = [max(0.0, work.prompt_tokens - tokens) for tokens in held]
    fresh = [each for each in candidates if each.fresh_sample(now) is not None]
    mean_wait_s = sum(kv_wait_s(each.kv_usage_ratio) for each in fresh) / len(fresh) if fresh else 0.0
    each_s = LOAD_S + LOAD_OF_TURN_S * work.turns_to_come
    if 2 * max(work.held.values(), default=0.0) < work.prompt_tokens:
        each_s = max(each_s, LOAD_OF_SESSION_S if work.in_session else LOAD_OF_BEGINNING_S)
    costs = []
    for each, own in zip(candidates, uncached, strict=True):
        rate, owed = each.prefill.rate, each.prefill.owed(now)
        bound = min(each.prefill.bound_per_s * own / rate / 2, OTHERS_MOST)
        others_s = (own - min(uncached)) / rate * (each.prefill.requests_per_s * owed / rate + bound)
        load, wait_s = each.in_flight / each.endpoint.weight, mean_wait_s
        if each in fresh:
            load = max(load, (each.reported + each.unseen) / each.endpoint.weight)
            wait_s = kv_wait_s(each.kv_usage_ratio)
        costs.append((owed + own) / rate + others_s + wait_s + each_s * load)
    return costs


def order_by_the_book(costs: Sequence[float], candidates: Sequence[Member], count: int, rng: Random) -> list[int]:
    limit = min(costs) + max(TIE_S, TIE_RATIO * min(costs))
    ties = sorted((candidates[i].load, rng.random(), i) for i, cost in enumerate(costs) if cost <= limit)
    rest = sorted((cost, i) for i, cost in enumerate(costs) if cost > limit)
    return [i for *_, i in (*ties, *rest)][:count]


@given(SERVERS, WORK, st.integers(1, 5), st.integers(0, 3))
@settings(deadline=None, max_examples=300)
def test_the_quick_ways_say_what_the_formula_says_to_the_last_bit_and_draw_the_same_lots(
    state: list[tuple[LoadSample | None, int, float, float]], work: Work, count: int, seed: int
) -> None:
    fleet = servers(*(each for each, *_ in state))
    for number, (member, (_, *sent)) in enumerate(zip(fleet, state, strict=True)):
        member.introduce(number, 1000.0 * (number + 1))
        busy(member, *sent)
        member.restand()
    terms: list[Terms] = []
    explained = first_token_s(fleet, work, NOW, terms=terms)
    costs = first_token_s(fleet, work, NOW)
    assert costs == explained == [sum(each) for each in terms]
    assert costs == pytest.approx(by_the_book(fleet, work, NOW), rel=1e-12, abs=1e-15)
    if set(work.held) <= {member.slot for member in fleet}:
        assert first_token_s(fleet, work, NOW, complete=True) == costs
    lots = Random(seed)
    assert cheapest_s(costs, fleet, count, lots) == order_by_the_book(costs, fleet, count, other_lots := Random(seed))
    ties = sum(cost <= min(costs) + max(TIE_S, TIE_RATIO * min(costs)) for cost in costs)
    assert ties == 1 or lots.random() == other_lots.random(), "as many lots were drawn"


@given(SERVERS, WORK, st.data())
@settings(deadline=None)
def test_more_load_never_makes_a_server_more_attractive(
    state: list[tuple[LoadSample | None, int, float, float]], work: Work, data: st.DataObject
) -> None:
    """A pick, more waiting or running requests, a fuller cache: it is picked by no draw that did not pick it before"""

    def build() -> list[Member]:
        made = servers(*(each for each, *_ in state))
        for member, (_, *sent) in zip(made, state, strict=True):
            busy(member, *sent)
        return made

    def first(of: list[Member], seed: int) -> tuple[int, list[float]]:
        costs = first_token_s(of, work, NOW)
        return cheapest_s(costs, of, 1, Random(seed), key)[0], costs

    which = data.draw(st.integers(0, len(state) - 1))
    seed = data.draw(st.integers(0, 3))
    key = data.draw(st.none() | st.integers(0, 2**64 - 1))
    before, costs_before = first(build(), seed)
    old = state[which][0]
    more = data.draw(st.sampled_from(["pick", "waiting", "running", "kv"]))
    if more != "pick" and old is not None:
        told = {"waiting": old.waiting, "running": old.running, "kv": old.kv_usage_ratio}
        if told[more] is not None:
            told[more] = min(1.0, told[more] + 0.1) if more == "kv" else told[more] + 3  # type: ignore[operator]
        state[which] = (sample(old.taken_at_s, **told), *state[which][1:])
    loaded = build()
    if more == "pick":
        busy(loaded[which], 1, 500.0)
    after, costs_after = first(loaded, seed)
    assert costs_after[which] >= costs_before[which] - 1e-12
    if before != which:
        ties = sum(cost <= min(costs_after) + max(TIE_S, TIE_RATIO * min(costs_after)) for cost in costs_after)
        assert after != which or ties > 1


def loaded(requests: Sequence[int]) -> list[Member]:
    made = servers(*[None] * len(requests))
    for member, count in zip(made, requests, strict=True):
        busy(member, count)
    return made


COSTS = st.lists(st.floats(0, 10), max_size=30)


@given(COSTS, st.integers(1, 8), st.integers(0, 5), st.data())
@settings(deadline=None)
def test_the_first_is_the_least_loaded_of_those_that_tie_and_nobody_comes_twice(
    costs: list[float], count: int, seed: int, data: st.DataObject
) -> None:
    loads = data.draw(st.lists(st.integers(0, 3), min_size=len(costs), max_size=len(costs)))
    candidates = loaded(loads)
    order = cheapest_s(costs, candidates, count, Random(seed))
    assert order == cheapest_s(costs, candidates, count, Random(seed)), "the same seed makes the same choice"
    assert len(order) == len(set(order)) == min(count, len(costs))
    if not costs:
        return
    limit = min(costs) + max(TIE_S, TIE_RATIO * min(costs))
    tied = [i for i, cost in enumerate(costs) if cost <= limit]
    head = order[: len(tied)]
    assert set(head) <= set(tied)
    assert [loads[i] for i in head] == sorted(loads[i] for i in tied)[: len(head)]
    rest = order[len(tied) :]
    assert [costs[i] for i in rest] == sorted(cost for cost in costs if cost > limit)[: len(rest)]


def test_of_equals_none_is_favoured() -> None:
    """4,000 fair draws among 4 lie within 5 standard deviations (27 each) of 1,000; the seed fixes them anyway"""
    rng = Random(7)
    idle = loaded([0] * 5)
    first = Counter(cheapest_s([9.0, 0.1, 0.1, 0.1, 0.1], idle, 2, rng)[0] for _ in range(4_000))
    assert set(first) == {1, 2, 3, 4}
    assert all(abs(times - 1_000) < 137 for times in first.values())


def test_a_key_orders_equals_alike_wherever_they_stand_and_spreads_over_them() -> None:
    idle = loaded([0] * 8)
    back = idle[::-1]
    rng = Random(1)
    first: Counter[int] = Counter()
    for number in range(4_000):
        key = xxh3_64_intdigest(str(number).encode())
        order = cheapest_s([0.0] * 8, idle, 3, rng, key)
        assert [7 - i for i in cheapest_s([0.0] * 8, back, 3, rng, key)] == order
        first[order[0]] += 1
    assert len(first) == 8
    assert all(abs(times - 500) < 105 for times in first.values()), "within 5 standard deviations of a fair draw"


def test_a_server_more_takes_its_share_of_the_keys_and_moves_no_others() -> None:
    few, more = loaded([0] * 7), loaded([0] * 8)
    moved = 0
    for number in range(2_000):
        key = xxh3_64_intdigest(str(number).encode())
        before = cheapest_s([0.0] * 7, few, 1, Random(1), key)[0]
        after = cheapest_s([0.0] * 8, more, 1, Random(1), key)[0]
        moved += after != before
        assert after in (before, 7)
    assert abs(moved - 250) < 75, "an eighth of them, within 5 standard deviations"
