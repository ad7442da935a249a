"""A schedule keeps the wall time of its zone, opens a lead early, and tells what is wrong with it."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from extproc.autoscale.schedule import Calendar, Schedule
from tests.autoscale.fleet import Run, policy, servers

BERLIN = Schedule("0 8 * * *", "0 20 * * *", 6, "Europe/Berlin")


def utc(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("UTC")).timestamp()


def asks(schedule: Schedule, text: str, lead_s: float = 0.0) -> bool:
    return Calendar([schedule]).asks(utc(text), lead_s) is not None


@pytest.mark.parametrize(
    ("day", "opens", "closes"),
    [
        ("2026-03-28", "07:00", "19:00"),  # the day before the clocks go forward
        ("2026-03-29", "06:00", "18:00"),
        ("2026-10-24", "06:00", "18:00"),  # the day before they go back
        ("2026-10-25", "07:00", "19:00"),
    ],
)
def test_eight_in_the_morning_stays_eight_when_the_clocks_change(day: str, opens: str, closes: str) -> None:
    assert asks(BERLIN, f"{day}T{opens}:00")
    assert not asks(BERLIN, f"{day}T{int(opens[:2]) - 1:02}:59:59")
    assert asks(BERLIN, f"{day}T{int(closes[:2]) - 1:02}:59:59")
    assert not asks(BERLIN, f"{day}T{closes}:00")


def test_an_hour_that_does_not_exist_begins_at_the_first_moment_after_it() -> None:
    night = Schedule("30 2 * * *", "0 6 * * *", 3, "Europe/Berlin")
    assert not asks(night, "2026-03-29T00:59:59")
    assert asks(night, "2026-03-29T01:00:00")


def test_one_that_exists_twice_comes_twice() -> None:
    night = Schedule("30 2 * * *", "45 2 * * *", 3, "Europe/Berlin")
    times = ("00:29:59", "00:30:00", "00:45:00", "01:30:00", "01:45:00")
    assert [asks(night, f"2026-10-25T{time}") for time in times] == [False, True, False, True, False]


def test_it_counts_a_lead_before_it_opens_across_a_change_of_the_clocks_too() -> None:
    assert asks(BERLIN, "2026-03-29T05:50:00", lead_s=600.0)
    assert not asks(BERLIN, "2026-03-29T05:49:58", lead_s=600.0)


def test_what_is_kept_of_a_schedule_is_what_it_says_anew_at_each_moment() -> None:
    calendar = Calendar([BERLIN, Schedule("0 9 * * 1-5", "30 17 * * 1-5", 9)])
    start = utc("2026-03-27T00:00:00")
    for step in range(0, 4 * 86400, 1790):
        fresh = Calendar([BERLIN, Schedule("0 9 * * 1-5", "30 17 * * 1-5", 9)])
        assert calendar.asks(start + step, 300.0) == fresh.asks(start + step, 300.0)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"start": "0 8 * *"}, "five fields"),
        ({"start": "0 8 * * * *"}, "five fields"),
        ({"start": "0 25 * * *"}, "no time of cron"),
        ({"start": "0 8 31 2 *"}, "no time of cron"),
        ({"end": "0 8 * * *"}, "two different times"),
        ({"zone": "Europe/Atlantis"}, "unknown time zone"),
        ({"zone": "../etc"}, "unknown time zone"),
        ({"replicas": 0}, "at least 1"),
    ],
)
def test_a_mistake_is_told_with_its_cure(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Schedule(**({"start": "0 8 * * *", "end": "0 20 * * *", "replicas": 2} | changes))  # type: ignore[arg-type]


def test_the_recommender_asks_for_it_from_its_first_look_on() -> None:
    early = Schedule("0 0 * * *", "0 1 * * *", 6)
    assert Run(policy(schedules=(early,))).for_s(100, servers(2), rate=1.0).desired == 6  # 00:16 after the epoch
