"""How far is one server's drain?

A drain stops new requests at once and lets the running ones end. It exists while somebody asks for it:

| phase | event | then |
|---|---|---|
| none | somebody asks | draining |
| draining | somebody asks (again) | draining; the start stays; a deadline given with it replaces the old one |
| draining | nothing of ours in flight, and its engine idle on two samples in a row | drained |
| draining | nothing of ours in flight, and nobody listens there any more | drained |
| draining | the deadline passes | expired: what is in flight then was not waited for |
| expired | somebody asks, with a deadline to come | draining |
| drained | somebody asks (again) | drained |
| any | the last of those who asked withdraws | none: the server is back at once |
| any | the server leaves its pool | none: its drain ends with it |

The engine counts beside our own account because others may use it: another router, a client that knows its address.
Two samples, because a request on its way may be in neither our count nor the first of them. A sample counts only if it
was taken after the drain began, tells both gauges, and comes while nothing of ours is in flight. A scrape that fails
tells nothing either way, except that a refused connection means nobody is there to wait for.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from extproc.pool.sample import LoadSample

IDLE_IN_A_ROW = 2


class Phase(StrEnum):
    DRAINING = "draining"  # running requests are waited for
    DRAINED = "drained"  # nothing runs there: it is safe to stop
    EXPIRED = "expired"  # the deadline passed first


class By(StrEnum):
    """Who asks for a drain."""

    OPERATOR = "operator"  # over the admin API
    CONFIG = "config"  # the operator too: `drained: true` of the endpoint
    SELF = "self"  # the server, about to stop: its preStop hook, its unit's ExecStop
    PLATFORM = "platform"  # whoever runs it takes it down: `Endpoint.leaving`


class Blocked(StrEnum):
    """What a drain waits for."""

    IN_FLIGHT = "in_flight"  # requests that we sent there
    ENGINE = "engine"  # it has requests that are not ours, or has not yet shown twice that it is idle
    NO_SAMPLE = "no fresh sample"  # its metrics page has told nothing lately, since the drain began


_GOING_ANYWAY = frozenset({By.SELF, By.PLATFORM})


class Drain:
    """One server's drain. Times are of the monotonic clock, in seconds."""

    __slots__ = ("_heard_s", "_idle", "asked", "deadline_s", "ended_s", "open_at_end", "phase", "started_s")

    def __init__(self, by: By, *, started_s: float | None = None, deadline_s: float | None = None) -> None:
        """`started_s` None: it begins with the next look at the clock. `deadline_s` None: there is none."""
        self.asked = frozenset({by})
        self.phase = Phase.DRAINING
        self.started_s = started_s
        self.deadline_s = deadline_s
        self.ended_s: float | None = None  # None: it goes on
        self.open_at_end: int | None = None  # requests there then, by our count or the server's; None: it goes on
        self._idle = 0  # samples in a row
        self._heard_s = float("-inf")  # when the last sample that counts was taken

    @classmethod
    def restored(
        cls,
        asked: frozenset[By],
        phase: Phase,
        *,
        started_s: float,
        deadline_s: float | None,
        ended_s: float | None,
        open_at_end: int | None,
    ) -> Self:
        """One that another process began. `asked` is not empty."""
        drain = cls(next(iter(asked)), started_s=started_s, deadline_s=deadline_s)
        drain.asked, drain.phase, drain.ended_s, drain.open_at_end = asked, phase, ended_s, open_at_end
        return drain

    @property
    def by(self) -> By:
        """Who asks; of several the one whose word counts most."""
        return next(by for by in By if by in self.asked)

    @property
    def last_resort(self) -> bool:
        """Whether it may still be used when nothing else is left: nobody but its platform wants it to rest."""
        return self.asked <= _GOING_ANYWAY

    @property
    def words(self) -> str:
        """Why it gets no new requests."""
        return "leaving: it is being taken down" if self.last_resort else "drained by the operator"

    def ask(self, by: By, now: float, deadline_s: float | None = None) -> None:
        """Ask for it (again). `deadline_s` None: the one that there is stays."""
        self.asked |= {by}
        if self.phase is Phase.EXPIRED and deadline_s is not None and deadline_s > now:
            self.phase, self.ended_s, self.open_at_end, self._idle = Phase.DRAINING, None, None, 0
        if self.phase is Phase.DRAINING and deadline_s is not None:
            self.deadline_s = deadline_s

    def joined(self, asked: frozenset[By]) -> Self:
        """This one; these ask for it too."""
        self.asked |= asked
        return self

    def withdraw(self, *by: By) -> bool:
        """These do not ask any more; true when nobody is left that does: then it is over."""
        left = self.asked - frozenset(by)
        self.asked = left or self.asked
        return not left

    def observe(self, sample: LoadSample, in_flight: int) -> None:
        """Take in a sample of the server. `in_flight`: our requests there, now."""
        if self.started_s is None or sample.taken_at_s <= max(self.started_s, self._heard_s):
            return
        if sample.running is None or sample.waiting is None or sample.truncated:
            return
        self._heard_s = sample.taken_at_s
        busy = in_flight > 0 or sample.running + sample.waiting > 0
        self._idle = 0 if busy else self._idle + 1

    def advance(self, now: float, in_flight: int, *, refused: bool, reported: float = 0.0) -> bool:
        """Look at the clock and at what is in flight; true when the drain has come to its end.

        `refused`: nobody listens there. `reported`: requests there, by the server's own word, while that is fresh.
        """
        if self.started_s is None:
            self.started_s = now
        if self.phase is not Phase.DRAINING:
            return False
        if in_flight:
            self._idle = 0
        elif refused or self._idle >= IDLE_IN_A_ROW:
            self._end(Phase.DRAINED, now, 0)
            return True
        if self.deadline_s is not None and now >= self.deadline_s:
            self._end(Phase.EXPIRED, now, max(in_flight, int(reported)))
            return True
        return False

    def blocked_by(self, now: float, in_flight: int, stale_after_s: float) -> Blocked | None:
        """What it waits for; None: it has ended. A sample older than `stale_after_s` tells nothing."""
        if self.phase is not Phase.DRAINING:
            return None
        if in_flight:
            return Blocked.IN_FLIGHT
        heard_s = max(self._heard_s, now if self.started_s is None else self.started_s)
        return Blocked.ENGINE if now - heard_s <= stale_after_s else Blocked.NO_SAMPLE

    def _end(self, phase: Phase, now: float, still_open: int) -> None:
        self.phase, self.ended_s, self.open_at_end = phase, now, still_open
