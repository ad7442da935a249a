"""Causes are told from accounts: the host that Envoy names, and what was done to it at that time."""

from __future__ import annotations

from random import Random

import pytest

from tests.churn.events import FULL, KINDS, SHORT, schedule
from tests.churn.run import LEAVE, Options
from tests.churn.verdict import Arrival, Drained, EnvoyEntry, Happening, Outcome, cause_of, entry_of, judge

A, B = "127.0.0.1:8001", "127.0.0.1:8002"
KILL = Happening("kill", A, "3 kill -9", 100.0, 100.01)
STOP = Happening("stop", B, "4 drain + stop", 120.0, 120.5)
SERVICE = Happening("service", "A", "5 service restart", 140.0, 150.0)
FLAP = Happening("flap", B, "6 flapping", 160.0, 166.0)
ALL = (KILL, STOP, SERVICE, FLAP)


def failed(request: str = "r", began: float = 95.0, ended: float = 100.1) -> Outcome:
    return Outcome(request, began, ended, "it was cut")


def entry(host: str | None, ended: float, status: int = 200, details: str = "upstream_reset") -> EnvoyEntry:
    return EnvoyEntry(host, status, "UC", details, ended - 5, ended)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        pytest.param(entry(A, 100.1), "kill", id="on the server that was killed, then"),
        pytest.param(entry(A, 99.0), "unexplained", id="there, before"),
        pytest.param(entry(A, 103.0), "unexplained", id="there, long after"),
        pytest.param(entry(B, 100.1), "unexplained", id="on another server"),
        pytest.param(entry(B, 120.2), "stop", id="on a server that was stopped after its drain"),
        pytest.param(entry(None, 145.0, 500, "ext_proc_error_gRPC_error_14"), "service", id="the service was away"),
        pytest.param(entry(None, 130.0, 500, "ext_proc_error_gRPC_error_14"), "unexplained", id="it was not"),
        pytest.param(entry(B, 145.0), "unexplained", id="a server while the service was away"),
        pytest.param(entry(B, 161.0, 503, "via_upstream"), "flap", id="on a flapping server"),
        pytest.param(entry(None, 161.0, 503, "no_healthy_upstream"), "unexplained", id="no server"),
        pytest.param(None, "unexplained", id="Envoy knows nothing of it"),
    ],
)
def test_the_cause_of_a_failure(found: EnvoyEntry | None, kind: str) -> None:
    cause = cause_of(failed(), found, ALL)
    assert cause.kind == kind
    assert "it was cut" in cause.text
    if kind != "unexplained":
        assert cause.event == next(each.event for each in ALL if each.kind == kind)


def test_of_two_events_at_a_server_the_last_one_before_it_is_the_cause() -> None:
    """One that was stopped and started again is killed before all could have noticed the first."""
    stop, kill = Happening("stop", A, "1 restart", 99.0, 99.3), Happening("kill", A, "2 kill -9", 100.4, 100.41)
    for happenings in ((stop, kill), (kill, stop)):
        assert cause_of(failed(), entry(A, 100.5), happenings).event == "2 kill -9"
        assert cause_of(failed(), entry(A, 99.2), happenings).event == "1 restart"


def test_what_comes_to_a_drained_server_counts_if_it_was_asked_after_the_drain() -> None:
    outcomes = [Outcome(name, began, began + 9, None) for name, began in (("old", 9.0), ("way", 9.9), ("new", 10.5))]
    arrivals = [Arrival("old", A, 9.1), Arrival("way", A, 10.1), Arrival("new", A, 10.6), Arrival("new", B, 10.6)]
    verdict = judge(outcomes, {}, arrivals, (), [Drained(A, "drain", 10.0, until_s=20.0)])
    assert verdict.sent_after_ack == [Arrival("new", A, 10.6)]
    assert [(arrival.request, round(late, 3)) for arrival, late in verdict.on_their_way] == [("way", 0.1)]
    assert judge(outcomes, {}, arrivals, (), [Drained(A, "drain", 10.0, until_s=10.2)]).sent_after_ack == []
    assert judge(outcomes, {}, arrivals, (), [Drained(A, "drain", 10.0)]).sent_after_ack != []


def test_every_must_that_is_missed_is_told() -> None:
    entries = {"k": entry(A, 100.1), "s": entry(B, 120.2), "p": entry(None, 145.0, 500, "ext_proc_x"), "u": None}
    outcomes = [failed(name) for name in (*entries, "f")] + [Outcome("ok", 1.0, 2.0, None)]
    known = {name: each for name, each in entries.items() if each is not None} | {"f": entry(B, 161.0, 503)}
    verdict = judge(outcomes, known, [Arrival("ok", A, 2.0)], ALL, [Drained(A, "d", 0.5)], ["a problem"])
    assert verdict.count("kill") == 1
    assert verdict.missed(3) == [
        "1 streams cut by drains",
        "1 requests failed by restarts of the service",
        "1 requests failed on a flapping server",
        "1 errors that no event explains",
        "1 requests sent to a server after its drain",
        "3 requests in flight at the end",
        "a problem",
    ]
    only_killed = judge([failed()], {"r": entry(A, 100.1)}, (), ALL, ())
    assert only_killed.missed(0) == []


def test_a_line_of_envoys_log_is_read() -> None:
    line = {"request": "r", "host": None, "status": 503, "flags": "UH", "details": None, "started": "7.250"}
    assert entry_of(line | {"duration_ms": 500}) == ("r", EnvoyEntry(None, 503, "UH", "-", 7.25, 7.75))


def test_a_full_run_has_thirty_events_of_all_kinds_and_the_seed_orders_them() -> None:
    count = Options().events
    assert sum(FULL.values()) == count == 30
    assert set(FULL) == set(KINDS)
    assert set(SHORT) <= set(KINDS)
    orders = [schedule(Random(seed), count) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2])
    assert len(schedule(Random(1), 8)) == 8
    assert {pool for _, pool in KINDS.values() if pool is not None} <= set(LEAVE)
