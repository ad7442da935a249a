"""What processes tell each other of requests, over a network that may do anything."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.affinity.conversations import number_of
from extproc.decision import Completion, Outcome, Pick
from extproc.endpoint import Endpoint
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.workers.messages import (
    Answered,
    Census,
    Completed,
    Ended,
    Message,
    Picked,
    Stored,
    Taught,
    decode,
    encode,
)
from extproc.workers.sharing import WINDOW, Numbers, Sharing
from tests.support.fleet import STALE_AFTER_S, address

PATH = "/v1/chat/completions"


class Process:
    """A router and its sharing."""

    def __init__(self, number: int, servers: int = 3, *, keep_taught: bool = False) -> None:
        self.pool = Pool("vllm", stale_after_s=STALE_AFTER_S)
        self.pool.set_endpoints(Endpoint(address(n)) for n in range(1, servers + 1))
        plan = PoolPlan(self.pool, PROFILES["cache-aware"], 2)
        self.router = Router([plan], rng=Random(number), id_prefix=f"{number:02x}-")
        self.sharing = Sharing(self.router, keep_taught=keep_taught)
        self.open: list[Pick] = []
        self.say_idle(0.0)

    def say_idle(self, at_s: float) -> None:
        for member in self.pool.members:
            sample = LoadSample(at_s, running=0.0, waiting=0.0, kv_usage_ratio=0.0)
            self.router.observe("vllm", member.address, sample, at_s)

    def pick(self, prompt: str, now: float, **fields: Any) -> Pick:
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}], **fields}
        pick = self.router.route(RawRequest("POST", PATH, {}, json.dumps(body).encode()), now)
        assert isinstance(pick, Pick)
        self.open.append(pick)
        return pick

    def end(self, pick: Pick, now: float) -> None:
        self.open.remove(pick)
        self.router.stream_ended(pick.pick_id, now)

    def take(self) -> list[Message]:
        """As it arrives: through bytes."""
        return decode(encode(self.sharing.take()))

    def census(self) -> list[Message]:
        return decode(encode(self.sharing.census()))

    @property
    def in_flight(self) -> dict[str, int]:
        return {str(member.address): member.in_flight for member in self.pool.members}

    @property
    def open_count(self) -> int:
        return sum(self.in_flight.values())

    def holds(self, prompt: str, now: float = 0.0) -> dict[str, float | None]:
        """How much of this prompt it believes each server to hold."""
        body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
        explained = self.router.explain(RawRequest("POST", PATH, {}, json.dumps(body).encode()), now)
        return {row.address: row.held_tokens for row in explained.endpoints}


def tell(processes: Iterable[Process], now: float) -> None:
    """All that there is, to all others."""
    processes = list(processes)
    told = [(each, each.take()) for each in processes]
    for source, messages in told:
        for each in processes:
            if each is not source:
                each.sharing.apply(messages, now)


def prompt(number: int) -> str:
    return f"document {number}: " + "words of it " * 200


# One after the other


def test_a_pick_counts_and_teaches_in_every_process() -> None:
    one, other = Process(1), Process(2)
    pick = one.pick(prompt(1), 1.0)
    tell((one, other), 1.01)
    assert other.in_flight == one.in_flight
    assert other.in_flight[str(pick.address)] == 1
    assert other.holds(prompt(1)) == one.holds(prompt(1))
    assert other.pick(prompt(1), 1.02).address == pick.address
    one.end(pick, 2.0)
    tell((one, other), 2.01)
    assert other.open_count == 1  # its own


def test_a_conversation_that_began_in_one_process_has_begun_in_all() -> None:
    one, other = Process(1), Process(2)
    one.pick(prompt(1), 1.0, user="chat-1")
    tell((one, other), 1.01)
    for each in (one, other):
        conversations = each.router.placements["vllm"].conversations
        assert conversations.to_come(number_of("chat-1")) == 0.0 < conversations.to_come(number_of("chat-2"))


def test_a_process_that_starts_later_knows_the_conversations_that_are_open_wherever_they_began() -> None:
    one, supervisor, late = Process(1), Process(2), Process(3)
    one.pick(prompt(1), 1.0, user="chat-1")
    tell((one, supervisor), 1.01)
    late.sharing.apply(decode(encode(supervisor.sharing.everything())), 1.02)
    assert late.router.placements["vllm"].conversations.to_come(number_of("chat-1")) == 0.0


def test_what_the_access_log_tells_one_counts_in_all() -> None:
    """The stream ends first; a retry has moved the request."""
    one, other, third = Process(1), Process(2), Process(3)
    pick = one.pick(prompt(1), 1.0)
    tell((one, other, third), 1.01)
    moved_to = pick.fallbacks[0]
    early = Completion(pick.pick_id, moved_to, final=False, attempts=2)
    other.router.complete(early, 1.5)
    tell((one, other, third), 1.51)
    for each in (one, other, third):
        assert each.in_flight[str(moved_to)] == 1
        assert each.open_count == 1
        assert each.holds(prompt(1))[str(moved_to)]
    one.end(pick, 2.0)
    other.router.complete(Completion(pick.pick_id, moved_to, status=200, attempts=2), 2.1)
    tell((one, other, third), 2.2)
    for each in (one, other, third):
        assert each.open_count == 0
        assert each.router.ledger.outcomes["vllm", Outcome.OK] == 1
        assert each.router.ledger.moved == 1


def test_a_server_that_fails_at_one_is_out_at_all() -> None:
    one, other = Process(1), Process(2)
    for n in range(9):
        pick = one.pick(f"{n}", 1.0)
        other.router.complete(Completion(pick.pick_id, pick.address, status=500), 1.1)
        one.router.stream_ended(pick.pick_id, 1.2)
    tell((one, other), 1.3)
    out = {str(m.address) for m in one.pool.members if m.problem(1.3)}
    assert out
    assert out == {str(m.address) for m in other.pool.members if m.problem(1.3)}


def test_who_dies_is_answered_for_by_another_until_the_log_or_its_server_tells() -> None:
    """The requests of a process that was killed run on in Envoy."""
    hub, dying, third = Process(0, keep_taught=True), Process(1), Process(2)
    known = [dying.pick(prompt(n), 1.0) for n in range(4)]
    tell((hub, dying, third), 1.01)
    assert hub.sharing.died(dying.router.id_prefix) == 4
    assert third.open_count == hub.open_count == 4
    third.router.complete(Completion(known[0].pick_id, known[0].address, status=200), 2.0)
    tell((hub, third), 2.01)
    assert third.open_count == hub.open_count == 3
    hub.say_idle(3.0)  # servers that have nothing of it any more
    tell((hub, third), 3.01)
    assert third.open_count == hub.open_count == 0


def test_who_starts_later_is_told_what_is_open_and_what_servers_hold() -> None:
    hub, one = Process(0, keep_taught=True), Process(1)
    ended = one.pick(prompt(1), 1.0)
    one.pick(prompt(2), 1.0)
    one.end(ended, 2.0)
    tell((hub, one), 2.01)
    late = Process(2)
    late.sharing.apply(decode(encode(hub.sharing.everything())), 3.0)
    assert late.in_flight == hub.in_flight == one.in_flight
    for n in (1, 2):
        assert late.holds(prompt(n)) == one.holds(prompt(n))
    one.end(one.open[0], 4.0)
    tell((hub, one, late), 4.01)
    assert late.open_count == 0


def test_an_end_that_was_lost_is_made_up_for_by_the_next_census() -> None:
    one, other = Process(1), Process(2)
    first, second = one.pick("a", 1.0), one.pick("b", 1.0)
    tell((one, other), 1.01)
    one.end(first, 2.0)
    one.take()  # lost
    stays = one.census()
    one.pick("c", 2.5)  # told after it was counted
    other.sharing.apply([*one.take(), *stays], 2.6)
    assert other.open_count == 2
    one.end(second, 3.0)
    assert one.open_count == 1


def test_a_pick_that_is_told_after_its_end_is_learned_and_not_held() -> None:
    one, other = Process(1), Process(2)
    pick = one.pick(prompt(1), 1.0)
    one.end(pick, 2.0)
    picked, ended = one.take()
    other.sharing.apply([ended, picked], 2.1)
    assert other.open_count == 0
    assert other.holds(prompt(1)) == one.holds(prompt(1))


def test_what_is_told_twice_is_held_once() -> None:
    one, other = Process(1), Process(2)
    one.pick(prompt(1), 1.0)
    told = one.take()
    other.sharing.apply(told + told, 1.1)
    assert other.open_count == 1


def test_a_pick_of_a_server_that_another_has_replaced_charges_nobody() -> None:
    one, other = Process(1), Process(2)
    pick = one.pick("a", 1.0)
    other.pool.set_endpoints(Endpoint(address(n), uid="new") for n in (1, 2, 3))
    tell((one, other), 1.01)
    assert other.open_count == 0
    one.end(pick, 2.0)
    tell((one, other), 2.01)
    assert other.open_count == 0


# Any order, loss and repetition

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["pick", "pick", "end", "log", "deliver", "lose", "repeat", "census", "die"]),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=80,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_whatever_the_network_does_nothing_stays_in_flight(actions: list[tuple[str, int, int]]) -> None:
    """After all has ended, one census and one look at idle servers bring every process to zero; and where nothing was
    lost all believe the same of the servers."""
    hub = Process(0, keep_taught=True)
    processes = [hub, *(Process(n) for n in (1, 2, 3))]
    dead: set[int] = set()
    network: list[tuple[int, list[Message]]] = []  # to whom, what
    lost, now = False, 1.0
    prompts = set()

    def send(source: Process, messages: list[Message]) -> None:
        for number, each in enumerate(processes):
            if each is not source and number not in dead:
                network.extend((number, [message]) for message in messages)

    for action, a, b in actions:
        now += 0.01
        worker = processes[1 + a % 3]
        alive = 1 + a % 3 not in dead
        if action == "pick" and alive:
            prompts.add(b)
            worker.pick(prompt(b), now)
            send(worker, worker.take())
        elif action == "end" and alive and worker.open:
            worker.end(worker.open[b % len(worker.open)], now)
            send(worker, worker.take())
        elif action == "log" and alive:
            every = [pick for each in processes for pick in each.open]
            if every:
                pick = every[b % len(every)]
                worker.router.complete(Completion(pick.pick_id, pick.address, status=200), now)
                send(worker, worker.take())
        elif action == "census" and alive:
            send(worker, worker.census())
        elif action == "die" and alive and len(dead) < 2:
            dead.add(1 + a % 3)
            lost = True  # what it has not told
            network = [(to, what) for to, what in network if to not in dead]
            hub.sharing.died(worker.router.id_prefix)
        elif network and action in ("deliver", "repeat", "lose"):
            at = (a * 8 + b) % len(network)
            to, what = network[at]
            if action != "repeat":
                network.pop(at)
            if action in ("deliver", "repeat"):
                processes[to].sharing.apply(what, now)
            elif action == "lose":
                lost = True

    living = [each for number, each in enumerate(processes) if number not in dead]
    for each in living:
        for pick in list(each.open):
            each.end(pick, now)
        send(each, each.take())
    Random(len(network)).shuffle(network)
    for to, what in network:
        processes[to].sharing.apply(what, now)
    hub.say_idle(now + 100.0)  # of the picks of the dead only their servers tell the ends
    for each in living:
        last = each.take() + each.census()
        for other in living:
            if other is not each:
                other.sharing.apply(last, now + 100.0)
    assert [each.open_count for each in living] == [0] * len(living)
    if not lost:
        for number in prompts:
            beliefs = [each.holds(prompt(number)) for each in living]
            assert all(belief == beliefs[0] for belief in beliefs)


# Numbers and bytes


@given(st.lists(st.integers(1, 200)))
def test_numbers_are_told_apart(numbers: list[int]) -> None:
    seen, known = set(), Numbers()
    for number in numbers:
        assert known.add(number) is (number not in seen)
        seen.add(number)
    assert all((number in known) == (number in seen) for number in range(1, 202))


def test_numbers_with_gaps_take_bounded_room() -> None:
    known = Numbers()
    for number in range(2, 100_000, 2):
        known.add(number)
    assert len(known._above) <= WINDOW
    assert 99_999 not in known
    assert known.add(99_999)


def test_every_message_survives_the_wire() -> None:
    told: list[Message] = [
        Picked(
            "ab-1",
            "vllm",
            (address(1), address(2)),
            "uid",
            "/v1/x",
            1.5,
            300.0,
            0.5,
            2**64 - 1,
            16,
            "r-1",
            True,
            [1, 2**64 - 1],
            7,
        ),
        Picked("ab-2", "vllm", (address(1),), None, "/v1/x", 1.5, None, 0.0, None, None, None, False, [3], None),
        Taught("vllm", address(2), None, [9, 8], None),
        Ended("ab-1"),
        Completed(Completion("ab-1", address(1), True, 200, ("flag",), "via", 2, 0.5, 0.1, "vllm", False)),
        Completed(Completion(None, None)),
        Answered("ab-1", address(1), 503),
        Answered("ab-1", None, None),
        Stored("ab-1", "resp"),
        Census("ab-", 12, (1, 5)),
        Census("ab-", None, ()),
    ]
    found = decode(encode(told))
    assert len(found) == len(told)
    for one, other in zip(found, told, strict=True):
        if isinstance(other, Picked | Taught):
            assert isinstance(one, Picked | Taught)
            assert list(one.hashes) == list(other.hashes)
            one = _without_hashes(one)
            other = _without_hashes(other)
        assert one == other


def _without_hashes(told: Picked | Taught) -> Picked | Taught:
    fields = {name: getattr(told, name) for name in told.__slots__} | {"hashes": ()}
    return type(told)(**fields)


def test_half_a_character_that_a_client_wrote_does_not_break_the_wire() -> None:
    (found,) = decode(encode([Stored("ab-1", "r\ud800")]))
    assert found == Stored("ab-1", "r?")


@given(st.binary(max_size=200))
def test_bytes_that_are_no_messages_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)
