"""The sentence that tells why a server was picked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from extproc.placement import Placed
from extproc.request import ApiKind, InferenceRequest, NoPrompt
from extproc.scheduling.costs import Cost
from extproc.scheduling.profiles import PROFILES, By
from extproc.scheduling.work import Work
from extproc.why import by_load, why, why_nobody
from tests.support.fleet import pool

CHAT = InferenceRequest(ApiKind.CHAT, prompt=b"x")
IDLE: Cost = (0, 0, 0.0, 0)


@pytest.mark.parametrize(
    ("chosen", "others", "sentence"),
    [
        ((0, 0, 0.04, 1), [], "the only one that can be used"),
        ((0, 0, 0.04, 1), [(3, 0, 0.1, 4), (1, 0, 0.0, 2)], "fewest waiting 0 (others 1–3)"),
        (
            (0, 0, 0.04, 1),
            [(3, 0, 0.1, 4), (0, 0, 0.07, 2), (0, 0, 0.12, 1)],
            "fewest waiting 0 (others 3), lowest KV 4.0% (7.0%–12.0%)",
        ),
        ((2, 0, 0.04, 1), [(2, 0, 0.07, 2)], "2 waiting, lowest KV 4.0% (7.0%)"),
        ((0, 0, 0.04, 1), [(0, 1, 0.04, 1)], "0 waiting, and its load is known"),
        ((0, 0, 0.0, 1), [(0, 0, 0.0, 2), (0, 0, 0.1, 0)], "0 waiting, KV 0.0%, fewest in flight 1 (2)"),
        ((0, 0, 0.0, 1), [(0, 0, 0.0, 1), (0, 0, 0.0, 3)], "0 waiting, KV 0.0%: drawn among 2 equal ones"),
    ],
)
def test_by_load_a_reason_names_what_decided_and_against_what(chosen: Cost, others: list[Cost], sentence: str) -> None:
    """R4: fewest waiting, then lowest KV usage."""
    assert by_load(chosen, others) == sentence


@pytest.mark.parametrize(
    ("costs_s", "loads", "sentence"),
    [
        ([0.035], [0], "holds 5,824 of 6,100 tokens, 0.035 s expected; the only one that can be used"),
        ([0.035, 0.61], [0, 0], "holds 5,824 of 6,100 tokens, 0.035 s expected; next 10.0.0.2:8000 with 0.61 s"),
        (
            [0.12, 0.118, 0.9],
            [2, 3, 0],
            "holds 5,824 of 6,100 tokens, 0.12 s expected; 1 more within 0.124 s count as equal,"
            " and it has the fewest in flight, 2 (3)",
        ),
        (
            [0, 0, 0],
            [1, 1, 4],
            "holds 5,824 of 6,100 tokens, 0 s expected; 2 more within 0.005 s count as equal:"
            " drawn among 2 with 1 in flight",
        ),
    ],
)
def test_by_first_token_it_names_what_is_held_the_seconds_and_the_next(
    costs_s: list[float], loads: list[float], sentence: str
) -> None:
    members = pool(len(costs_s)).members
    for slot, member in enumerate(members):
        member.introduce(slot, None)
        member.load = loads[slot]
    placed = Placed([0], By.FIRST_TOKEN, CHAT, work=Work(6100, {0: 91 * 64.0}), costs_s=costs_s)
    assert why(placed, PROFILES["cache-aware"], members, 0) == sentence


@pytest.mark.parametrize(
    ("profile", "by", "loads", "sentence"),
    [
        ("session", By.SESSION, [1, 1], "the ring's choice for the session's key"),
        ("prefix-hash", By.PREFIX, [1, 1], "the ring's choice for the key of the prompt's first blocks"),
        (
            "session",
            By.SESSION,
            [0, 40],
            "the ring's choice for the session's key among those within the load bound"
            " (1 with more than 28 in flight come last)",
        ),
    ],
)
def test_by_a_key_it_says_which_and_whether_the_load_bound_had_a_say(
    profile: str, by: By, loads: Sequence[float], sentence: str
) -> None:
    placed = Placed([0], by, CHAT, loads=loads)
    assert why(placed, PROFILES[profile], pool(2).members, 0) == sentence


@pytest.mark.parametrize(
    ("profile", "no_prompt", "sentence"),
    [
        ("least-loaded", None, "the only one that can be used"),
        ("session", None, "no session key: the only one that can be used"),
        (
            "cache-aware",
            NoPrompt.UNPARSABLE,
            "no prompt (unparsable) and no session key: the only one that can be used",
        ),
        ("prefix-hash", None, "no full block of prompt and no session key: the only one that can be used"),
    ],
)
def test_it_says_what_the_better_ways_of_the_profile_lacked(
    profile: str, no_prompt: NoPrompt | None, sentence: str
) -> None:
    request = None if profile == "least-loaded" else InferenceRequest(ApiKind.CHAT, no_prompt=no_prompt)
    placed = Placed([0], By.LOAD, request, load_costs=[IDLE])
    assert why(placed, PROFILES[profile], pool(1).members, 0) == sentence


def test_when_nobody_can_be_used_the_reasons_are_counted() -> None:
    reasons = ["connection refused", "drained by the operator", "connection refused"]
    assert why_nobody(reasons) == "no endpoint can be used: 2 connection refused, 1 drained by the operator"
    assert why_nobody([]) == "the pool has no endpoints"
