"""How many servers does the calendar ask for?

A schedule opens and closes by two cron expressions, in the wall time of its zone: 08:00 stays 08:00 when the clocks
change. A time that does not exist on that day is the first one after it; one that exists twice comes twice. Servers
take a while to come, so a schedule counts that much before it opens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

if TYPE_CHECKING:
    from croniter import croniter

_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Schedule:
    """At least so many servers from each `start` to the next `end`.

    Raises ValueError for what is no cron expression of five fields (or `@daily` and the like), one that never comes,
    an unknown zone, and when croniter, which reads them, is not installed.
    """

    start: str
    end: str
    replicas: int
    zone: str = "UTC"  # a name of the IANA database: Europe/Berlin

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"a schedule for {self.replicas} servers asks for nothing; write at least 1")
        if self.start.split() == self.end.split():
            raise ValueError(f'a schedule starts and ends at "{self.start}"; write two different times')
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f'unknown time zone "{self.zone}"; write a name such as Europe/Berlin or UTC') from None
        _need_croniter()
        for text in (self.start, self.end):
            if not text.startswith("@") and len(text.split()) != _FIELDS:
                raise ValueError(
                    f'"{text}" has not five fields; write minute hour day month weekday, as in 0 8 * * 1-5'
                )
            try:
                self._cron(text, 0.0).get_next(float)
            except ValueError as error:
                raise ValueError(f'"{text}" is no time of cron ({error}); write such as 0 8 * * 1-5') from None

    def span(self, unix_s: float) -> Span:
        """What it says at that time."""
        at = unix_s // 1 + 1.0  # what comes at this second has come; croniter knows whole seconds
        started_s = self._before(self.start, at)
        ended_s = self._before(self.end, at)
        opens_s = self._cron(self.start, at - 1.0).get_next(float)
        closes_s = self._cron(self.end, at - 1.0).get_next(float)
        return Span(unix_s // 1, started_s > ended_s, opens_s, closes_s)

    def _before(self, text: str, at_s: float) -> float:
        return self._cron(text, at_s).get_prev(float)

    def _cron(self, text: str, unix_s: float) -> croniter:
        from croniter import croniter

        zone = ZoneInfo(self.zone)
        at = datetime.fromtimestamp(0, ZoneInfo("UTC")) + timedelta(seconds=unix_s)
        return croniter(text, at.astimezone(zone))


def _need_croniter() -> None:
    try:
        import croniter  # noqa: F401
    except ImportError:
        raise ValueError("schedules need croniter; install vllm-extproc[autoscale]") from None


@dataclass(frozen=True, slots=True)
class Span:
    """What a schedule says from one moment until it next opens or closes. Unix time."""

    from_s: float
    open: bool
    opens_s: float  # the next time
    closes_s: float  # the next time

    def holds(self, unix_s: float) -> bool:
        return self.from_s <= unix_s < min(self.opens_s, self.closes_s)


class Calendar:
    """All schedules of a pool. What they say is kept until it changes: reading cron expressions takes milliseconds."""

    def __init__(self, schedules: Sequence[Schedule]) -> None:
        self._schedules = tuple(schedules)
        self._spans: dict[Schedule, Span] = {}

    def asks(self, unix_s: float, lead_s: float) -> tuple[int, Schedule] | None:
        """The most servers that a schedule asks for that is open, or opens within the lead; None: none is."""
        found: tuple[int, Schedule] | None = None
        for schedule in self._schedules:
            span = self._spans.get(schedule)
            if span is None or not span.holds(unix_s):
                span = self._spans[schedule] = schedule.span(unix_s)
            counts = span.open or span.opens_s - unix_s <= lead_s
            if counts and (found is None or schedule.replicas > found[0]):
                found = schedule.replicas, schedule
        return found
