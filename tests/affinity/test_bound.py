"""The load bound: when a key is passed on, and to whom."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.affinity.bound import bounded, first_within, load_limit
from extproc.affinity.ring import Ring

loads = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 200), min_size=1)


@pytest.mark.parametrize(
    ("total", "servers", "limit"), [(0, 4, 8), (4, 4, 9), (4 * 32, 4, 40), (4 * 33, 4, 41.25), (400, 4, 125)]
)
def test_the_limit_is_absolute_at_low_load_and_relative_at_high(total: int, servers: int, limit: float) -> None:
    assert load_limit(total, servers) == limit


def test_at_low_load_a_session_stays_where_it_is() -> None:
    assert bounded("abcd", {"a": 8, "b": 0, "c": 0, "d": 0})[0] == "a"


def test_an_over_full_server_passes_the_key_to_the_next() -> None:
    assert bounded("abcd", {"a": 40, "b": 0, "c": 0, "d": 0}) == ("b", "c", "d", "a")
    assert bounded("abcd", {"a": 90, "b": 91, "c": 0, "d": 0}) == ("c", "d", "a", "b")


def test_only_candidates_are_named() -> None:
    assert bounded("abcd", {"b": 1, "d": 1}) == ("b", "d")
    assert bounded("abcd", {}) == ()


@given(loads, st.permutations("abcdefgh"))
def test_the_first_is_never_over_full_and_all_candidates_are_named(load: dict[str, int], order: list[str]) -> None:
    limit = load_limit(sum(load.values()), len(load))
    found = bounded(order, load)
    assert load[found[0]] <= limit
    assert sorted(found) == sorted(load)
    fit = [name for name in order if name in load and load[name] <= limit]
    assert list(found[: len(fit)]) == fit
    assert first_within(order, load, limit) == found[0]


def test_without_a_candidate_within_the_limit_there_is_none() -> None:
    assert first_within("ab", {"a": 5, "c": 0}, 4) is None


def test_one_hot_key_spreads_no_further_than_it_must() -> None:
    """200 requests of one key at once: each server stays within the bound, and the first stays the fullest."""
    ring = Ring([f"s{number}" for number in range(8)])
    load = Counter(dict.fromkeys(ring.preference("k"), 0))
    for _ in range(200):
        load[bounded(ring.preference("k"), load)[0]] += 1
    assert max(load.values()) <= load_limit(200, 8) + 1
    assert load.most_common(1)[0][0] == ring.preference("k")[0]
