"""Whatever happens in whatever order: a draining server gets no request, and each drain comes to an end."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.decision import Pick
from extproc.endpoint import Address
from extproc.pool.drain import By, Phase
from extproc.pool.drains import Change
from extproc.pool.member import Member
from extproc.request import RawRequest
from tests.support.fleet import address, endpoint, pool, router, sample

NUMBERS = st.integers(1, 4)
SIZE = 4


class Drains(RuleBasedStateMachine):
    """A small fleet whose servers are drained by everybody, under requests that begin and end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = pool(SIZE)
        self.router = router(self.pool)
        self.open: list[str] = []

    def member_of(self, number: int) -> Member | None:
        return self.pool.member(address(number))

    def firmly_out(self) -> set[Address]:
        """Drained by the operator, over the API or in the configuration."""
        firm = {By.OPERATOR, By.CONFIG}
        return {m.address for m in self.pool.members if m.drain is not None and m.drain.asked & firm}

    @rule()
    def route(self) -> None:
        decision = self.router.route(RawRequest(), self.now)
        out = {m.address for m in self.pool.members if m.drain is not None}
        if not isinstance(decision, Pick):
            assert self.firmly_out() == {m.address for m in self.pool.members}
            return
        self.open.append(decision.pick_id)
        named = {decision.address, *decision.fallbacks}
        assert not named & self.firmly_out()
        healthy = {m.address for m in self.pool.members if m.address not in out and m.health.sound}
        if healthy:
            assert not named & out, "the leaving ones serve only when no other can"

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def stream_ends(self, data: st.DataObject) -> None:
        self.router.stream_ended(self.open.pop(data.draw(st.integers(0, len(self.open) - 1))), self.now)

    @rule(number=NUMBERS, running=st.integers(0, 2))
    def scrape(self, number: int, running: int) -> None:
        self.router.observe("vllm", address(number), sample(self.now, running=float(running)), self.now)

    @rule(number=NUMBERS)
    def refused(self, number: int) -> None:
        self.pool.scrape_failed(address(number), "x", self.now, answered=False, refused=True)

    @rule(number=NUMBERS, by=st.sampled_from([By.OPERATOR, By.SELF]), for_s=st.sampled_from([None, 0.0, 2.0, 50.0]))
    def drain(self, number: int, by: By, for_s: float | None) -> None:
        member = self.member_of(number)
        if member is not None:
            self.pool.drains.ask(member, by, self.now, None if for_s is None else self.now + for_s)

    @rule(number=NUMBERS)
    def undrain(self, number: int) -> None:
        member = self.member_of(number)
        if member is not None:
            self.pool.drains.cancel(member, self.now, By.OPERATOR, By.SELF)

    @rule(numbers=st.sets(NUMBERS), drained=NUMBERS, leaving=NUMBERS, uid=st.sampled_from([None, "b"]))
    def membership(self, numbers: set[int], drained: int, leaving: int, uid: str | None) -> None:
        self.pool.set_endpoints(
            replace(endpoint(n, drained=n == drained), leaving=n == leaving, uid=uid if n == 1 else None)
            for n in sorted(numbers)
        )

    @rule(by_s=st.sampled_from([0.1, 1.0, 10.0]))
    def time_passes(self, by_s: float) -> None:
        self.now += by_s
        self.pool.drains.tick(self.now)

    @invariant()
    def each_drain_is_counted_once_and_drained_means_nothing_was_in_flight(self) -> None:
        drains = self.pool.drains
        going_on = sum(m.drain is not None and m.drain.phase is Phase.DRAINING for m in drains.members)
        ended = sum(drains.ended.values())
        assert ended <= drains.started <= ended + going_on
        for event in drains.events:
            if event.change is Change.DRAINED:
                assert event.in_flight == 0
        drains.events.clear()

    def teardown(self) -> None:
        for pick_id in self.open:
            self.router.stream_ended(pick_id, self.now)
        for _ in range(4):
            self.now += 1.0
            self.pool.drains.tick(self.now)
            for member in self.pool.members:
                self.router.observe("vllm", member.address, sample(self.now), self.now)
        self.pool.drains.tick(self.now)
        assert all(m.drain is None or m.drain.phase is not Phase.DRAINING for m in self.pool.members)
        assert self.pool.drains.started == sum(self.pool.drains.ended.values())


TestDrains = Drains.TestCase
TestDrains.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
