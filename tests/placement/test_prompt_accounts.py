"""Any order of events ends with nothing in flight and nothing owed, and neither is ever negative or no number."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.decision import Completion, Pick
from extproc.endpoint import Address
from extproc.pool.ledger import DETACHED_MAX_S, LOG_WAIT_S
from extproc.pool.member import Member
from extproc.pool.prefill import MAX_RATE, MIN_RATE
from tests.placement.fleet import chat, fleet, page, say, set_members, text, ttft
from tests.support.fleet import address

NUMBERS = st.integers(1, 4)
SAID = [(10, "a", None), (300, "b", "s"), (300, "c", None), (3000, "d", "t"), (3100, "d", "t"), (20_000, "e", None)]
PROMPTS = [chat(text(tokens, name), session=session) for tokens, name, session in SAID]


class Prompts(RuleBasedStateMachine):
    """A small fleet placed by expected first token, whose pages may say anything."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.router = fleet("cache-aware", 3, max_blocks=200)
        self.open: list[str] = []
        self.picks: list[Pick] = []
        self.detached: set[str] = set()
        self.members: dict[int, Member] = {}
        self.remember()

    def remember(self) -> None:
        self.members.update((id(member), member) for member in self.router.pools[0].members)

    @rule(raw=st.sampled_from(PROMPTS), close_early=st.booleans())
    def route(self, raw: object, close_early: bool) -> None:
        decision = self.router.route(raw, self.now)  # type: ignore[arg-type]
        if isinstance(decision, Pick):
            self.picks.append(decision)
            if close_early:
                self.router.detach(decision.pick_id)
                self.detached.add(decision.pick_id)
                self.router.stream_ended(decision.pick_id, self.now)
            else:
                self.open.append(decision.pick_id)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def stream_ends(self, data: st.DataObject) -> None:
        pick_id = data.draw(st.sampled_from(self.open))
        self.open.remove(pick_id)
        self.router.stream_ended(pick_id, self.now)

    @precondition(lambda self: self.picks)
    @rule(
        data=st.data(),
        served=st.one_of(st.none(), NUMBERS.map(address)),
        final=st.booleans(),
        status=st.sampled_from([None, 200, 500]),
        attempts=st.integers(1, 2),
    )
    def log(self, data: st.DataObject, served: Address | None, final: bool, status: int | None, attempts: int) -> None:
        pick = data.draw(st.sampled_from(self.picks[-10:]))
        self.router.complete(Completion(pick.pick_id, served, final, status, attempts=attempts), self.now)

    @rule(
        number=NUMBERS,
        ago_s=st.sampled_from([0.0, 0.2, 4.0]),
        running=st.sampled_from([None, 0.0, 1.0, 5.0]),
        waiting=st.sampled_from([None, 0.0, 1.0, 50.0]),
        first_tokens=st.sampled_from([None, 0.0, 1.0, 2.0, 3.0, 1000.0]),
        sum_s=st.sampled_from([0.0, 0.5, 1e6]),
        prompt_tokens=st.sampled_from([None, 0.0, 1e4, 1e9]),
        sleeping=st.sampled_from([None, False, True]),
        kv_blocks=st.sampled_from([None, 0, 10, 1000]),
        generation_tokens=st.sampled_from([None, 0.0, 500.0, 1e7]),
    )
    def scrape(self, number: int, ago_s: float, first_tokens: float | None, sum_s: float, **told: object) -> None:
        histogram = None if first_tokens is None else ttft(first_tokens, sum_s)
        say(self.router, number, page(self.now - ago_s, ttft=histogram, block_size_tokens=16, engines=1, **told))

    @rule(numbers=st.sets(NUMBERS))
    def membership(self, numbers: set[int]) -> None:
        set_members(self.router, sorted(numbers))
        self.remember()

    @rule(by_s=st.sampled_from([0.01, 0.3, 2.0, LOG_WAIT_S + 1]))
    def time_passes(self, by_s: float) -> None:
        self.now += by_s

    @invariant()
    def nothing_is_owed_but_for_open_requests_and_what_waits_there(self) -> None:
        for member in self.members.values():
            owed = member.prefill.owed(self.now)
            assert math.isfinite(owed)
            assert owed >= 0
            assert MIN_RATE <= member.prefill.rate <= MAX_RATE
            if not member.in_flight:
                assert owed <= member.prefill.foreign
        assert sum(member.in_flight for member in self.members.values()) == self.router.ledger.open_count

    @invariant()
    def the_index_stays_within_its_bound(self) -> None:
        assert self.router.placements["vllm"].index.stats().blocks <= 200

    def teardown(self) -> None:
        for pick_id in self.open:
            self.router.stream_ended(pick_id, self.now)
        for wait_s in (DETACHED_MAX_S, LOG_WAIT_S):
            self.now += wait_s + 1
            self.router.stream_ended("tick", self.now)
        for member in self.members.values():
            assert member.in_flight == 0
            member.prefill.observe(page(self.now))
            assert member.prefill.owed(self.now) == 0
        assert self.router.ledger.open_count == 0


TestPrompts = Prompts.TestCase
TestPrompts.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
