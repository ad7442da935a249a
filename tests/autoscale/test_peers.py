"""The requests of several processes are added up, and the sum never falls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.autoscale.peers import Peers


def test_what_came_since_a_process_was_first_heard_counts() -> None:
    peers = Peers("us")
    peers.told("a", 1000.0)
    peers.told("b", 5.0)
    assert peers.requests == 0.0
    peers.told("a", 1010.0)
    peers.told("b", 7.0)
    assert peers.requests == 12.0


def test_we_do_not_count_twice_nor_does_one_that_is_heard_at_two_addresses() -> None:
    peers = Peers("us")
    for count in (0.0, 50.0):
        peers.told("us", count)
    for count in (0.0, 0.0, 10.0, 10.0):
        peers.told("a", count)
    assert peers.requests == 10.0


def test_a_restart_takes_nothing_away() -> None:
    peers = Peers("us")
    for process, count in (("a", 100.0), ("a", 110.0), ("a2", 0.0), ("a2", 5.0)):
        peers.told(process, count)
    assert peers.requests == 15.0


def test_a_counter_that_falls_though_the_process_is_the_same_takes_nothing_away() -> None:
    peers = Peers("us")
    for count in (100.0, 110.0, 3.0, 5.0):
        peers.told("a", count)
    assert peers.requests == 12.0


@given(
    st.lists(
        st.tuples(st.sampled_from(["us", "a", "b", "c"]), st.floats(allow_nan=True, allow_infinity=True)), max_size=40
    )
)
def test_the_sum_never_falls_whatever_is_told(told: list[tuple[str, float]]) -> None:
    peers, before = Peers("us"), 0.0
    for process, count in told:
        peers.told(process, count)
        assert peers.requests >= before
        before = peers.requests


def test_memory_is_bounded() -> None:
    peers = Peers("us")
    for number in range(10_000):
        peers.told(str(number), 1.0)
    assert len(peers._counters) <= 256
