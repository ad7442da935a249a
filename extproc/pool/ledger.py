"""Which requests are out, how did the last ones end, and how many of each were there?

A reservation is found by its pick id, since two witnesses tell of its end and neither can be relied on alone: the end
of our stream (at once, but it says nothing of how), and Envoy's access log (a flush interval later, with everything).
Ended reservations wait `LOG_WAIT_S` for their log entry and are then forgotten. A detached one (see `detach`) whose
end nobody tells, not even a sample, is over after `DETACHED_MAX_S`: nothing else would ever release it when its server
has left or reports no load.

A gateway that shows us responses tells who serves and with which status as each begins (`answered`). What that says of
a failure counts at once; where no log entry follows it stands for how the request went.

How it went counts for the health of each server that was tried, once. A server that did not serve in the end is judged
by how the attempt at it ended, which Envoy tells by another stream, so before or after the request's own entry. Where
nothing tells that, the server has declined.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from extproc.decision import Completion, Outcome, RejectionReason
from extproc.endpoint import Address
from extproc.pool.member import Member
from extproc.pool.outcome import classify
from extproc.pool.pool import Pool
from extproc.pool.reservation import Reservation

LOG_WAIT_S = 10.0  # Envoy flushes its log every 0.25 s in the shipped configuration
ATTEMPT_WAIT_S = 1.0  # for the end of an attempt, after the end of the request
DETACHED_MAX_S = 7200.0  # 100,000 tokens at 50 ms take 5,000 s
RECENT = 256  # picks kept for people to look at


class Ledger:
    """Reservations by pick id, and counters since start."""

    def __init__(self) -> None:
        self.recent: deque[Reservation] = deque(maxlen=RECENT)
        self.picks: Counter[str] = Counter()  # by pool
        self.panics: Counter[str] = Counter()  # by pool
        self.rejections: Counter[RejectionReason] = Counter()
        self.turned_away: Counter[str] = Counter()  # by pool: requests for which there was no server, or no room
        self.outcomes: Counter[tuple[str, Outcome]] = Counter()  # by pool; counted when the request has ended
        self.moved = 0  # requests that ran on another server than the first choice
        self.served_elsewhere = 0  # by a host that we had not named: Envoy did not follow the pick
        self.unpicked = 0  # requests that Envoy routed without a pick of ours
        self.on_end: Callable[[Reservation], None] | None = None  # told of each whose charge has ended
        self._by_id: dict[str, Reservation] = {}
        self._waiting_for_log: deque[Reservation] = deque()  # by time of their end
        self._detached: OrderedDict[Reservation, None] = OrderedDict()  # open ones, about by time of their pick
        self._retried: OrderedDict[str, _Retried] = OrderedDict()  # ended ones, by pick id and time of their end

    @property
    def open_count(self) -> int:
        return sum(reservation.open for reservation in self._by_id.values())

    def add(self, reservation: Reservation) -> None:
        self._by_id[reservation.pick.pick_id] = reservation
        self.recent.append(reservation)
        self.picks[reservation.pool] += 1
        reservation.member.picked += 1

    def requests(self, pool: str) -> int:
        """That came for it, each once, those that nobody could serve included. One for a model that there is not is
        none: no server more would serve it."""
        return self.picks[pool] + self.turned_away[pool]

    def find(self, pick_id: str) -> Reservation | None:
        """The reservation of a pick; None: forgotten, or not ours."""
        return self._by_id.get(pick_id)

    def stream_ended(self, pick_id: str, now: float) -> None:
        """Our stream of this pick ended; it is over unless it was detached."""
        reservation = self._by_id.get(pick_id)
        if reservation is not None and not reservation.detached:
            self._close(reservation, Outcome.UNKNOWN, now)
            if reservation.left and reservation.completion is not None:
                self._retried[pick_id] = _Retried(reservation, now)
        self._forget_old(now)

    def answered(
        self, pick_id: str, served: Address | None, status: int | None, pools: Iterable[Pool], now: float
    ) -> Reservation | None:
        """A response has begun that passes through us. Returns the reservation it is about; None: it is forgotten.

        Where no access log comes this is all that is ever told: of who served, and how.
        """
        reservation = self._by_id.get(pick_id)
        if reservation is None:
            return None
        told = Completion(pick_id, served, final=False, status=status)
        member = _find(told, pools, reservation)
        if member is not None:
            self.moved += not reservation.left
            reservation.move(member, now)
        reservation.completion = told
        outcome = classify(told)
        if served == reservation.member.address and outcome is not Outcome.OK:  # of OK the end must be awaited
            _judge(reservation, reservation.member, outcome, status, now)
        return reservation

    def end(self, reservation: Reservation, now: float) -> None:
        """It is over, says somebody who knows; how it went is not told by that."""
        self._close(reservation, Outcome.UNKNOWN, now)
        self._forget_old(now)

    def detach(self, pick_id: str) -> None:
        """We end the stream ourselves while the request runs on: only the access log or a sample tells its end."""
        reservation = self._by_id.get(pick_id)
        if reservation is not None:
            reservation.detached = True
            if reservation.open:
                self._detached[reservation] = None

    def presume_ended(self, reservations: Iterable[Reservation], now: float) -> None:
        """A sample shows that these are over (see `Member.observe`)."""
        for reservation in reservations:
            self._close(reservation, Outcome.UNKNOWN, now)

    def complete(self, completion: Completion, pools: Iterable[Pool], now: float) -> Reservation | None:
        """Take in one access log entry. Returns the reservation it was about; None: not one of ours."""
        pick_id = completion.pick_id
        reservation = self._by_id.get(pick_id) if pick_id is not None else None
        if reservation is None and completion.attempt_ended and pick_id is not None:
            retried = self._retried.get(pick_id)
            reservation = None if retried is None else retried.reservation
        if reservation is None:
            # A pick id we do not know is another process's, or was forgotten: not a request without a pick.
            # One that no server served was answered by Envoy or by us.
            self.unpicked += completion.final and pick_id is None and completion.served is not None
            return None
        if completion.attempt_ended:
            self._attempt_ended(completion, pools, reservation, now)
            return reservation
        served = _find(completion, pools, reservation)
        if served is not None and served is not reservation.member:
            self.moved += not reservation.left
            reservation.move(served, now)
        if not completion.final:
            return reservation
        reservation.completion = completion
        if completion.served is not None and not _named(completion, reservation):
            self.served_elsewhere += 1
        outcome = classify(completion)
        self._close(reservation, outcome, now)
        reservation.member.trials.pop(reservation, None)
        self._by_id.pop(reservation.pick.pick_id, None)
        self.outcomes[reservation.pool, outcome] += 1
        if completion.served == reservation.member.address:  # else no server was reached, or one that is not ours
            _judge(reservation, reservation.member, outcome, completion.status, now)
        if completion.attempts > 1:  # else Envoy never tried a server that it left
            self._retried[reservation.pick.pick_id] = _Retried(reservation, now)
        return reservation

    def _attempt_ended(
        self, completion: Completion, pools: Iterable[Pool], reservation: Reservation, now: float
    ) -> None:
        member = _find(completion, pools, reservation) or reservation.member
        outcome = classify(completion)
        if member.address == completion.served and outcome is not Outcome.OK:  # the request's own entry tells that
            _judge(reservation, member, outcome, completion.status, now)

    def _close(self, reservation: Reservation, outcome: Outcome, now: float) -> None:
        if reservation.close(outcome, now):
            if self.on_end is not None:
                self.on_end(reservation)
            self._waiting_for_log.append(reservation)
            if reservation.detached:
                self._detached.pop(reservation, None)

    def _forget_old(self, now: float) -> None:
        ended = self._retried
        while ended and (retried := next(iter(ended.values()))).ended_at_s < now - ATTEMPT_WAIT_S:
            del ended[retried.reservation.pick.pick_id]
            _decline(retried.reservation, now)
        detached = self._detached
        while detached and (oldest := next(iter(detached))).picked_at_s < now - DETACHED_MAX_S:
            self._close(oldest, Outcome.UNKNOWN, now)
        waiting = self._waiting_for_log
        while waiting and (waiting[0].ended_at_s or 0.0) < now - LOG_WAIT_S:
            reservation = waiting.popleft()
            reservation.prompt = None
            reservation.member.trials.pop(reservation, None)
            if self._by_id.pop(reservation.pick.pick_id, None) is not None:
                self._count_unlogged(reservation, now)

    def _count_unlogged(self, reservation: Reservation, now: float) -> None:
        """Of its end only that is known which its response told as it began, if that passed through us."""
        told = reservation.completion
        outcome = Outcome.UNKNOWN if told is None else classify(told)
        reservation.close(outcome, now)
        self.outcomes[reservation.pool, outcome] += 1
        if told is not None and told.served is not None:
            self.served_elsewhere += not _named(told, reservation)
            if told.served == reservation.member.address:
                _judge(reservation, reservation.member, outcome, told.status, now)


@dataclass(frozen=True, slots=True)
class _Retried:
    """A request that took several attempts. How the failed ones ended may be told yet."""

    reservation: Reservation
    ended_at_s: float  # as told by its own entry


def _judge(reservation: Reservation, member: Member, outcome: Outcome, status: int | None, now: float) -> None:
    """Let it count for the server's health how it went there."""
    health, sent_at_s = member.health, reservation.picked_at_s
    if outcome is Outcome.OK:
        if (status or 0) < 400:  # a 4xx says nothing: a broken engine can still refuse politely
            health.request_ok(sent_at_s)
    elif outcome in (Outcome.FAILED, Outcome.BACKPRESSURE) and member not in reservation.judged:
        reservation.judged += (member,)
        if outcome is Outcome.FAILED:
            health.request_fault(now, sent_at_s)
        else:
            health.request_full(now)


def _decline(reservation: Reservation, now: float) -> None:
    """Others had to serve what these were tried with, and nothing told why."""
    for member in dict.fromkeys(reservation.left):
        if member is not reservation.member and member not in reservation.judged:
            reservation.judged += (member,)
            member.health.request_declined(now)


def _named(completion: Completion, reservation: Reservation) -> bool:
    pick = reservation.pick
    return completion.served == pick.address or completion.served in pick.fallbacks


def _find(completion: Completion, pools: Iterable[Pool], reservation: Reservation) -> Member | None:
    """The member that served; None when no server was reached or it is not one that we know."""
    if completion.served is None or completion.served == reservation.member.address:
        return None
    for pool in sorted(pools, key=lambda pool: pool.name != reservation.pool):  # a server can be in several pools
        member = pool.member(completion.served)
        if member is not None:
            return member
    return None
