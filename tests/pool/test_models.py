"""Who serves a model, by what servers and operator say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.pool import pool as pool_module
from extproc.pool.pool import MODELS_STALE_AFTER_S
from tests.support.fleet import address, endpoint, pool

A, B = frozenset({"a"}), frozenset({"b"})


def numbers(of: pool_module.Pool, model: str) -> list[int]:
    return [int(member.address.ip.rpartition(".")[2]) for member in of.members_serving(model)]


def test_without_knowledge_and_where_all_serve_the_same_it_is_the_pool_itself() -> None:
    made = pool(3)
    assert made.members_serving("a") is made.members
    assert not made.mixed
    for number in (1, 2, 3):
        made.told_models(address(number), A, 1.0)
    assert made.members_serving("a") is made.members
    assert not made.mixed
    assert made.members_serving("b") == ()


def test_an_alias_and_an_adapter_on_one_server_are_found_there() -> None:
    """case c19"""
    made = pool(2)
    made.told_models(address(1), frozenset({"phi", "phi-4-mm"}), 1.0)
    made.told_models(address(2), frozenset({"phi", "phi-4-mm", "adapter"}), 1.0)
    assert made.mixed
    assert numbers(made, "phi") == numbers(made, "phi-4-mm") == [1, 2]
    assert numbers(made, "adapter") == [2]


def test_what_the_operator_says_counts_until_the_server_tells_itself() -> None:
    made = pool(0)
    made.set_endpoints([replace(endpoint(1), models=("a",)), replace(endpoint(2), models=("b",))])
    assert numbers(made, "b") == [2]
    made.told_models(address(1), B, 1.0)
    assert numbers(made, "b") == [1, 2]
    made.models_failed(address(1), "gone", 1.1 + MODELS_STALE_AFTER_S)
    assert numbers(made, "b") == [2]
    made.set_endpoints([replace(endpoint(1), models=("a", "b")), replace(endpoint(2), models=("b",))])
    assert numbers(made, "b") == [1, 2], "a change of the configuration counts at once"


def test_a_server_that_cannot_be_asked_is_believed_for_a_while_and_then_unknown() -> None:
    made = pool(2)
    made.told_models(address(1), A, 100.0)
    made.told_models(address(2), B, 100.0)
    made.models_failed(address(1), "timeout", 100.0 + MODELS_STALE_AFTER_S)
    assert numbers(made, "b") == [2]
    assert made.members[0].models_error == "timeout"
    made.models_failed(address(1), "timeout", 100.1 + MODELS_STALE_AFTER_S)
    assert numbers(made, "b") == [1, 2]
    made.told_models(address(1), A, 140.0)
    assert numbers(made, "b") == [2]
    assert made.members[0].models_error is None


def test_what_a_server_said_holds_while_nobody_listens_there() -> None:
    """It cannot load anything; were it unknown, requests for any model would be sent to a dead server."""
    made = pool(2)
    made.told_models(address(1), A, 0.0)
    made.told_models(address(2), B, 0.0)
    made.models_failed(address(1), "refused", 1e6, refused=True)
    assert numbers(made, "b") == [2]
    assert made.members[0].models_at_s == 1e6


def test_an_older_answer_that_comes_late_changes_nothing() -> None:
    made = pool(1)
    made.told_models(address(1), B, 2.0)
    made.told_models(address(1), A, 1.0)
    assert made.members[0].models == B


def test_names_that_only_clients_use_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_MOST_REMEMBERED", 10)
    made = pool(3)
    made.told_models(address(1), frozenset(f"served-{number}" for number in range(50)), 1.0)
    for number in range(1000):
        assert numbers(made, f"unheard-of-{number}") == [2, 3]
    assert not made._serving
    for number in range(50):
        assert numbers(made, f"served-{number}") == [1, 2, 3]
    assert len(made._serving) <= 10


NAMES = st.sampled_from(["a", "b", "c"])
NUMBERS = st.integers(1, 4)
STEPS = st.one_of(
    st.tuples(st.just("told"), NUMBERS, st.frozensets(NAMES, min_size=1)),
    st.tuples(st.just("failed"), NUMBERS, st.booleans()),
    st.tuples(st.just("members"), st.frozensets(NUMBERS), st.frozensets(NAMES)),
    st.tuples(st.just("pass"), st.integers(1, 40), st.none()),
)


@settings(max_examples=300)
@given(st.lists(STEPS, max_size=30))
def test_the_unknown_are_never_left_out_and_those_known_not_to_serve_never_in(
    steps: list[tuple[str, object, object]],
) -> None:
    made, now = pool(2), 0.0
    for step in steps:
        now += 0.1
        match step:
            case ("told", int(number), frozenset(names)):
                made.told_models(address(number), names, now)
            case ("failed", int(number), bool(refused)):
                made.models_failed(address(number), "no", now, refused=refused)
            case ("members", frozenset(those), frozenset(names)):
                made.set_endpoints([replace(endpoint(number), models=tuple(sorted(names))) for number in sorted(those)])
            case ("pass", int(seconds), _):
                now += seconds
        for name in ("a", "b", "c", "unheard-of"):
            serving = made.members_serving(name)
            assert [m for m in made.members if m.models is None or name in m.models] == list(serving)
            assert serving is made.members or len(serving) < len(made.members)
        assert made.mixed == (len({member.models for member in made.members}) > 1)
