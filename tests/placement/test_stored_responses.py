"""A request that names a stored response goes to the server that has it."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.decision import Pick
from extproc.request import RawRequest
from extproc.router import Router
from tests.placement.fleet import fleet, number_of, page, say, send, serve, set_members
from tests.support.fleet import address, ended

RESPONSES = "/v1/responses"


def turn(previous: str | None = None, **fields: object) -> RawRequest:
    """A Responses request with a small input."""
    body = {"model": "m", "input": "and then?", **fields}
    if previous is not None:
        body["previous_response_id"] = previous
    return RawRequest("POST", RESPONSES, {}, json.dumps(body).encode())


def answered(by: Router, pick: Pick, response_id: str, now: float = 0.0) -> None:
    """Its server's answer passes, and the request ends."""
    by.response_began(pick.pick_id, json.dumps({"id": response_id, "object": "response"}).encode(), now)
    by.stream_ended(pick.pick_id, now)


def crowd(of: Router, number: int, now: float = 0.0) -> None:
    say(of, number, page(now, waiting=50.0, running=100.0))


@pytest.mark.parametrize("profile", ["session", "prefix-hash", "cache-aware"])
def test_the_next_turn_goes_to_the_server_whose_answer_it_continues(profile: str) -> None:
    """case c15: turn 2 elsewhere gives "not found". However busy that server is, it alone can answer."""
    router = fleet(profile, 8)
    first = send(router, turn())
    answered(router, first, "resp_1")
    crowd(router, number_of(first))
    second = send(router, turn("resp_1"))
    assert number_of(second) == number_of(first)
    assert len(second.fallbacks) == 2
    assert second.address not in second.fallbacks
    answered(router, second, "resp_2")
    assert serve(router, turn("resp_2")) == number_of(first)
    assert serve(router, turn("resp_1")) == number_of(first), "an older turn may be continued again"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1?stream=true"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ],
)
def test_what_asks_for_a_response_by_its_path_goes_to_the_server_that_has_it(method: str, path: str) -> None:
    """case c15"""
    router = fleet("cache-aware", 8)
    first = send(router, turn())
    answered(router, first, "resp_1")
    crowd(router, number_of(first))
    assert serve(router, RawRequest(method, path)) == number_of(first)


def test_an_id_that_the_client_chose_is_known_before_there_is_an_answer() -> None:
    """vLLM takes `request_id` for it. This needs no look at the response."""
    router = fleet("cache-aware", 8)
    first = serve(router, turn(request_id="resp_mine"))
    crowd(router, first)
    assert serve(router, turn("resp_mine")) == first


def test_nothing_is_kept_of_what_the_server_shall_not_store() -> None:
    router = fleet("cache-aware", 4)
    pick = send(router, turn(request_id="resp_mine", store=False))
    assert not pick.stores
    assert len(router.placements["vllm"].stored) == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/brand/new", ""])
def test_only_the_responses_api_stores_and_asks(path: str) -> None:
    router = fleet("cache-aware", 4)
    serve(router, turn(request_id="resp_1"))
    raw = RawRequest("POST", path, {}, turn("resp_1", request_id="resp_2").body)
    explained = router.explain(raw, 0.0)
    assert explained.by != "stored"
    assert not send(router, raw).stores
    assert len(router.placements["vllm"].stored) == 1


def test_unknown_ids_go_by_load() -> None:
    """case c15"""
    router = fleet("cache-aware", 4)
    crowd(router, 1)
    assert {serve(router, turn(f"resp_{n}")) for n in range(40)} <= {2, 3, 4}
    assert len(router.placements["vllm"].stored) == 0, "where an unknown one went does not make it known"


def test_a_server_that_may_not_be_picked_is_not_and_keeps_the_id_for_later() -> None:
    router = fleet("cache-aware", 3)
    home = serve(router, turn(request_id="resp_1"))
    others = frozenset(str(address(n)) for n in (1, 2, 3) if n != home)
    raw = turn("resp_1")
    elsewhere = RawRequest(raw.method, raw.path, {}, raw.body, subset=others)
    assert serve(router, elsewhere) != home
    assert serve(router, raw) == home


