"""Workloads are what their descriptions say, and the same for everyone who draws them."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from random import Random

import pytest

from extproc.sim.spec import A100_8B
from extproc.sim.workloads import WORKLOADS, Arrival, Fleet, block_hashes, draw

FLEET = Fleet(servers=8, prefill_tokens_per_s=9000)
NAMES = sorted(WORKLOADS)


def test_the_ten_workloads_that_need_no_churn_are_there() -> None:
    assert NAMES == ["W1", "W1h", "W1z", "W2", "W3", "W4", "W5", "W6", "W8", "W9"]


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_arrivals_and_another_seed_others(name: str) -> None:
    assert draw(name, 1, FLEET, 30) == draw(name, 1, FLEET, 30) != draw(name, 2, FLEET, 30)


@pytest.mark.parametrize("name", NAMES)
def test_arrivals_come_in_order_and_fit_the_model(name: str) -> None:
    arrivals = draw(name, 1, FLEET, 30)
    times = [arrival.at_s for arrival in arrivals]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] < 30.05  # the last siblings of a burst come up to 50 ms after it
    longest = max(arrival.prompt_tokens + arrival.answer_tokens for arrival in arrivals)
    assert longest <= A100_8B.max_model_len - 100  # room for the heads of messages


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_a_text_of_its_own(name: str) -> None:
    answers = [arrival.answer for arrival in draw(name, 1, FLEET, 30)]
    assert len(set(answers)) == len(answers)


def uncached_tokens(arrivals: list[Arrival]) -> int:
    """What one server with endless cache would compute: of each text what no earlier prompt had at that place."""
    seen: set[int] = set()
    tokens = 0
    for arrival in arrivals:
        hashes = block_hashes(arrival.spans, 16)
        tokens += 16 * sum(1 for each in hashes if each not in seen)
        seen.update(hashes)
    return tokens


@pytest.mark.parametrize(
    ("name", "part"),
    [("W1", 0.9), ("W1z", 0.9), ("W1h", 4.5), ("W2", 0.7), ("W4", 0.7), ("W5", 0.75), ("W6", 0.6), ("W9", 1.0)],
)
def test_prompts_arrive_at_the_part_of_the_uncached_capacity_that_is_said(name: str, part: float) -> None:
    """Counted after the first conversations have ended; the bound is four times the spread of such counts."""
    start_s, end_s = 200, 800
    fleet = Fleet(servers=1, prefill_tokens_per_s=FLEET.uncached_capacity)
    arrivals = [arrival for arrival in draw(name, 3, fleet, end_s) if arrival.at_s >= start_s]
    tokens_per_s = sum(arrival.prompt_tokens for arrival in arrivals) / (end_s - start_s)
    assert tokens_per_s / FLEET.uncached_capacity == pytest.approx(part, rel=0.25)


def test_one_system_prompt_loads_the_fleet_by_the_part_that_is_not_shared() -> None:
    arrivals = draw("W3", 1, FLEET, 60)
    assert uncached_tokens(arrivals) / 60 / FLEET.uncached_capacity == pytest.approx(0.7, rel=0.1)
    assert len({arrival.spans[0] for arrival in arrivals}) == 1


def test_documents_are_asked_evenly_in_w1_and_unevenly_in_w1z() -> None:
    counts = {
        name: Counter(arrival.spans[0] for arrival in draw(name, 1, FLEET, 300)).most_common() for name in ("W1", "W1z")
    }
    assert [len(each) for each in counts.values()] == [40, 40]
    first_to_last = {name: each[0][1] / each[-1][1] for name, each in counts.items()}
    assert first_to_last["W1"] < 3
    assert first_to_last["W1z"] > 10


@pytest.mark.parametrize("name", ["W2", "W9"])
def test_each_turn_repeats_the_last_with_its_answer(name: str) -> None:
    sessions: dict[str | None, list[Arrival]] = defaultdict(list)
    for arrival in draw(name, 1, FLEET, 120):
        sessions[arrival.session].append(arrival)
    assert None not in sessions
    turns = 0
    for arrivals in sessions.values():
        for before, after in itertools.pairwise(arrivals):
            grown = (*before.spans, (before.answer, before.answer_tokens))
            assert after.spans[: len(grown)] == grown
            turns += 1
    assert turns > 100


@pytest.mark.parametrize("name", ["W2", "W9"])
def test_a_run_begins_with_as_many_sessions_as_it_goes_on_with(name: str) -> None:
    fleet = Fleet(servers=80, prefill_tokens_per_s=9000)  # large counts vary little
    counts = Counter(int(arrival.at_s // 30) for arrival in draw(name, 1, fleet, 300))
    assert max(counts.values()) / min(counts.values()) < 1.25


@pytest.mark.parametrize("name", ["W4", "W5", "W8"])
def test_nothing_is_shared_where_nothing_should_be(name: str) -> None:
    arrivals = draw(name, 1, FLEET, 60)
    texts = [text for arrival in arrivals for text, _ in arrival.spans]
    assert len(set(texts)) == len(texts)


def test_bursts_are_sixteen_siblings_of_a_new_prefix_within_50_ms() -> None:
    bursts: dict[tuple[int, int], list[float]] = defaultdict(list)
    for arrival in draw("W6", 1, FLEET, 60):
        bursts[arrival.spans[0]].append(arrival.at_s)
    assert len(bursts) > 10
    assert all(len(times) == 16 and max(times) - min(times) <= 0.05 for times in bursts.values())


def test_block_hashes_are_equal_exactly_up_to_where_texts_differ() -> None:
    rng = Random(0)
    for _ in range(200):
        shared = rng.randint(1, 300)
        one = block_hashes(((1, shared), (2, 100)), 16)
        other = block_hashes(((1, shared), (3, 100)), 16)
        same = next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
        assert same == shared // 16
        assert len(one) == (shared + 100) // 16


def test_a_text_that_goes_on_and_a_new_text_are_different_blocks() -> None:
    assert block_hashes(((1, 16), (1, 16)), 16) != block_hashes(((1, 32),), 16)


def test_a_fleet_is_as_fast_as_its_engines_compute_a_prompt_of_4000_tokens() -> None:
    """10 ms + 1 ms + 4,000 x (103 + 0.5 + 6.8) us = 452 ms."""
    assert Fleet.of(A100_8B, 8).uncached_capacity == pytest.approx(8 * 4000 / 0.452, rel=0.002)
