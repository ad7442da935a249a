"""The last hour of a pool: bounded, unknown where it was unknown, and counted right over restarts."""

from __future__ import annotations

import pytest

from extproc.admin.status_history import EVERY_S, KEPT, LATELY_S, History
from extproc.pool.sample import LoadSample
from extproc.request import RawRequest
from tests.support.status_fleet import UNIX_S, Advice, Made, advised


def told(made: Made, asked: float | None, found: float | None, server: int = 0) -> None:
    """A server says how many prompt tokens it was asked for, and had cached."""
    made.now += 1.0
    pool = made.pools[0]
    where = pool.members[server].address
    made.sample(pool, where, waiting=0.0, prefix_queries_tokens=asked, prefix_hits_tokens=found)


def test_an_hour_is_kept_and_no_more() -> None:
    made = Made(vllm=1)
    made.hour(KEPT + 5, picks=0)
    history = made.history.since(None)
    assert len(history["times"]) == KEPT == 3600 / EVERY_S
    assert history["times"][-1] - history["times"][0] == 3600 - EVERY_S
    assert history["from"] == history["times"][0]
    assert {len(column) for name, column in history["pools"]["vllm"].items() if name != "asked"} == {KEPT}


def test_a_point_tells_the_pool_and_null_what_is_unknown() -> None:
    made = Made(Advice(vllm=advised(desired=4)), vllm=2, other=1)
    made.now = 10.0
    made.sample(made.pools[0], made.pools[0].members[0].address, waiting=3.0, running=5.0, kv_usage_ratio=0.5)
    for _ in range(20):
        made.router.route(RawRequest(), made.now)
    made.look()
    pools = made.history.since(UNIX_S)["pools"]
    assert pools["vllm"] == {
        "ready": [1],
        "servers": [2],
        "in_flight": [20],
        "running": [5.0],
        "waiting": [3.0],
        "kv_usage_ratio": [0.5],
        "requests_per_s": [2.0],
        "hit_ratio": [None],
        "desired": [4],
        "ttft_p99_s": [1.31],
        "asked": {"requests": [3], "waiting": [4], "min_replicas": [2]},
    }
    assert pools["other"]["waiting"] == pools["other"]["desired"] == [None]
    assert pools["other"]["requests_per_s"] == [0.0]


@pytest.mark.parametrize("found", [None, advised(stale=True)])
def test_a_recommendation_that_is_too_old_is_no_point(found: object) -> None:
    made = Made(Advice(vllm=found), vllm=1)  # type: ignore[arg-type]
    assert made.history.since(None)["pools"]["vllm"]["desired"] == [None]
    assert made.history.since(None)["pools"]["vllm"]["asked"] == {}


def test_only_what_is_newer_is_told_and_all_after_the_clock_was_set_back() -> None:
    made = Made(vllm=1)
    made.hour(5, picks=0)
    times = made.history.since(None)["times"]
    assert made.history.since(times[2])["times"] == times[3:]
    assert made.history.since(times[-1])["times"] == []
    assert made.history.since(times[-1] + 100.0)["times"] == times
    made.history.look(made.router, now=made.now + EVERY_S, unix_s=UNIX_S - 50.0, streams=0)
    assert made.history.since(None)["times"] == [UNIX_S - 50.0]


def test_the_hit_share_is_that_of_the_last_minute_by_the_servers_own_counters() -> None:
    made = Made(vllm=2)
    member, other = made.pools[0].members
    told(made, 1000.0, 900.0)
    assert made.history.hit_ratio(member) is None  # nothing is counted of the time before the first look
    made.look()
    told(made, 1400.0, 1000.0)
    assert made.history.hit_ratio(member) == pytest.approx(100 / 400)
    assert made.history.hit_ratio(other) is None
    made.look()
    told(made, 50.0, 40.0)  # it was restarted
    assert made.history.hit_ratio(member) == pytest.approx(140 / 450)
    assert made.history.pool_hit_ratio(made.pools[0].members) == pytest.approx(140 / 450)
    for _ in range(8):
        made.now += EVERY_S
        made.look()
    assert made.history.hit_ratio(member) is None  # no prompt came in the last minute


def test_a_page_without_those_counters_tells_no_hit_share() -> None:
    made = Made(vllm=1)
    for asked in (None, None, 100.0, 300.0):
        told(made, asked, asked)
        made.look()
    assert made.history.hit_ratio(made.pools[0].members[0]) == 1.0  # from the third page on
    told(made, None, None)
    assert made.history.hit_ratio(made.pools[0].members[0]) == 1.0


def test_a_server_that_comes_to_an_address_begins_anew() -> None:
    made = Made(vllm=1)
    pool = made.pools[0]
    endpoint = pool.members[0].endpoint
    told(made, 100.0, 100.0)
    made.look()
    pool.set_endpoints([])
    pool.set_endpoints([endpoint])
    pool.observe(endpoint.address, LoadSample(made.now, prefix_queries_tokens=10.0, prefix_hits_tokens=0.0))
    made.look()
    assert made.history.hit_ratio(pool.members[0]) is None


def test_lately_counts_the_last_minutes_and_not_what_was_before() -> None:
    made = Made(vllm=1)
    made.hour(10, picks=1)
    lately = made.history.lately(made.router, now=made.now, streams=made.streams)
    assert lately is not None
    assert (lately.of_s, lately.counts.picks["vllm"], lately.counts.streams) == (100.0, 10, 10)
    made.hour(40, picks=0)
    lately = made.history.lately(made.router, now=made.now, streams=made.streams)
    assert lately is not None
    assert (lately.of_s, lately.counts.picks["vllm"]) == (LATELY_S, 0)
    assert History().lately(made.router, now=0.0, streams=0) is None


def test_a_time_can_be_asked_for_as_it_was_told() -> None:
    made = Made(vllm=1)
    for unix_s in (UNIX_S + 0.12345, UNIX_S + 1.98765):
        made.history.look(made.router, now=made.now, unix_s=unix_s, streams=0)
        last = made.history.since(None)["times"][-1]
        assert made.history.since(float(f"{last}"))["times"] == []
        assert made.history.since(float(f"{last:.3f}"))["times"] == []
