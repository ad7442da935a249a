"""Which servers of a pool drain, and how did their drains end?"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from extproc.endpoint import Address
from extproc.pool.drain import By, Drain, Phase
from extproc.pool.member import Member

_MOST_EVENTS = 4096  # kept for whoever takes them


class Change(StrEnum):
    """What happened to a drain."""

    STARTED = "started"
    DRAINED = "drained"
    EXPIRED = "expired"
    CANCELLED = "cancelled"  # before it was drained; what comes back afterwards was not cancelled
    GONE = "gone"  # the server left first
    RETURNED = "returned"  # nobody asks any more for one that had ended


ENDINGS = (Change.DRAINED, Change.EXPIRED, Change.CANCELLED, Change.GONE)


@dataclass(frozen=True, slots=True)
class DrainEvent:
    """One change, for the log. `lasted_s` None: not known, or it has just begun."""

    address: Address
    change: Change
    by: By
    in_flight: int
    lasted_s: float | None = None

    def __str__(self) -> str:
        after = "" if self.lasted_s is None else f" after {self.lasted_s:.1f} s"
        return f"{self.address} {_SAID[self.change].format(after)} (asked by {self.by}, {self.in_flight} in flight)"


_SAID = {
    Change.STARTED: "is draining",
    Change.DRAINED: "is drained{}: it is safe to stop",
    Change.EXPIRED: "was not drained in time{}",
    Change.CANCELLED: "is back{}: its drain was cancelled",
    Change.GONE: "left while it was draining",
    Change.RETURNED: "is back",
}


class Drains:
    """The drains of one pool, and counts of them since start."""

    def __init__(self) -> None:
        self.events: deque[DrainEvent] = deque(maxlen=_MOST_EVENTS)  # in order; to be taken out by whoever logs them
        self.started = 0
        self.ended: Counter[Change] = Counter()  # by one of ENDINGS
        self.cut = 0  # requests still there at deadlines that passed
        self._begun: dict[Member, Drain] = {}  # those that are counted as started, drained and expired ones too
        self._members: tuple[Member, ...] = ()

    @property
    def members(self) -> list[Member]:
        """Those of which somebody wants that they get no new requests."""
        return [member for member in self._members if member.drain is not None]

    def ask(self, member: Member, by: By, now: float, deadline_s: float | None = None) -> Drain:
        """Drain this server; see `Drain.ask`. `deadline_s`: monotonic clock."""
        ended = member.drain is not None and member.drain.phase is Phase.EXPIRED
        drain = member.ask_drain(by, now, deadline_s)
        if ended and drain.phase is Phase.DRAINING:
            self._begun.pop(member, None)
        self._note(member, now)
        return drain

    def restore(self, member: Member, drain: Drain, now: float) -> None:
        """Take up a drain that another process began. What the member's endpoint asks for stays asked for."""
        own = member.drain
        self._begun.pop(member, None)
        member.take_up(drain if own is None else drain.joined(own.asked))
        if drain.phase is Phase.DRAINING:
            self._note(member, now)
        else:
            self._begun[member] = drain

    def cancel(self, member: Member, now: float, *by: By) -> bool:
        """These do not ask for it any more; true when that brings the server back."""
        drain = member.withdraw_drain(*by)
        if drain is not None:
            self._withdrawn(member, drain, now)
        return drain is not None

    def tick(self, now: float) -> None:
        """Look at the clock, and at what is in flight; several times a second."""
        for member in self._members:
            drain = member.drain
            if drain is None:
                continue
            self._note(member, now)
            reported = member.reported if now <= member.usable_until_s else 0.0
            if drain.advance(now, member.in_flight, refused=member.health.refused, reported=reported):
                self.cut += drain.open_at_end or 0
                self._ended(member, drain, Change(drain.phase), now)

    def membership(self, members: tuple[Member, ...], removed: Iterable[Member], returned: Iterable[Member]) -> None:
        """The pool's members are these now. `returned`: those of them whose endpoint asks for no drain any more."""
        self._members = members
        for member in removed:
            drain = self._begun.pop(member, None)
            if drain is not None and drain.phase is Phase.DRAINING:
                self._ended(member, drain, Change.GONE, None)
        for member in returned:
            drain = self._begun.get(member)
            if drain is not None:
                self._withdrawn(member, drain, None)

    def _note(self, member: Member, now: float) -> None:
        """Tell once of each that has begun."""
        drain = member.drain
        if drain is not None and self._begun.get(member) is not drain:
            drain.started_s = now if drain.started_s is None else drain.started_s
            self._begun[member] = drain
            self.started += 1
            self._tell(member, drain, Change.STARTED, None)

    def _withdrawn(self, member: Member, drain: Drain, now: float | None) -> None:
        self._begun.pop(member, None)
        if drain.phase is Phase.DRAINING:
            self._ended(member, drain, Change.CANCELLED, now)
        else:
            self._tell(member, drain, Change.RETURNED, None)

    def _ended(self, member: Member, drain: Drain, change: Change, now: float | None) -> None:
        self.ended[change] += 1
        self._tell(member, drain, change, now)

    def _tell(self, member: Member, drain: Drain, change: Change, now: float | None) -> None:
        lasted_s = None if now is None or drain.started_s is None else now - drain.started_s
        self.events.append(DrainEvent(member.address, change, drain.by, member.in_flight, lasted_s))
