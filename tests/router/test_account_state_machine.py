"""Any order of events ends with in-flight back at zero, and it is never negative on the way."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.decision import Completion, Pick
from extproc.endpoint import Address
from extproc.pool.ledger import DETACHED_MAX_S, LOG_WAIT_S
from extproc.pool.member import Member
from extproc.request import RawRequest, Route
from tests.support.fleet import address, endpoint, pool, router, sample

NUMBERS = st.integers(1, 5)
STRANGER = Address.of("10.9.9.9", 8000)
FLAGS = st.sampled_from([(), ("upstream_remote_reset",), ("downstream_remote_reset",)])


class Account(RuleBasedStateMachine):
    """A small fleet whose members come and go under requests that end in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = pool(3)
        self.router = router(self.pool, pool(2, "other"))
        self.open: dict[str, Pick] = {}  # streams that have not ended
        self.picks: list[Pick] = []
        self.detached: set[str] = set()
        self.members: dict[int, Member] = {}  # every member object that ever was, by identity
        self.remember()

    def remember(self) -> None:
        for each in self.router.pools:
            self.members.update((id(member), member) for member in each.members)

    @rule(to=st.sampled_from([None, "vllm", "other"]), close_early=st.booleans())
    def route(self, to: str | None, close_early: bool) -> None:
        decision = self.router.route(RawRequest(route=Route(to)), self.now)
        if isinstance(decision, Pick):
            self.picks.append(decision)
            if close_early:
                self.router.detach(decision.pick_id)
                self.router.stream_ended(decision.pick_id, self.now)
                self.detached.add(decision.pick_id)
            else:
                self.open[decision.pick_id] = decision

    @precondition(lambda self: self.open)
    @rule(data=st.data(), times=st.integers(1, 2))
    def stream_ends(self, data: st.DataObject, times: int) -> None:
        pick_id = data.draw(st.sampled_from(list(self.open)))
        del self.open[pick_id]
        for _ in range(times):
            self.router.stream_ended(pick_id, self.now)

    @rule(
        data=st.data(),
        served=st.one_of(st.none(), NUMBERS.map(address), st.just(STRANGER)),
        final=st.booleans(),
        status=st.sampled_from([None, 200, 400, 500, 503]),
        flags=FLAGS,
        attempts=st.integers(1, 3),
        attempt_ended=st.booleans(),
        times=st.integers(1, 2),
    )
    def access_log(
        self,
        data: st.DataObject,
        served: Address | None,
        final: bool,
        status: int | None,
        flags: tuple[str, ...],
        attempts: int,
        attempt_ended: bool,
        times: int,
    ) -> None:
        known = [pick.pick_id for pick in self.picks]
        pick_id = data.draw(st.sampled_from([None, "not-ours", *known[-20:]]))
        for _ in range(times):
            told = Completion(
                pick_id, served, final, status, flags, attempts=attempts, attempt_ended=attempt_ended and not final
            )
            self.router.complete(told, self.now)

    @rule(number=NUMBERS, running=st.integers(0, 3), known=st.booleans(), ago_s=st.sampled_from([0.0, 0.3, 5.0]))
    def scrape(self, number: int, running: int, known: bool, ago_s: float) -> None:
        load = sample(self.now - ago_s, running=float(running) if known else None)
        self.router.observe("vllm", address(number), load, self.now)

    @rule(number=NUMBERS, refused=st.booleans())
    def scrape_fails(self, number: int, refused: bool) -> None:
        self.pool.scrape_failed(address(number), "x", self.now, answered=False, refused=refused)

    @rule(numbers=st.sets(NUMBERS), drained=st.booleans())
    def membership(self, numbers: set[int], drained: bool) -> None:
        self.pool.set_endpoints(endpoint(number, drained=drained and number == 1) for number in sorted(numbers))
        self.remember()

    @rule(by_s=st.sampled_from([0.05, 1.0, LOG_WAIT_S + 1]))
    def time_passes(self, by_s: float) -> None:
        self.now += by_s

    @invariant()
    def charges_are_those_of_open_reservations_and_of_nobody_else(self) -> None:
        total = sum(member.in_flight for member in self.members.values())
        assert total == self.router.ledger.open_count
        assert total <= len(self.open) + len(self.detached)
        assert all(0 <= member.unseen <= member.in_flight for member in self.members.values())
        assert self.pool.leaving == tuple(member for member in self.pool.leaving if member.gone and member.in_flight)

    @invariant()
    def what_is_remembered_of_all_is_so_of_each(self) -> None:
        ready = [each.health.sound and each.out is None for each in self.pool.members]
        assert self.pool.all_ready == all(ready)

    def teardown(self) -> None:
        for pick_id in list(self.open):
            self.router.stream_ended(pick_id, self.now)
        for pick_id in sorted(self.detached):
            if pick_id != min(self.detached):  # one whose end nobody ever tells
                self.router.complete(Completion(pick_id, None, status=200), self.now)
        self.now += DETACHED_MAX_S + 1
        self.router.stream_ended("tick", self.now)
        self.now += LOG_WAIT_S + 1
        self.router.stream_ended("tick", self.now)
        assert [member.in_flight for member in self.members.values() if member.in_flight] == []
        assert self.pool.leaving == ()
        assert not any(member.trials for member in self.members.values())
        ledger = self.router.ledger
        assert ledger.open_count == 0
        assert ledger.outcomes.total() == ledger.picks.total() == len(self.picks), "each pick has one outcome"


TestAccount = Account.TestCase
TestAccount.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