def test_a_server_that_left_or_began_anew_has_no_responses() -> None:
    router = fleet("cache-aware", 3)
    home = serve(router, turn(request_id="resp_1"))
    say(router, home, page(1.0, process_start_s=5.0))
    assert router.explain(turn("resp_1"), 1.0).by == "stored"
    say(router, home, page(2.0, process_start_s=9.0))
    assert router.explain(turn("resp_1"), 2.0).by != "stored"
    away = serve(router, turn(request_id="resp_2"), 2.0)
    set_members(router, [n for n in (1, 2, 3) if n != away])
    set_members(router, [1, 2, 3])
    assert router.explain(turn("resp_2"), 2.0).by != "stored"
    assert len(router.placements["vllm"].stored) == 0


def test_after_a_retry_the_server_that_answered_has_it() -> None:
    router = fleet("cache-aware", 4)
    pick = send(router, turn(request_id="resp_1"))
    router.complete(ended(pick, served=pick.fallbacks[0], attempts=2), 0.5)
    router.stream_ended(pick.pick_id, 0.5)
    followed = send(router, turn("resp_1"), 1.0)
    assert followed.address == pick.fallbacks[0]


def test_an_id_in_use_is_not_forgotten() -> None:
    router = fleet("cache-aware", 4)
    home = serve(router, turn(request_id="resp_1"))
    for hours in (20, 40, 60):
        assert serve(router, turn("resp_1"), hours * 3600.0) == home
    assert router.explain(turn("resp_1"), 90 * 3600.0).by != "stored"


def test_the_explanation_says_so_without_the_id() -> None:
    router = fleet("cache-aware", 3)
    home = serve(router, turn(request_id="resp_secret"))
    explained = router.explain(turn("resp_secret"), 0.0)
    assert explained.by == "stored"
    assert explained.why == f"10.0.0.{home}:8000: has the stored response that the request names"
    assert [row.rank for row in explained.endpoints] == [1, 2, 3]
    assert all(row.expected_s is not None for row in explained.endpoints), "the fallbacks are in order of their cost"
    assert "secret" not in repr(explained)
    assert explained.endpoints[0].address == explained.chosen


def test_bodies_that_are_not_read_tell_nothing() -> None:
    """`least-loaded` reads none: there is no key to a stored response."""
    router = fleet("least-loaded", 4)
    home = serve(router, turn(request_id="resp_1"))
    crowd(router, home)
    assert serve(router, turn("resp_1")) != home


@pytest.mark.parametrize("long", ["x" * 257, "é" * 100_000])
def test_a_long_name_of_a_clients_is_not_remembered(long: str) -> None:
    router = fleet("cache-aware", 4)
    serve(router, turn(request_id=long))
    assert len(router.placements["vllm"].stored) == 0


class Chains(RuleBasedStateMachine):
    """Conversations over a fleet whose servers come, go and fill up."""

    def __init__(self) -> None:
        super().__init__()
        self.router = fleet("cache-aware", 3)
        self.rng = Random(3)
        self.now = 1.0
        self.made = 0
        self.homes: dict[str, object] = {}  # members by the ids they have

    @rule(previous=st.integers(0, 30), own=st.booleans())
    def turn(self, previous: int, own: bool) -> None:
        self.made += 1
        mine, asked = f"resp_{self.made}", f"resp_{previous}"
        pick = send(self.router, turn(asked, request_id=mine) if own else turn(asked), self.now)
        member = self.router.pools[0].member(pick.address)
        home = self.homes.get(asked)
        if home is not None and home in self.router.pools[0].members:
            assert member is home
        if own:
            self.router.stream_ended(pick.pick_id, self.now)
        else:
            answered(self.router, pick, mine, self.now)
        self.homes[mine] = member

    @rule(numbers=st.sets(st.integers(1, 4), min_size=1))
    def membership(self, numbers: set[int]) -> None:
        set_members(self.router, sorted(numbers))

    @rule(number=st.integers(1, 4), waiting=st.sampled_from([0.0, 60.0]))
    def load(self, number: int, waiting: float) -> None:
        say(self.router, number, page(self.now, waiting=waiting))

    @rule()
    def time_passes(self) -> None:
        self.now += 1.0

    @invariant()
    def who_left_is_never_named(self) -> None:
        stored, members = self.router.placements["vllm"].stored, self.router.pools[0].members
        for name in self.homes:
            assert stored.who(name, self.now) in (None, *members)


TestChains = Chains.TestCase
TestChains.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
