"""Keys on the ring: who moves when the fleet changes, and who does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.affinity.ring import POINTS, Ring

KEYS = [f"session-{number}" for number in range(2000)]
FLEET = [f"10.0.0.{number}:8000" for number in range(1, 6)]
fleets = st.lists(st.sampled_from([f"s{n}" for n in range(20)]), min_size=1, max_size=12, unique=True)


def owners(ring: Ring) -> list[str]:
    return [ring.preference(key, 1)[0] for key in KEYS]


def test_a_server_that_comes_takes_its_share_and_moves_no_other_key() -> None:
    """case e09: add a fifth; 1/5, and the spread of shares"""
    ring = Ring(FLEET[:4])
    before = owners(ring)
    ring.update(FLEET)
    moved = [now for was, now in zip(before, owners(ring), strict=True) if was != now]
    assert set(moved) == {FLEET[4]}
    assert 0.1 < len(moved) / len(KEYS) < 0.3


@settings(deadline=None, max_examples=20)
@given(fleets, st.data())
def test_a_server_that_leaves_moves_only_its_own_keys(fleet: list[str], data: st.DataObject) -> None:
    """case e09"""
    gone = data.draw(st.sampled_from(fleet))
    ring = Ring(fleet)
    before = [ring.preference(key) for key in KEYS[:200]]
    ring.update([name for name in fleet if name != gone])
    assert [ring.preference(key) for key in KEYS[:200]] == [
        tuple(name for name in order if name != gone) for order in before
    ]


@settings(deadline=None, max_examples=20)
@given(fleets)
def test_the_order_of_the_list_and_the_way_to_it_do_not_matter(fleet: list[str]) -> None:
    """case e09: reorder the list; the same set with a new order at restart"""
    other = sorted(fleet, reverse=True)
    grown = Ring(other[:1])
    for end in range(2, len(other) + 1):
        grown.update(other[:end])
    wide = Ring([*fleet, "more", "yet more"])
    wide.update(other)
    for key in KEYS[:50]:
        assert Ring(fleet).preference(key) == grown.preference(key) == wide.preference(key)


def test_processes_agree() -> None:
    """case e08: whatever PYTHONHASHSEED is"""
    code = (
        f"from extproc.affinity.ring import Ring; r = Ring({FLEET}); print([r.preference(str(n)) for n in range(50)])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


@given(st.one_of(st.text(), st.binary(), st.just("\ud83d")), st.integers(-1, 9))
def test_a_preference_names_each_server_once(key: str | bytes, n: int) -> None:
    """case c07, too: half an emoji is a key"""
    ring = Ring(FLEET)
    whole = ring.preference(key)
    assert sorted(whole) == FLEET
    assert ring.preference(key, n) == whole[: max(0, n)]
    assert tuple(ring.walk(key)) == whole


def test_keys_spread_evenly() -> None:
    """The spread of shares is about 1 / sqrt(POINTS); four times that is never seen by chance."""
    shares = Counter(owners(Ring(FLEET)))
    fair = len(KEYS) / len(FLEET)
    assert all(abs(share / fair - 1) < 4 / POINTS**0.5 for share in shares.values())


def test_a_weight_is_a_share_and_changing_it_moves_only_keys_to_or_from_its_server() -> None:
    ring = Ring(dict.fromkeys(FLEET, 1.0))
    before = owners(ring)
    ring.update({**dict.fromkeys(FLEET, 1.0), FLEET[0]: 2.5})
    after = owners(ring)
    assert 1.8 < Counter(after)[FLEET[0]] / Counter(before)[FLEET[0]] < 2.6
    assert {now for was, now in zip(before, after, strict=True) if was != now} == {FLEET[0]}
    ring.update(FLEET)
    assert owners(ring) == before


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan")])
def test_a_weight_that_is_no_share_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        Ring({"a": weight})


def test_without_servers_there_is_no_preference() -> None:
    ring = Ring()
    assert (ring.preference("k"), tuple(ring.walk("k")), len(ring)) == ((), (), 0)
    ring.update(["a"])
    assert ring.preference("k", 3) == ("a",)
    ring.update([])
    assert ring.preference("k") == ()


def test_a_remembered_order_does_not_outlive_the_fleet() -> None:
    ring = Ring(FLEET)
    first = ring.preference("k")[0]
    ring.update([name for name in FLEET if name != first])
    assert first not in ring.preference("k")
