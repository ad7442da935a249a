"""Times to first token of a pool, added up from what its servers tell of their whole lives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from extproc.pool.first_tokens import BOUNDS_S, FirstTokenCounts
from extproc.pool.sample import Histogram, LoadSample
from extproc.telemetry.vllm_page import parse
from tests.support.fleet import address, pool

PAGES = Path(__file__).parents[1] / "golden" / "metrics"
BOUNDS = (0.1, 0.25, 0.5, inf)


def histogram(*counts: float, sum_s: float = 0.0, bounds: tuple[float, ...] = BOUNDS) -> Histogram:
    """Cumulative counts, as a page has them."""
    return Histogram(bounds, tuple(map(float, counts)), sum_s)


def buckets(counts: FirstTokenCounts) -> dict[str, float]:
    """How many there are of each bucket that is not empty, by its upper bound."""
    pairs, below = {}, 0.0
    for bound, count in counts.cumulative()[0]:
        if count > below:
            pairs[bound] = count - below
        below = count
    return pairs


def test_only_what_is_new_since_the_last_look_counts() -> None:
    counts = FirstTokenCounts()
    first, second = histogram(7, 9, 9, 10, sum_s=3.0), histogram(8, 12, 12, 14, sum_s=5.5)
    counts.add(None, first)
    assert counts.cumulative()[1] == 0
    counts.add(first, second)
    assert buckets(counts) == {"0.1": 1, "0.25": 2, "+Inf": 1}
    assert counts.sum_s == 2.5
    counts.add(second, second)
    assert counts.sum_s == 2.5


def test_servers_add_up() -> None:
    counts = FirstTokenCounts()
    for _ in range(3):
        counts.add(histogram(0, 0, 0, 0), histogram(1, 2, 2, 2, sum_s=0.3))
    assert buckets(counts) == {"0.1": 3, "0.25": 3}


def test_of_a_server_that_was_restarted_all_is_new() -> None:
    counts = FirstTokenCounts()
    counts.add(histogram(50, 60, 60, 60, sum_s=9.0), histogram(1, 2, 2, 2, sum_s=0.3))
    assert buckets(counts) == {"0.1": 1, "0.25": 1}
    assert counts.sum_s == 0.3


def test_other_buckets_than_before_are_another_process() -> None:
    counts = FirstTokenCounts()
    counts.add(histogram(5, 5, 5, 5), histogram(6, 7, bounds=(0.2, inf), sum_s=1.0))
    assert buckets(counts) == {"0.25": 6, "+Inf": 1}


def test_a_bucket_that_ends_between_two_of_ours_counts_in_the_one_above() -> None:
    counts = FirstTokenCounts()
    counts.add(histogram(0, 0, bounds=(0.3, inf)), histogram(4, 4, bounds=(0.3, inf)))
    assert buckets(counts) == {"0.5": 4}


def test_what_a_page_does_not_tell_changes_nothing() -> None:
    counts = FirstTokenCounts()
    counts.add(histogram(1, 1, 1, 1), None)
    counts.add(None, None)
    assert buckets(counts) == {}


def test_our_buckets_are_those_of_vllm() -> None:
    page = parse((PAGES / "vllm-0.32-busy.txt").read_bytes(), 0.0)
    assert page.ttft is not None
    assert page.ttft.bounds_s == (*BOUNDS_S, inf)
    counts = FirstTokenCounts()
    nothing = replace(page.ttft, counts=(0.0,) * len(page.ttft.counts), sum_s=0.0)
    counts.add(nothing, page.ttft)
    assert [count for _, count in counts.cumulative()[0]] == list(page.ttft.counts)


def test_a_pool_adds_up_what_its_samples_tell() -> None:
    made = pool(2)
    for at, (one, two) in enumerate([(1, 10), (3, 10), (4, 12)]):
        for number, count in ((1, one), (2, two)):
            told = histogram(count, count, count, count, sum_s=count / 10)
            made.observe(address(number), LoadSample(float(at), running=0.0, ttft=told))
    assert buckets(made.first_tokens) == {"0.1": 3 + 2}


COUNTS = st.lists(st.integers(0, 50), min_size=4, max_size=4).map(lambda steps: [sum(steps[: i + 1]) for i in range(4)])


@given(st.lists(COUNTS, min_size=2, max_size=8))
def test_whatever_servers_tell_no_count_falls_and_none_is_above_the_next(told: list[list[int]]) -> None:
    """Prometheus takes a fall for a restart of the service."""
    counts = FirstTokenCounts()
    before = [0.0] * (len(BOUNDS_S) + 1)
    for earlier, later in pairwise(told):
        counts.add(histogram(*earlier), histogram(*later))
        now = [count for _, count in counts.cumulative()[0]]
        assert all(low <= high for low, high in zip(before, now, strict=True))
        assert now == sorted(now)
        before = now
