"""What do we know of one server right now?"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from extproc.endpoint import Address, Endpoint
from extproc.pool.begun import BeginRate
from extproc.pool.drain import By, Drain
from extproc.pool.health import Health
from extproc.pool.prefill import PrefillQueue
from extproc.pool.sample import LoadSample
from extproc.pool.token_interval import TokenInterval
from extproc.pool.warm_up import Company, WarmUp

if TYPE_CHECKING:
    from extproc.pool.reservation import Reservation

# A request sent this shortly before a scrape may not have reached the engine's gauges yet: the way through Envoy,
# HTTP parsing and tokenising takes milliseconds (3 to 22 ms to the response headers were seen), the gauges are
# written once an engine step.
SETTLE_S = 0.1

# A request whose stream we closed early is not presumed ended by a sample before this age. Its server may lack it
# because a retry runs it elsewhere, which the access log tells after the back-off and a flush (0.25 s each as shipped).
PRESUME_AFTER_S = 1.0


# From this usage on a request may find no room: prompts of some thousands of tokens take a few percent of a cache of
# some hundred thousand.
KV_TIGHT_RATIO = 0.9
# At a full cache a request waits until another ends; those that run have, on average, half of their time left.
KV_FULL_WAIT_S = 5.0


def kv_wait_s(usage_ratio: float | None) -> float:
    """What to expect a request to wait for KV blocks: 0 while it fits, then ever steeper; unknown counts as 0."""
    if usage_ratio is None or usage_ratio <= KV_TIGHT_RATIO:
        return 0.0
    return KV_FULL_WAIT_S * ((usage_ratio - KV_TIGHT_RATIO) / (1.0 - KV_TIGHT_RATIO)) ** 2


# As scheduling.candidate has it, where each is explained.
Standing = tuple[int, float, float, float, float, float, float, float, float]


class State(StrEnum):
    """Whether an endpoint may be picked, in one word."""

    STARTING = "starting"  # never seen to serve
    READY = "ready"
    RETURNING = "returning"  # after errors in a row; gets few requests until it has answered some
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"  # gets no new requests; those that run there are waited for
    DRAINED = "drained"  # gets no new requests, and none runs there: it is safe to stop
    EXPIRED = "expired"  # gets no new requests; the deadline passed before those that ran there had ended
    GONE = "gone"  # left the pool; its running requests are still counted


class Member:
    """One server in a pool, and everything counted of it. A server that leaves and comes back is a new Member."""

    __slots__ = (
        "_begun",
        "_company",
        "_open",
        "_unseen",
        "drain",
        "endpoint",
        "gone",
        "health",
        "in_flight",
        "kv_penalty_s",
        "kv_usage_ratio",
        "last_resort",
        "load",
        "models",
        "models_at_s",
        "models_error",
        "out",
        "picked",
        "prefill",
        "reported",
        "sample",
        "slot",
        "stale_after_s",
        "standing",
        "start_s",
        "token_interval",
        "told_models",
        "trials",
        "unseen",
        "usable_until_s",
        "waiting",
        "warm_up",
    )

    def __init__(
        self, endpoint: Endpoint, *, stale_after_s: float, probed: bool = False, company: Company | None = None
    ) -> None:
        """`probed`: somebody asks for its /health; see `Health`. `company`: see `WarmUp`."""
        self.endpoint = endpoint
        self.stale_after_s = stale_after_s
        self._company = company
        self.health = Health(probed=probed, tell=None if company is None else company.changed)
        self.sample: LoadSample | None = None  # the last one, however old; None: none yet
        # What every pick looks at, kept where it costs least to read:
        self.waiting: float | None = None  # of the last sample
        self.kv_usage_ratio: float | None = None  # of the last sample
        self.usable_until_s = float("-inf")  # the last sample is believed until then
        self.reported = 0.0  # requests running or waiting there, by the last sample
        self.kv_penalty_s = 0.0  # what a request has to wait for blocks, by the last sample; see `kv_wait_s`
        self.prefill = PrefillQueue()
        self.slot = -1  # the router's number for it in the prefix index; -1: none yet
        self.picked = 0  # requests picked for it, since it is a member
        self.in_flight = 0  # requests picked for this server and not ended
        self.unseen = 0  # of those, the ones that the last sample cannot have counted
        self.gone = False
        self.drain: Drain | None = None  # None: nobody asks for one
        self.out: str | None = None  # why it gets no new requests, by what somebody wishes; None: nobody does
        self.last_resort = False  # it is out, and may all the same be used when nothing else is left
        self.load = 0.0  # in flight, by weight
        self.standing: Standing  # what a cost in seconds goes by
        # Sent since it was ejected, and how they went is not known: a server that fails fast has none in flight.
        self.trials: dict[Reservation, None] = {}  # in the order they were made
        self.told_models: frozenset[str] | None = None  # what it last said that it serves; None: not known (any more)
        self.models_at_s = float("-inf")  # when it was asked for that; later changes may not be in it
        self.models_error: str | None = None  # of the last question; None: it was answered, or there was none
        self.models: frozenset[str] | None = None  # that, or else what the operator says; None: not known
        self.token_interval = TokenInterval()
        self.warm_up = WarmUp(company)
        self.start_s: float | None = None  # it took so long to start; None: that was not seen
        self._begun = BeginRate()
        self._open: dict[Reservation, None] = {}  # in the order they were made
        self._unseen: dict[Reservation, None] = {}  # made too late to be in `sample`
        self.heed_endpoint()
        self.restand()

    @property
    def address(self) -> Address:
        return self.endpoint.address

    @property
    def begun_per_s(self) -> float | None:
        """Requests it began a second, lately; None: its samples do not tell."""
        return self._begun.per_s

    @property
    def open(self) -> Iterable[Reservation]:
        """The requests in flight, in the order they were sent here."""
        return self._open

    def fresh_sample(self, now: float) -> LoadSample | None:
        """The last sample while it can be believed; None: nothing is known of the load."""
        return self.sample if now <= self.usable_until_s else None

    def state(self, now: float) -> State:
        if self.gone:
            return State.GONE
        if self.drain is not None:
            return State(self.drain.phase)
        if self.health.problem(now) is not None:
            return State.UNHEALTHY
        if self.health.bound(now) is not None:
            return State.RETURNING
        return State.READY if self.health.reached else State.STARTING

    def problem(self, now: float) -> str | None:
        """Why it should get nothing now; None: it may. As its health says, and while it returns: enough is out."""
        problem = self.health.problem(now)
        bound = None if problem is not None else self.health.bound(now)
        if bound is None:
            return problem
        since_s, count = self.health.ejected_until_s, 0
        for reservation in reversed(self.trials):  # the last sent first
            if reservation.charged_at_s < since_s or count == bound:
                break
            count += 1
        return f"returning: {count} of {bound} in flight" if count == bound else None

    def ask_drain(self, by: By, now: float | None, deadline_s: float | None = None) -> Drain:
        """Begin a drain, or ask for the one that there is; see `Drain`. `now` None: with the next look at the clock."""
        if self.drain is None:
            self.drain = Drain(by, started_s=now, deadline_s=deadline_s)
        else:
            self.drain.ask(by, float("-inf") if now is None else now, deadline_s)
        self._drain_changed()
        return self.drain

    def take_up(self, drain: Drain) -> None:
        """Have this drain, in the place of the one that there may be."""
        self.drain = drain
        self._drain_changed()

    def withdraw_drain(self, *by: By) -> Drain | None:
        """These ask no more. Returns the drain that this ends; None: none, for others ask, or nobody did."""
        drain = self.drain
        if drain is None:
            return None
        over = drain.withdraw(*by)
        if over:
            self.drain = None
        self._drain_changed()
        return drain if over else None

    def heed_endpoint(self) -> Drain | None:
        """Bring the drain in line with what the endpoint's options say. Returns the drain that this ends."""
        over = None
        for wished, by in ((self.endpoint.drained, By.CONFIG), (self.endpoint.leaving, By.PLATFORM)):
            if wished:
                self.ask_drain(by, None)
        for wished, by in ((self.endpoint.drained, By.CONFIG), (self.endpoint.leaving, By.PLATFORM)):
            if not wished:
                over = self.withdraw_drain(by) or over
        return over

    def _drain_changed(self) -> None:
        if self._company is not None:
            self._company.changed()
        self.out = None if self.drain is None else self.drain.words
        self.last_resort = self.drain is not None and self.drain.last_resort

    def introduce(self, slot: int, rate: float | None) -> None:
        """Give it the router's number, and the prefill rate to expect of it (tokens/s; None: nobody knows better)."""
        self.slot = slot
        if rate is not None:
            self.prefill.expect(rate)
        self.restand()

    def restand(self) -> None:
        """Bring `load` and `standing` up to date with what they are made of."""
        weight, prefill = self.endpoint.weight, self.prefill
        known = self.reported + self.unseen
        self.load = load = self.in_flight / weight
        self.standing = (
            self.slot,
            prefill.clear_at_s,
            prefill.token_s,
            prefill.requests_per_s,
            prefill.bound_per_s * 0.5,
            self.kv_penalty_s,
            known / weight if known > self.in_flight else load,
            load,
            self.usable_until_s,
        )

    def judge_models(self) -> bool:
        """Bring `models` in line with what was told; true when that changes it. The server's own word counts first."""
        before = self.models
        said = frozenset(self.endpoint.models) or None
        self.models = said if self.told_models is None else self.told_models
        return self.models != before

    def charge(self, reservation: Reservation) -> None:
        self._open[reservation] = None
        self._unseen[reservation] = None
        self.in_flight += 1
        self.unseen += 1
        if self.health.allowance is not None:
            self.trials[reservation] = None
        if self.warm_up.warming:
            self._hold()
        self.restand()

    def discharge(self, reservation: Reservation) -> None:
        self._open.pop(reservation, None)
        self._unseen.pop(reservation, None)
        self.in_flight = len(self._open)
        self.unseen = len(self._unseen)
        if self.warm_up.warming:
            self.warm_up.ended()
            self._hold()
        self.restand()

    def _hold(self) -> None:
        most = self.warm_up.most
        self.health.hold(most is not None and self.in_flight >= most)

    def observe(self, sample: LoadSample) -> list[Reservation]:
        """Take in a sample. Returns the reservations that it shows to have ended although nobody told us.

        That concerns only those whose stream we closed early and whose log entry never came: when the server says it
        has fewer requests than we count as long sent, the oldest of them are over.
        """
        self.sample = sample
        self.waiting, self.kv_usage_ratio = sample.waiting, sample.kv_usage_ratio
        self.usable_until_s = sample.taken_at_s + self.stale_after_s if sample.usable else float("-inf")
        self.reported = (sample.running or 0.0) + (sample.waiting or 0.0)
        self.kv_penalty_s = kv_wait_s(sample.kv_usage_ratio)
        self.prefill.observe(sample)
        self._begun.observe(sample)
        self.token_interval.observe(sample)
        self.warm_up.observe(sample)
        self._hold()
        self.health.scrape_worked(sample.taken_at_s, asleep=bool(sample.sleeping), usable=sample.usable)
        settled_s = sample.taken_at_s - SETTLE_S
        while self._unseen:
            oldest = next(iter(self._unseen))
            if oldest.charged_at_s > settled_s:
                break
            del self._unseen[oldest]
        self.unseen = len(self._unseen)
        if self.drain is not None:
            self.drain.observe(sample, self.in_flight)
        self.restand()
        if sample.running is None or sample.waiting is None:
            return []
        excess = len(self._open) - len(self._unseen) - int(sample.running + sample.waiting)
        if excess <= 0:
            return []
        presumable_s = sample.taken_at_s - PRESUME_AFTER_S
        return [r for r in self._open if r.detached and r.charged_at_s <= presumable_s][:excess]
