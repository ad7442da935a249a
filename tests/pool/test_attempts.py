"""A request that Envoy tries on several servers: which of them is it held against, and how?"""

from __future__ import annotations

from typing import Any

import pytest

from extproc.decision import Completion, Pick
from extproc.pool.health import FAULTS_IN_A_ROW
from extproc.pool.ledger import ATTEMPT_WAIT_S
from extproc.router import Router
from tests.support.fleet import address, member, route, sampled_router

REFUSED: dict[str, Any] = {"status": None, "flags": ("upstream_connection_failure",)}
RESET: dict[str, Any] = {"status": None, "flags": ("upstream_connection_termination",)}
FULL: dict[str, Any] = {"status": 503}


def attempt(pick: Pick, server: int, told: dict[str, Any]) -> Completion:
    return Completion(pick.pick_id, address(server), final=False, attempt_ended=True, **told)


def reached(pick: Pick, server: int) -> Completion:
    """Envoy does not say there which attempt it is."""
    return Completion(pick.pick_id, address(server), final=False)


def end(pick: Pick, server: int, attempts: int, status: int = 200) -> Completion:
    return Completion(pick.pick_id, address(server), status=status, attempts=attempts)


def to_first(fleet: Router, now: float) -> Pick:
    return route(fleet, now, subset=["10.0.0.1"])


def of(fleet: Router, number: int, now: float) -> str | None:
    """What is held against a server."""
    health = member(fleet, number).health
    return "full" if health.full(now) else health.problem(now)


@pytest.mark.parametrize(("told", "wanted"), [(REFUSED, "errors in a row"), (RESET, "errors in a row"), (FULL, "full")])
@pytest.mark.parametrize("order", [("attempt", "end"), ("end", "attempt")], ids=" ".join)
def test_the_failed_attempt_counts_where_it_failed_as_what_it_was(
    told: dict[str, Any], wanted: str, order: tuple[str, ...]
) -> None:
    """case e15: the two entries come by different streams, in any order"""
    fleet = sampled_router(3)
    for _ in range(FAULTS_IN_A_ROW):
        pick = to_first(fleet, 0.0)
        entries = {"attempt": attempt(pick, 1, told), "end": end(pick, 2, 2)}
        for name in order:
            fleet.complete(entries[name], 0.0)
        fleet.stream_ended(pick.pick_id, 0.0)
    fleet.stream_ended("tick", ATTEMPT_WAIT_S + 0.1)
    assert of(fleet, 1, 0.1) == wanted
    assert of(fleet, 2, 0.1) is None


@pytest.mark.parametrize("end_first", [False, True])
def test_each_of_several_attempts_counts_where_it_was(end_first: bool) -> None:
    fleet = sampled_router(3)
    for _ in range(FAULTS_IN_A_ROW):
        pick = to_first(fleet, 0.0)
        last = end(pick, 3, 3, 500)
        attempts = [
            attempt(pick, 1, REFUSED),
            reached(pick, 2),
            attempt(pick, 2, FULL),
            reached(pick, 3),
            attempt(pick, 3, {"status": 500}),
        ]
        for entry in [last, *attempts] if end_first else [*attempts, last]:
            fleet.complete(entry, 0.0)
    fleet.stream_ended("tick", ATTEMPT_WAIT_S + 0.1)
    assert [of(fleet, number, 0.1) for number in (1, 2, 3)] == ["errors in a row", "full", "errors in a row"]
    assert fleet.ledger.open_count == 0
    assert fleet.ledger.moved == FAULTS_IN_A_ROW


@pytest.mark.parametrize("first", ["attempt", "end"])
def test_a_failure_that_both_entries_tell_counts_once(first: str) -> None:
    fleet = sampled_router(1)
    for _ in range(FAULTS_IN_A_ROW - 1):
        pick = route(fleet, 0.0)
        entries = [attempt(pick, 1, {"status": 500}), end(pick, 1, 1, 500)]
        for entry in entries if first == "attempt" else reversed(entries):
            fleet.complete(entry, 0.0)
    assert of(fleet, 1, 0.0) is None


def test_a_good_answer_at_the_second_try_on_the_same_server_counts() -> None:
    """A pool of one."""
    fleet = sampled_router(1)
    pick = route(fleet, 0.0)
    fleet.complete(attempt(pick, 1, FULL), 0.0)
    assert of(fleet, 1, 0.0) == "full"
    fleet.complete(end(pick, 1, 2), 0.0)
    assert of(fleet, 1, 0.0) is None


def test_a_client_that_leaves_before_an_answer_is_held_against_nobody() -> None:
    """The attempt's entry has neither status nor flags then."""
    fleet = sampled_router(1)
    for _ in range(10):
        pick = route(fleet, 0.0)
        fleet.complete(attempt(pick, 1, {"status": None}), 0.0)
    assert of(fleet, 1, 0.0) is None


@pytest.mark.parametrize("move_told", [False, True])
def test_where_nothing_tells_how_an_attempt_ended_its_server_declined(move_told: bool) -> None:
    """The entry is lost, or this Envoy's log lets none through."""
    fleet = sampled_router(3)
    for _ in range(FAULTS_IN_A_ROW):
        pick = to_first(fleet, 0.0)
        for server in (2, 3) if move_told else ():
            fleet.complete(reached(pick, server), 0.0)
        fleet.complete(end(pick, 3, 3), 0.0)
        fleet.stream_ended(pick.pick_id, 0.0)
    assert of(fleet, 1, 0.0) is None
    late = ATTEMPT_WAIT_S + 0.1
    fleet.stream_ended("tick", late)
    out = "errors in a row"
    assert [of(fleet, number, late) for number in (1, 2, 3)] == [out, out if move_told else None, None]


def test_an_attempt_of_another_process_counts_nowhere() -> None:
    fleet = sampled_router(1)
    for _ in range(FAULTS_IN_A_ROW):
        fleet.complete(Completion("other-1", address(1), final=False, status=500, attempt_ended=True), 0.0)
        fleet.complete(Completion(None, address(1), final=False, status=500, attempt_ended=True), 0.0)
    assert of(fleet, 1, 0.0) is None
    assert fleet.ledger.unpicked == 0
