"""What holds for any load: bounds, order, monotony, no reversal, and no value that is none."""

from __future__ import annotations

from dataclasses import fields, replace
from math import isfinite

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.autoscale.policy import Policy
from extproc.autoscale.reading import Offered, PoolReading, ServerReading, ServerState
from extproc.autoscale.recommendation import Recommendation
from extproc.autoscale.recommender import Recommender
from extproc.pool.sample import Histogram
from tests.autoscale.fleet import Run, policy, server, servers

few = settings(max_examples=40, deadline=None)
ANY = st.none() | st.floats()
HISTOGRAMS = st.none() | st.lists(st.floats(), min_size=2, max_size=2).map(
    lambda counts: Histogram((1.0, float("inf")), tuple(counts), 0.0)
)
SERVERS = st.builds(
    ServerReading,
    key=st.sampled_from("abcdef"),
    state=st.sampled_from(ServerState),
    age_s=ANY,
    waiting=ANY,
    running=ANY,
    kv_usage_ratio=ANY,
    preemptions=ANY,
    ttft=HISTOGRAMS,
)
LOOKS = st.lists(
    st.tuples(
        st.floats(0.1, 400.0),
        st.lists(SERVERS, max_size=6, unique_by=lambda each: each.key),
        st.builds(Offered, ANY, ANY, ANY, ANY, ANY),
        st.lists(st.floats(), max_size=4).map(tuple),
    ),
    min_size=1,
    max_size=25,
)
POLICIES = st.sampled_from([policy(), policy(calibration=None), policy(min_replicas=0, max_replicas=3)])


def play(
    of: Policy, looks: list[tuple[float, list[ServerReading], Offered, tuple[float, ...]]]
) -> list[Recommendation]:
    recommender, now, out = Recommender(of), 1000.0, []
    for after_s, there, offered, starts_s in looks:
        now += after_s
        out.append(recommender.look(PoolReading(now, tuple(there), True, offered, starts_s), now))
    return out


@few
@given(POLICIES, LOOKS)
def test_whatever_is_read_the_number_is_within_its_bounds_and_nothing_told_is_nan(of: Policy, looks: list) -> None:  # type: ignore[type-arg]
    for said in play(of, looks):
        assert said.desired is not None
        assert of.min_replicas <= said.desired <= of.max_replicas
        told = [getattr(said, field.name) for field in fields(said)]
        told += [value for row in said.signals for value in (row.value, row.threshold, row.age_s)]
        assert all(isfinite(value) for value in told if isinstance(value, float))
        assert "nan" not in said.reason


@few
@given(POLICIES, LOOKS, st.randoms())
def test_the_order_of_the_servers_says_nothing(of: Policy, looks: list, random) -> None:  # type: ignore[type-arg, no-untyped-def]
    shuffled = [(after_s, random.sample(there, len(there)), *rest) for after_s, there, *rest in looks]
    assert play(of, looks) == play(of, shuffled)


LOADS = st.tuples(st.floats(0.0, 60.0), st.floats(0.0, 30.0), st.floats(0.0, 40.0), st.floats(0.0, 1.0))


@few
@given(LOADS, LOADS, st.integers(1, 6))
def test_more_of_any_signal_never_asks_for_fewer(one: tuple[float, ...], other: tuple[float, ...], count: int) -> None:
    """With a load test."""
    low, high = tuple(map(min, one, other)), tuple(map(max, one, other))
    found = []
    for rate, waiting, running, kv in (low, high):
        found.append(Run().for_s(150, servers(count, waiting=waiting, running=running, kv=kv), rate).desired or 0)
    assert found[0] <= found[1]


@few
@given(LOADS, LOADS, st.integers(1, 6))
def test_nor_where_no_load_test_tells_what_a_server_can_have(
    one: tuple[float, ...], other: tuple[float, ...], count: int
) -> None:
    """But for what runs at once: while requests wait that is the only word on what a server can have, so the more run,
    the fewer servers work a queue off."""
    (*low, low_kv), (*high, high_kv) = tuple(map(min, one, other)), tuple(map(max, one, other))
    found = []
    for (rate, waiting, _), kv in ((low, low_kv), (high, high_kv)):
        there = servers(count, waiting=waiting, running=low[2], kv=kv)
        found.append(Run(policy(calibration=None)).for_s(150, there, rate).desired or 0)
    assert found[0] <= found[1]


@few
@given(st.lists(st.tuples(LOADS, st.integers(5, 40)), min_size=1, max_size=10))
def test_after_an_increase_nothing_goes_within_the_time_of_scaling_down(changes: list) -> None:  # type: ignore[type-arg]
    run, there = Run(), 3
    for (rate, waiting, running, kv), looks in changes:
        for _ in range(looks):
            there = run.look(servers(there, waiting=waiting, running=running, kv=kv), rate).desired or 0
    up_s = float("-inf")
    for before, after in zip(run.seen, run.seen[1:], strict=False):
        assert before.desired is not None
        assert after.desired is not None
        if after.desired > before.desired:
            up_s = after.at_s
        elif after.desired < before.desired:
            assert after.desired == before.desired - 1
            assert after.at_s - up_s >= 300.0


def test_missing_metrics_of_one_server_change_nothing_for_the_better() -> None:
    whole, holed = Run(), Run()
    for _ in range(200):
        whole.look(servers(4, running=1.0, kv=0.05), 2.0)
        holed.look([*servers(3, running=1.0, kv=0.05), replace(server(3), waiting=None, running=None)], 2.0)
    assert (whole.seen[-1].desired, holed.seen[-1].desired) == (3, 4)
