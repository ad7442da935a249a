"""When a worker that has ended is started again."""

from __future__ import annotations

from extproc.workers.restarts import FIRST_S, IN_A_ROW, LONGEST_S, SOON_S, Restarts


def test_one_that_ran_for_a_while_is_started_at_once() -> None:
    restarts = Restarts()
    for number in range(1, 100):
        assert restarts.ended(0.0, SOON_S) == FIRST_S
        assert restarts.count == number


def test_one_that_ends_at_once_again_and_again_is_waited_with_and_then_given_up() -> None:
    restarts = Restarts()
    waits = [restarts.ended(0.0, 0.5) for _ in range(IN_A_ROW)]
    assert waits[-1] is None
    waited = [wait for wait in waits[:-1] if wait is not None]
    assert len(waited) == IN_A_ROW - 1
    assert waited == sorted(waited)
    assert FIRST_S < waited[0] < waited[-1] <= LONGEST_S


def test_a_good_run_makes_up_for_bad_starts() -> None:
    restarts = Restarts()
    for _ in range(IN_A_ROW - 1):
        assert restarts.ended(0.0, 0.5) is not None
    assert restarts.ended(0.0, SOON_S + 1.0) == FIRST_S
    assert restarts.ended(0.0, 0.5) is not None
