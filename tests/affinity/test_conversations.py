"""How long conversations get, and who begins one."""

from __future__ import annotations

import pytest

from extproc.affinity.conversations import HALF_LIFE, PRIOR_TURNS, Conversations, number_of


def talk(conversations: Conversations, count: int, turns: int, name: str = "chat") -> None:
    for number in range(count):
        for _ in range(turns):
            conversations.add(number_of(f"{name}-{number}"))


def test_before_anything_is_known_a_guess_stands_in() -> None:
    conversations = Conversations()
    assert conversations.mean == PRIOR_TURNS
    assert conversations.to_come(number_of("a")) == PRIOR_TURNS - 1


def test_only_the_first_request_of_a_conversation_has_all_of_it_to_come() -> None:
    conversations = Conversations()
    conversations.add(number_of("a"))
    assert conversations.to_come(number_of("a")) == 0.0
    assert conversations.to_come(number_of("b")) > 0.0


def test_asking_changes_nothing() -> None:
    conversations = Conversations()
    assert conversations.to_come(number_of("a")) == conversations.to_come(number_of("a")) > 0.0


@pytest.mark.parametrize("turns", [1, 4, 20])
def test_the_length_of_conversations_is_learned(turns: int) -> None:
    conversations = Conversations()
    talk(conversations, int(10 * HALF_LIFE), turns)
    assert conversations.mean == pytest.approx(turns, rel=0.02)
    assert conversations.to_come(number_of("new")) == pytest.approx(turns - 1, abs=0.02 * turns)


def test_ids_that_never_come_back_have_nothing_to_come() -> None:
    """Clients that give each request an id of its own: its place is chosen as if it had none."""
    conversations = Conversations()
    talk(conversations, int(10 * HALF_LIFE), 1)
    assert 0.0 <= conversations.to_come(number_of("new")) < 0.02


def test_it_follows_when_conversations_become_shorter() -> None:
    conversations = Conversations()
    talk(conversations, 500, 20, "agent")
    talk(conversations, 500, 2, "chat")
    assert conversations.mean < 3


def test_as_many_are_remembered_as_it_may_and_the_longest_silent_goes_first() -> None:
    """case e10"""
    conversations = Conversations(kept=3)
    for key in "abcad":
        conversations.add(number_of(key))
    assert [key for key in "abcd" if conversations.to_come(number_of(key)) == 0.0] == ["a", "c", "d"]


def test_a_key_that_is_no_valid_text_is_a_key() -> None:
    conversations = Conversations()
    conversations.add(number_of("\ud83d"))
    assert conversations.to_come(number_of("\ud83d")) == 0.0
