"""Stored responses: who has one, for how long, and how many are remembered."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.affinity.stored import StoredResponses


@dataclass(eq=False)
class Server:
    gone: bool = False


A, B = Server(), Server()


def test_an_id_leads_to_the_server_that_has_it_and_an_unknown_one_to_nobody() -> None:
    """case c15"""
    known: StoredResponses[Server] = StoredResponses()
    known.put("resp_1", A, 0.0)
    known.put("resp_2", B, 0.0)
    assert (known.who("resp_1", 1.0), known.who("resp_2", 1.0), known.who("resp_3", 1.0)) == (A, B, None)


def test_what_was_said_last_counts() -> None:
    """A retry ran elsewhere."""
    known: StoredResponses[Server] = StoredResponses()
    known.put("resp_1", A, 0.0)
    known.put("resp_1", B, 0.0)
    assert (known.who("resp_1", 1.0), len(known)) == (B, 1)


def test_the_ids_that_were_not_used_for_longest_go_first() -> None:
    known: StoredResponses[Server] = StoredResponses(max_ids=2)
    for at_s, name in enumerate(["resp_1", "resp_2", "resp_1", "resp_3"]):
        known.put(name, A, float(at_s))
    assert [known.who(name, 4.0) for name in ("resp_1", "resp_2", "resp_3")] == [A, None, A]


def test_an_id_is_forgotten_some_time_after_it_was_used_last() -> None:
    known: StoredResponses[Server] = StoredResponses(ttl_s=10)
    known.put("resp_1", A, 0.0)
    known.put("resp_1", A, 8.0)
    assert (known.who("resp_1", 18.0), known.who("resp_1", 18.1)) == (A, None)
    known.put("resp_2", A, 30.0)
    assert len(known) == 1, "what is too old is not kept either"


def test_a_server_that_has_lost_its_responses_is_not_asked_for_them() -> None:
    known: StoredResponses[Server] = StoredResponses()
    known.put("resp_1", A, 0.0)
    known.put("resp_2", B, 0.0)
    known.forget([A])
    assert (known.who("resp_1", 0.0), known.who("resp_2", 0.0), len(known)) == (None, B, 1)


def test_half_an_emoji_is_an_id() -> None:
    """case c07"""
    known: StoredResponses[Server] = StoredResponses()
    known.put("\ud83d", A, 0.0)
    assert known.who("\ud83d", 0.0) is A


def test_room_for_none_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        StoredResponses(max_ids=0)


IDS = st.sampled_from([f"resp_{n}" for n in range(6)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), IDS, st.integers(0, 3)),
        st.tuples(st.just("gone"), IDS, st.integers(0, 3)),
        st.tuples(st.just("forget"), IDS, st.integers(0, 3)),
        st.tuples(st.just("wait"), IDS, st.integers(0, 12)),
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 6))
def test_it_says_what_a_plain_history_says_and_never_names_a_server_that_is_gone(
    steps: list[tuple[str, str, int]], max_ids: int
) -> None:
    known: StoredResponses[Server] = StoredResponses(max_ids=max_ids, ttl_s=10)
    servers = [Server() for _ in range(4)]
    history: list[tuple[str, Server, float]] = []  # the last use of each id, oldest first
    now = 0.0
    for what, name, number in steps:
        if what == "put":
            known.put(name, servers[number], now)
            history = [*(each for each in history if each[0] != name), (name, servers[number], now)]
            history = [each for each in history if each[2] >= now - 10][-max_ids:]
        elif what == "gone":
            servers[number].gone = True
        elif what == "forget":
            known.forget([servers[number]])
            history = [each for each in history if each[1] is not servers[number]]
        else:
            now += number
        expected = {id_: server for id_, server, at_s in history if at_s >= now - 10 and not server.gone}
        assert {id_: who for n in range(6) if (who := known.who(id_ := f"resp_{n}", now)) is not None} == expected
        assert len(known) <= max_ids
