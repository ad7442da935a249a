"""The rule: fewest waiting, then lowest KV usage, then fewest in flight."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.pool.member import Member
from extproc.pool.sample import LoadSample
from extproc.scheduling.costs import least_loaded
from tests.support.fleet import STALE_AFTER_S, member, route, router, sample, sampled_router
from tests.support.fleet import endpoint as endpoint_of
from tests.support.fleet import pool as pool_of

NOW = 1.0


def servers(*samples: LoadSample | None) -> list[Member]:
    made = []
    for number, each in enumerate(samples):
        server = Member(endpoint_of(number + 1), stale_after_s=STALE_AFTER_S)
        if each is not None:
            server.observe(each)
        made.append(server)
    return made


def order(*samples: LoadSample | None) -> list[int]:
    """The servers from the most to the least attractive."""
    costs = least_loaded(servers(*samples), NOW)
    return sorted(range(len(costs)), key=costs.__getitem__)


def test_fewest_waiting_comes_before_everything_else() -> None:
    """R4: a waiting request means that the server has taken all it can"""
    assert order(sample(NOW, waiting=2, kv=0.0), sample(NOW, waiting=0, kv=0.99), sample(NOW, waiting=1, kv=0.5)) == [
        1,
        2,
        0,
    ]


def test_at_equal_waiting_the_lowest_kv_usage_wins() -> None:
    """R4"""
    assert order(sample(NOW, kv=0.5), sample(NOW, kv=0.1), sample(NOW, kv=0.3)) == [1, 2, 0]


def test_running_requests_are_not_asked() -> None:
    """Running is no sign of trouble; KV usage tells what they take."""
    assert order(sample(NOW, running=50, kv=0.1), sample(NOW, running=1, kv=0.2)) == [0, 1]


def test_at_equal_load_the_fewest_of_our_own_in_flight_wins() -> None:
    fleet = router(pool_of(2))
    for number in (1, 2):
        fleet.observe("vllm", member(fleet, number).address, sample(0.0), 0.0)
    route(fleet, 0.0, subset=["10.0.0.1"])
    for number in (1, 2):
        fleet.observe("vllm", member(fleet, number).address, sample(5.0), 5.0)
    assert [each.unseen for each in fleet.pools[0].members] == [0, 0]
    assert str(route(fleet, 5.0).address) == "10.0.0.2:8000"


def test_an_unknown_load_is_the_mean_of_the_known_ones_not_zero() -> None:
    """case d07, and a stale or absent sample is not zero load"""
    assert order(sample(NOW, waiting=2), None, sample(NOW, waiting=8)) == [0, 1, 2]


def test_a_server_of_unknown_load_is_never_better_than_one_known_to_be_idle() -> None:
    """case d07"""
    assert order(None, sample(NOW, waiting=0, kv=0.9)) == [1, 0]
    assert order(sample(NOW, waiting=None, running=None, kv=None), sample(NOW)) == [1, 0]


def test_where_only_the_kv_usage_is_missing_the_mean_stands_in() -> None:
    """case d01"""
    assert order(sample(NOW, kv=0.2), sample(NOW, kv=None), sample(NOW, kv=0.8)) == [0, 1, 2]


def test_a_server_that_tells_only_its_kv_usage_is_compared_by_it() -> None:
    assert order(sample(NOW, waiting=None, kv=0.7), sample(NOW, waiting=None, kv=0.3)) == [1, 0]


def test_a_stale_sample_is_not_believed() -> None:
    """case d10: all our own requests in flight count there instead"""
    fleet = sampled_router(2)
    late = STALE_AFTER_S + 1
    fleet.observe("vllm", member(fleet, 1).address, sample(0.0, waiting=100), 0.0)
    for _ in range(2):
        route(fleet, 0.0, subset=["10.0.0.2"])
    costs = least_loaded(fleet.pools[0].members, late)
    assert [cost[0] for cost in costs] == [0, 2]


COUNTS = st.one_of(st.none(), st.integers(0, 50).map(float))
SAMPLES = st.one_of(
    st.none(),
    st.builds(
        lambda waiting, kv: sample(NOW, waiting=waiting, kv=kv),
        COUNTS,
        st.one_of(st.none(), st.floats(0, 1)),
    ),
)


@given(st.lists(SAMPLES, min_size=2, max_size=6), st.data())
def test_more_load_never_makes_a_server_more_attractive(samples: list[LoadSample | None], data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(samples) - 1))
    fleet = servers(*samples)
    before = least_loaded(fleet, NOW)
    old = samples[which]
    more = data.draw(st.sampled_from(["waiting", "kv", "pick"]))
    if more == "pick" or old is None or (old.waiting if more == "waiting" else old.kv_usage_ratio) is None:
        elsewhere = router(pool_of(1))
        route(elsewhere, NOW)
        fleet[which].charge(elsewhere.ledger.recent[0])
    elif more == "waiting":
        fleet[which].observe(sample(NOW, waiting=(old.waiting or 0) + 1, kv=old.kv_usage_ratio))
    else:
        fleet[which].observe(sample(NOW, waiting=old.waiting, kv=min(1.0, (old.kv_usage_ratio or 0) + 0.1)))
    after = least_loaded(fleet, NOW)
    for other in range(len(samples)):
        if before[other] < before[which]:
            assert after[other] < after[which]
        elif before[other] == before[which]:
            assert after[other] <= after[which] or other == which


@given(st.lists(SAMPLES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(samples: list[LoadSample | None], shuffle: object) -> None:
    fleet = servers(*samples)
    costs = dict(zip((str(server.address) for server in fleet), least_loaded(fleet, NOW), strict=True))
    shuffle.shuffle(fleet)  # type: ignore[attr-defined]
    again = least_loaded(fleet, NOW)
    for server, cost in zip(fleet, again, strict=True):
        known = costs[str(server.address)]
        assert all(abs(a - b) < 1e-9 for a, b in zip(cost, known, strict=True))
