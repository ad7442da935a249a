"""What a server owes us: prompts computed in turn, drained between samples, corrected by them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.pool.prefill import BASE_S, DEFAULT_RATE, MAX_RATE, MIN_RATE, Prefill, PrefillQueue
from extproc.pool.sample import Histogram, LoadSample


def page(
    at_s: float,
    *,
    first_tokens: float | None = None,
    sum_s: float = 0.0,
    running: float | None = 1.0,
    waiting: float | None = 0.0,
    prompt_tokens: float | None = None,
) -> LoadSample:
    ttft = None if first_tokens is None else Histogram((float("inf"),), (first_tokens,), sum_s)
    return LoadSample(at_s, running=running, waiting=waiting, ttft=ttft, prompt_tokens=prompt_tokens)


def test_what_is_sent_is_owed_and_drains_at_the_rate() -> None:
    queue = PrefillQueue(1000.0)
    queue.add(2000.0, 10.0)
    assert queue.owed(10.0) == 2000.0
    assert queue.owed(11.5) == 500.0
    queue.add(300.0, 11.5)
    assert queue.owed(11.5) == 800.0
    assert queue.owed(99.0) == 0.0


def test_an_idle_time_is_not_credited_to_what_comes_after_it() -> None:
    queue = PrefillQueue(1000.0)
    queue.add(100.0, 0.0)
    queue.add(2000.0, 50.0)
    assert queue.owed(51.0) == 1000.0


def test_first_tokens_release_the_oldest() -> None:
    queue = PrefillQueue(100.0)
    queue.observe(page(0.0, first_tokens=5))
    for tokens in (1000.0, 2000.0, 4000.0):
        queue.add(tokens, 0.5)
    queue.observe(page(1.0, first_tokens=7, sum_s=30.0))
    assert queue.owed(1.0) == 4000.0, "though 50 tokens only should be done"


def test_what_waits_is_owed_for_certain_however_much_should_be_done() -> None:
    queue = PrefillQueue(1000.0)
    queue.observe(page(0.0, first_tokens=0))
    for tokens in (1000.0, 2000.0, 4000.0):
        queue.add(tokens, 0.0)
    queue.observe(page(60.0, first_tokens=0, waiting=2))
    assert queue.owed(60.0) == 6000.0
    queue.observe(page(61.0, first_tokens=2, sum_s=120.0, waiting=0))
    assert queue.owed(120.0) == 0.0


def test_an_idle_server_owes_nothing_but_what_has_just_been_sent() -> None:
    queue = PrefillQueue(100.0)
    queue.add(5000.0, 0.0)
    queue.add(700.0, 2.0)
    queue.observe(page(2.0 + BASE_S / 2, running=0))
    assert queue.owed(2.0 + BASE_S / 2) == 700.0


@pytest.mark.parametrize("first_tokens", [None, 0.0])
def test_a_request_that_is_over_is_not_owed(first_tokens: float | None) -> None:
    queue = PrefillQueue(1000.0)
    queue.observe(page(0.0, first_tokens=first_tokens))
    one, other = queue.add(3000.0, 0.0), queue.add(500.0, 0.0)
    queue.end(one, 0.0)
    queue.end(one, 0.0)
    assert queue.owed(0.0) == 500.0
    queue.end(other, 0.0)
    assert queue.owed(0.0) == 0.0


def test_a_request_computed_and_then_over_is_released_once() -> None:
    queue = PrefillQueue(100.0)
    queue.observe(page(0.0, first_tokens=0))
    one = queue.add(3000.0, 0.0)
    queue.add(1000.0, 0.0)
    queue.observe(page(1.0, first_tokens=1, sum_s=1.0))
    queue.end(one, 1.0)
    assert queue.owed(1.0) == 1000.0


def test_aborted_requests_do_not_pile_up_on_a_server_that_is_never_idle() -> None:
    """The histogram never counts them: each would shift what is released by one for good, and take memory"""
    queue = PrefillQueue()
    queue.observe(page(0.0, first_tokens=0))
    last: Prefill | None = None
    for i in range(1, 2001):
        aborted, served = queue.add(50.0, float(i)), queue.add(100.0, float(i))
        queue.end(aborted, i + 0.1)
        if last is not None:
            queue.end(last, i + 0.2)
        last = served
        queue.observe(page(i + 0.5, first_tokens=float(i), sum_s=i * 0.03))
        assert len(queue._queue) <= 2
    assert queue.owed(2001.0) == 0.0


@pytest.mark.parametrize("sampled", [True, False])
def test_a_server_whose_pages_stop_coming_or_tell_of_no_first_tokens_costs_no_memory(sampled: bool) -> None:
    """with one request open all the time, so that the queue never runs empty"""
    queue = PrefillQueue()
    if sampled:
        queue.observe(page(0.0, first_tokens=0))
    queue.add(10.0, 0.0)
    for i in range(20_000):
        queue.end(queue.add(10.0, i / 100), i / 100 + 0.005)
    assert len(queue._queue) < 2000


def test_counters_that_begin_anew_release_nothing_and_count_on_from_there() -> None:
    """case e13"""
    queue = PrefillQueue(100.0)
    queue.observe(page(0.0, first_tokens=500, sum_s=40.0))
    queue.add(1000.0, 0.5)
    queue.add(3000.0, 0.5)
    queue.observe(page(0.5, first_tokens=2, sum_s=0.1))
    assert queue.owed(0.5) == 4000.0
    assert queue.rate == 100.0
    queue.observe(page(0.6, first_tokens=3, sum_s=0.2))
    assert queue.owed(0.6) == 3000.0


def test_what_waits_and_is_not_ours_is_owed_at_the_mean_length_of_that_servers_prompts() -> None:
    queue = PrefillQueue(1000.0)
    queue.observe(page(1.0, first_tokens=10, prompt_tokens=20_000, waiting=3))
    assert queue.owed(1.0) == 6000.0


def test_ours_that_wait_are_not_counted_a_second_time_as_others() -> None:
    queue = PrefillQueue(1000.0)
    for _ in range(3):
        queue.add(500.0, 0.0)
    queue.observe(page(1.0, first_tokens=10, prompt_tokens=20_000, waiting=4))
    assert queue.owed(1.0) == 3 * 500.0 + 2000.0


def test_what_is_not_ours_drains_too_when_no_sample_comes_any_more() -> None:
    queue = PrefillQueue(1000.0)
    queue.observe(page(1.0, first_tokens=10, prompt_tokens=20_000, waiting=3))
    assert queue.owed(3.0) == 4000.0
    queue.add(500.0, 5.0)
    assert queue.owed(5.0) == 2500.0
    assert queue.owed(8.0) == 0.0


def test_a_page_without_a_histogram_corrects_by_what_waits_and_by_idleness_alone() -> None:
    queue = PrefillQueue(1000.0)
    queue.add(4000.0, 0.0)
    queue.observe(page(1.0))
    assert queue.owed(1.0) == 3000.0
    queue.observe(page(2.0, waiting=1))
    assert queue.owed(2.0) == 4000.0
    queue.observe(page(3.0, running=0))
    assert queue.owed(3.0) == 0.0


def test_a_page_that_tells_nothing_changes_nothing() -> None:
    queue = PrefillQueue(1000.0)
    queue.add(4000.0, 0.0)
    queue.observe(LoadSample(1.0))
    assert queue.owed(1.0) == 3000.0


AMOUNTS = st.one_of(st.none(), st.floats(0, 1e15), st.integers(0, 10).map(float))
TIMES = st.floats(0, 100)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TIMES, st.floats(0, 1e9)),
        st.tuples(st.just("end"), TIMES, st.integers(0, 1000)),
        st.tuples(st.just("observe"), TIMES, st.tuples(AMOUNTS, st.floats(0, 1e15), AMOUNTS, AMOUNTS, AMOUNTS)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(deadline=None)
def test_no_input_makes_it_negative_or_no_number_and_it_ends_at_zero(steps: list[tuple[str, float, object]]) -> None:
    """Samples of any age, histograms that go up and down, amounts of any size"""
    queue, prefills = PrefillQueue(), []
    for what, at_s, given_ in steps:
        if what == "add":
            prefills.append(queue.add(float(given_), at_s))  # type: ignore[arg-type]
        elif what == "end" and prefills:
            queue.end(prefills[int(given_) % len(prefills)], at_s)  # type: ignore[call-overload]
        elif what == "observe":
            count, sum_s, running, waiting, prompt_tokens = given_  # type: ignore[misc]
            queue.observe(
                page(
                    at_s,
                    first_tokens=count,
                    sum_s=sum_s,
                    running=running,
                    waiting=waiting,
                    prompt_tokens=prompt_tokens,
                )
            )
        assert 0 <= queue.owed(at_s) < math.inf
        assert MIN_RATE <= queue.rate <= MAX_RATE
    for prefill in prefills:
        queue.end(prefill, 200.0)
    queue.observe(page(201.0, running=0))
    assert queue.owed(201.0) == 0
    assert len(queue._queue) == 0
    assert queue._open_tokens == 0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_however_requests_end_nothing_is_owed_in_the_end(sizes: list[float], random: object) -> None:
    queue = PrefillQueue()
    queue.observe(page(0.0, first_tokens=0))
    prefills = [queue.add(size, 0.0) for size in sizes]
    random.shuffle(prefills)  # type: ignore[attr-defined]
    for prefill in prefills:
        queue.end(prefill, 0.0)
    assert queue.owed(0.0) == 0.0


def test_the_prior_is_what_it_is_told() -> None:
    assert PrefillQueue().rate == DEFAULT_RATE
    queue = PrefillQueue()
    queue.expect(500.0)
    queue.add(1000.0, 0.0)
    assert queue.owed(1.0) == 500.0
