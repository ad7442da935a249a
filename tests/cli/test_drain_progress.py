"""What is shown to who waits for a drain, and how the waiting ends, without a service: its answers are made up."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from rich.console import Console

from extproc.cli import _drain_wait
from extproc.cli._admin import Admin, AwayError, RefusedError
from extproc.cli._drain_wait import GONE_AFTER_S, POLL_S, Exit, Progress, wait

VIEW: dict[str, Any] = {
    "endpoint": "10.0.0.1:8000",
    "state": "draining",
    "phase": "draining",
    "in_flight": 1,
    "running": 1.0,
    "waiting": 0.0,
    "blocked_by": "in_flight",
    "deadline_s": 60.0,
    "open_at_end": None,
    "service_started": 1.0,
}


class Service(Admin):
    """Answers from a list, the last again and again; an exception is raised."""

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        super().__init__("service:1")
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str]]] = []

    def drain(self, method: str, endpoint: str, query: Mapping[str, str]) -> Any:
        self.asked.append((method, dict(query)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return VIEW | answer


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], io.StringIO]:
    def made(is_terminal: bool) -> io.StringIO:
        file = io.StringIO()
        monkeypatch.setattr(
            _drain_wait,
            "Console",
            lambda **options: Console(file=file, force_terminal=is_terminal, width=200, **options),
        )
        return file

    return made


def waited(service: Service, away_s: float = 30.0) -> tuple[Exit, float]:
    """The result, and after how many seconds; a poll takes no time."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    end = wait(service, VIEW, {}, by={"by": "self"}, away_s=away_s, progress=Progress(), clock=lambda: now, sleep=sleep)
    return end, now


DRAINED = {"state": "drained", "phase": "drained", "blocked_by": None, "open_at_end": 0}


def test_without_a_terminal_there_is_a_line_for_each_change_but_not_for_the_time_left(
    terminal: Callable[[bool], io.StringIO],
) -> None:
    file = terminal(False)
    idle = {"in_flight": 0, "running": 0.0, "blocked_by": "engine"}
    end, _ = waited(Service({"deadline_s": 59.0}, {"deadline_s": 58.0}, idle | {"deadline_s": 57.0}, DRAINED))
    assert end is Exit.DRAINED
    assert file.getvalue().splitlines() == [
        "10.0.0.1:8000: waits for 1 in flight, 60 s left",
        "10.0.0.1:8000: waits for its engine: 0 running, 0 waiting, 57 s left",
        "10.0.0.1:8000: drained: it is safe to stop",
    ]


def test_on_a_terminal_one_line_changes(terminal: Callable[[bool], io.StringIO]) -> None:
    file = terminal(True)
    assert waited(Service({"deadline_s": 59.0}, DRAINED))[0] is Exit.DRAINED
    lasting = [line for line in file.getvalue().splitlines() if "drained: it is safe to stop" in line]
    assert len(lasting) == 1
    assert file.getvalue().count("\n") <= 2, "the progress leaves no lines behind"


def test_a_server_that_has_left_is_waited_for_while_requests_run_there(
    terminal: Callable[[bool], io.StringIO],
) -> None:
    terminal(False)
    gone = {"state": "gone"}
    end, after_s = waited(Service(gone, gone, RefusedError(404, "no endpoint")))
    assert end is Exit.DRAINED
    assert after_s == pytest.approx(2 * POLL_S + GONE_AFTER_S, abs=2 * POLL_S)
    assert waited(Service(gone | {"deadline_s": 0.0}))[0] is Exit.EXPIRED


def test_a_service_that_stays_away_is_given_up_after_a_while(terminal: Callable[[bool], io.StringIO]) -> None:
    file = terminal(False)
    end, after_s = waited(Service({}, AwayError("no service")), away_s=20.0)
    assert end is Exit.UNREACHABLE
    assert after_s == pytest.approx(20.0, abs=2 * POLL_S)
    assert "not known to be drained: no service" in file.getvalue()


def test_a_service_that_is_back_and_knows_nobody_yet_is_borne_with(terminal: Callable[[bool], io.StringIO]) -> None:
    terminal(False)
    unknown = [RefusedError(404, "no endpoint") for _ in range(int(2 * GONE_AFTER_S / POLL_S))]
    assert waited(Service(AwayError("no service"), *unknown, DRAINED))[0] is Exit.DRAINED


def test_a_drain_that_another_process_has_not_heard_of_is_begun_there_with_the_time_that_is_left(
    terminal: Callable[[bool], io.StringIO],
) -> None:
    terminal(False)
    forgotten = {"state": "ready", "phase": None, "service_started": 2.0}
    service = Service({}, forgotten, {"service_started": 2.0}, DRAINED)
    assert waited(service)[0] is Exit.DRAINED
    assert service.asked == [
        ("GET", {}),
        ("GET", {}),
        ("POST", {"by": "self", "deadline_s": "59.000"}),
        ("GET", {}),
    ]


def test_the_same_process_that_knows_no_drain_any_more_was_told_to_cancel_it(
    terminal: Callable[[bool], io.StringIO],
) -> None:
    terminal(False)
    assert waited(Service({"state": "ready", "phase": None}))[0] is Exit.CANCELLED
