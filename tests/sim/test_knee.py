"""The load test in virtual time finds the knee that queueing theory says there is."""

from __future__ import annotations

from itertools import pairwise
from math import exp, factorial, floor

import pytest

from extproc.autoscale.profile import Profile, StepRow
from extproc.sim.knee import between, knee
from extproc.sim.spec import EngineSpec

ONE_AT_A_TIME = EngineSpec(
    base_step_s=0.1,
    per_prefill_token_s=0.001,
    per_decode_seq_s=0.0,
    max_num_seqs=1,
    block_size_tokens=64,
    num_gpu_blocks=100,
    max_model_len=2048,
    enable_prefix_caching=False,
)
SERVICE_S = 0.1 + 400 * 0.001


def waits_at_most(t_s: float, per_s: float, service_s: float) -> float:
    """The part of the requests that waits no longer, of Poisson arrivals at one server that takes the same for each
    (M/D/1, Erlang)."""
    terms = (
        (per_s * (k * service_s - t_s)) ** k / factorial(k) * exp(-per_s * (k * service_s - t_s))
        for k in range(floor(t_s / service_s) + 1)
    )
    return (1.0 - per_s * service_s) * sum(terms)


def implied_knee(target_s: float) -> float:
    low, high = 0.01, 0.999 / SERVICE_S
    for _ in range(50):
        middle = (low + high) / 2
        if waits_at_most(target_s - SERVICE_S, middle, SERVICE_S) >= 0.99:
            low = middle
        else:
            high = middle
    return low


@pytest.fixture(scope="module")
def found() -> Profile:
    return knee(ONE_AT_A_TIME, between((400, 400), (1, 1)), 3.0, seed=1, requests=4000, within=0.04)


def test_one_request_at_a_time_has_the_knee_of_a_queue_with_one_server(found: Profile) -> None:
    """Of 4,000 requests that queue a 99th percentile is good for some percent of the rate: 20,000 differ by 4 % over
    six seeds."""
    assert found.knee_per_s == pytest.approx(implied_knee(3.0), rel=0.1)


def test_the_knee_is_the_highest_rate_that_met_the_target_and_the_next_did_not(found: Profile) -> None:
    met = [row.rate_per_s for row in found.steps if row.met]
    missed = [row.rate_per_s for row in found.steps if not row.met]
    assert found.knee_per_s == max(met)
    assert max(met) < min(missed) <= 1.041 * max(met)
    for row in found.steps:
        assert row.ttft_p99_s is not None
        assert row.met == (row.ttft_p99_s <= 3.0)


def test_the_table_reaches_down_to_where_thresholds_are_read_and_rises(found: Profile) -> None:
    assert min(row.rate_per_s for row in found.steps) <= 0.41 * found.knee_per_s
    for name in ("waiting", "running", "ttft_p99_s"):
        values = [getattr(row, name) for row in found.steps]
        assert all(low <= high for low, high in pairwise(values)), name
    at_knee = next(row for row in found.steps if row.rate_per_s == found.knee_per_s)
    assert at_knee.prefill_tokens_per_s == pytest.approx(400 * found.knee_per_s, rel=0.05)
    assert at_knee.running == pytest.approx(SERVICE_S * found.knee_per_s, rel=0.05), "Little's law"


def test_the_same_seed_gives_the_same_profile_and_the_file_holds_it() -> None:
    told: list[StepRow] = []
    lengths = between((100, 300), (1, 20))
    profile = knee(ONE_AT_A_TIME, lengths, 5.0, seed=2, requests=200, progress=told.append)
    assert profile == knee(ONE_AT_A_TIME, lengths, 5.0, seed=2, requests=200)
    assert profile != knee(ONE_AT_A_TIME, lengths, 5.0, seed=3, requests=200)
    assert {row.rate_per_s for row in told} == {row.rate_per_s for row in profile.steps}
    assert Profile.model_validate_json(profile.model_dump_json()) == profile
    assert profile.calibration.knee_per_s == profile.knee_per_s


def test_a_target_that_one_request_alone_misses_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"even alone, one request of a hundred takes 0\.5 s .* target is 0\.3 s"):
        knee(ONE_AT_A_TIME, between((400, 400), (1, 1)), 0.3, requests=100)


def test_a_request_that_the_engine_does_not_take_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        knee(ONE_AT_A_TIME, between((4000, 4000), (1, 1)), 3.0)
