"""What the status page warns of: in words, the worst first, and nothing when nothing is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.admin.status_warnings import Level, ago, warnings
from extproc.autoscale.recommendation import Verdict
from extproc.decision import Pick
from extproc.pool.drain import By
from extproc.request import RawRequest
from tests.support.fleet import ended
from tests.support.status_fleet import Advice, Made, advised


def said(made: Made, **changes: Any) -> list[tuple[str, str]]:
    facts: dict[str, Any] = {
        "ready": True,
        "uptime_s": 10.0,
        "streams": {"total": made.streams, "errors": 0},
        "access_log": {"connected": made.connected},
        "failing": {},
        "eds": {},
        "config_file": {},
        "autoscale": made.advice,
        "lately": made.history.lately(made.router, now=made.now, streams=made.streams),
    }
    found = warnings(made.router, made.now, **(facts | changes))
    return [(each.level.name.lower(), each.text) for each in found]


def well(*, servers: int = 4, advice: Advice | None = None) -> Made:
    made = Made(advice, vllm=servers)
    made.hour(2)
    return made


def refuse(made: Made, *servers: int) -> None:
    pool = made.pools[0]
    for server in servers:
        for _ in range(2):
            pool.scrape_failed(pool.members[server].address, "refused", made.now, answered=False, refused=True)


def test_a_fleet_that_is_well_gets_no_warning() -> None:
    assert said(well(advice=Advice(vllm=advised(verdict=Verdict.OK)))) == []


def test_a_pool_without_endpoints_or_without_a_ready_one_is_critical() -> None:
    assert said(Made(vllm=0)) == [("critical", "pool vllm has no endpoints")]
    made = well(servers=2)
    refuse(made, 0)
    made.pools[0].members[1].ask_drain(By.OPERATOR, made.now)
    assert said(made) == [("critical", "pool vllm: no endpoint is ready: 1 unhealthy, 1 draining")]
    refuse(made, 1)
    made.pools[0].members[1].withdraw_drain(By.OPERATOR)
    assert said(made) == [
        (
            "critical",
            "pool vllm: no endpoint is healthy: 10.0.0.1:8000 (connection refused), 10.0.0.2:8000 (connection refused)",
        )
    ]


def test_a_fleet_that_starts_is_no_emergency() -> None:
    assert said(Made(vllm=2)) == [
        ("warning", "pool vllm: no endpoint is ready: 2 starting"),
        ("warning", "pool vllm: no endpoint's load is known; routing by our own requests in flight"),
    ]


def test_unhealthy_servers_are_named_up_to_three() -> None:
    made = well(servers=6)
    refuse(made, 1)
    assert said(made) == [("warning", "pool vllm: 1 of 6 endpoints is unhealthy: 10.0.0.2:8000 (connection refused)")]
    refuse(made, 2, 3, 4)
    ((_, text),) = said(made)
    assert text.startswith("pool vllm: 4 of 6 endpoints are unhealthy: 10.0.0.2:8000 (connection refused), ")
    assert text.endswith(" and 1 more")


def test_a_load_that_is_not_known_any_more_is_told_with_its_age_and_the_reason() -> None:
    made = well(servers=2)
    pool = made.pools[0]
    pool.scrape_failed(pool.members[1].address, "timeout: no answer in 1 s", made.now, answered=False, refused=False)
    made.now += 20.0
    made.sample(pool, pool.members[0].address, waiting=0.0)
    assert said(made) == [
        (
            "warning",
            "pool vllm: the load of 1 of 2 endpoints is not known: 10.0.0.2:8000 (told 20 s ago; timeout: no answer in"
            " 1 s)",
        )
    ]


def test_a_drain_that_did_not_end_in_time_is_told_with_what_is_left() -> None:
    made = well(servers=2)
    made.pick(end=False)
    member = next(each for each in made.pools[0].members if each.in_flight)
    member.ask_drain(By.OPERATOR, made.now, made.now + 5.0)
    assert said(made) == []
    assert member.drain is not None
    member.drain.advance(made.now + 6.0, member.in_flight, refused=False)
    assert said(made) == [
        ("warning", f"pool vllm: the deadline of the drain of {member.address} has passed, with 1 requests there")
    ]


def test_picks_made_in_panic_are_critical_and_forgotten_after_minutes() -> None:
    made = well(servers=1)
    refuse(made, 0)
    made.pick()
    made.pick()
    panic = (
        "critical",
        "pool vllm: 2 of 4 requests in the last 20 s were routed although every endpoint looked bad",
    )
    assert panic in said(made)
    made.hour(40, picks=0)
    assert said(made) == []


def test_requests_that_the_service_had_to_refuse_are_told_by_why() -> None:
    made = well(servers=1)
    made.router.route(RawRequest(subset=frozenset()), made.now)
    assert said(made) == [
        (
            "critical",
            "1 requests in the last 20 s were answered with an error by the service: there was no server for them",
        )
    ]


def test_picks_that_servers_declined_are_told_when_they_are_many() -> None:
    made = well(servers=3)
    decision = made.router.route(RawRequest(), made.now)
    assert isinstance(decision, Pick)
    made.router.complete(ended(decision, served=decision.fallbacks[0], attempts=2), made.now)
    assert said(made) == [
        (
            "warning",
            "1 of 3 requests in the last 20 s were declined where they were sent first, and ran elsewhere",
        )
    ]
    made.hour(30, picks=1)
    assert said(made) == []


def test_an_envoy_that_does_not_ask_is_told() -> None:
    made = Made(vllm=1)
    made.hour(7, picks=0)
    ((level, text),) = said(made, uptime_s=70.0)
    assert level == "note"
    assert text.startswith("Envoy has not asked about any request since the service has started, 70 s ago.")
    made.router.complete(_unpicked(made), made.now)
    ((level, text),) = said(made, uptime_s=70.0)
    assert level == "warning"
    assert text.startswith(
        "Envoy does not ask: it has routed 1 requests by itself in the last 70 s, and asked about none"
    )


def _unpicked(made: Made) -> Any:
    from extproc.decision import Completion

    return Completion(pick_id=None, served=made.pools[0].members[0].address, status=200)


def test_a_service_that_is_not_ready_and_one_that_hears_no_access_log_say_so() -> None:
    made = well()
    made.connected = 0
    texts = [text for _, text in said(made, ready=False, streams={"total": 2, "errors": 3})]
    assert texts[0] == "the service is not ready: Envoy routes without it"
    assert texts[1].startswith("3 requests met an error in the service")
    assert texts[2].startswith("no access log is received")


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"verdict": Verdict.LATE}, "warning", "first token 1.31 s (p99), target 1 s: it is over its target, and no"),
        ({"verdict": Verdict.AT_CAPACITY}, "warning", "and max_replicas allows no more servers"),
        ({"verdict": Verdict.OK, "min_too_low": 5}, "note", "min_replicas, 2, is too low: the fastest ramp within"),
        ({"stale": True, "age_s": 400.0}, "warning", "nothing is recommended: the load of its servers was last known"),
    ],
)
def test_what_speaks_against_a_recommendation_is_told(changes: dict[str, Any], level: str, words: str) -> None:
    ((found, text),) = said(well(advice=Advice(vllm=advised(**changes))))
    assert found == level
    assert text.startswith("pool vllm: autoscaling: ")
    assert words in text


@pytest.mark.parametrize("found", [None, advised(desired=4, verdict=Verdict.SCALING)])
def test_a_recommendation_that_is_on_its_way_is_no_warning(found: Any) -> None:
    assert said(well(advice=Advice(vllm=found))) == []


def test_the_worst_comes_first() -> None:
    made = well(servers=1, advice=Advice(vllm=advised(verdict=Verdict.OK, min_too_low=5)))
    refuse(made, 0)
    levels = [level for level, _ in said(made, failing={"vllm": {"a.test": "no such name"}})]
    assert levels == ["critical", "warning", "note"]
    assert sorted(Level) == [Level.CRITICAL, Level.WARNING, Level.NOTE]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (99.0, "99 s"), (100.0, "2 min"), (5999.0, "100 min"), (7200.0, "2 h"), (200_000.0, "2 days")],
)
def test_lengths_of_time_read_well(seconds: float, words: str) -> None:
    assert ago(seconds) == words
