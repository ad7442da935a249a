"""How long a server's requests may still take is computed from what the operator says, and from what runs there."""

from __future__ import annotations

from math import inf

import pytest

from extproc.decision import Outcome, Pick
from extproc.pool.deadline import Bounds, deadline_s, longest_s
from extproc.pool.member import Member
from extproc.pool.reservation import Reservation
from extproc.pool.sample import Histogram, LoadSample
from tests.support.fleet import address, endpoint

BOUNDS = Bounds(max_tokens=4096, token_interval_s=0.03, queue_s=5.0, prefill_s=10.0, margin=1.2)
NOW = 100.0


def server() -> Member:
    return Member(endpoint(1), stale_after_s=3.0)


def send(to: Member, max_tokens: int | None, at_s: float = NOW) -> Reservation:
    pick = Pick(pick_id="p", address=address(1), fallbacks=(), destination="")
    sent = Reservation(pick, to, "vllm", "/v1/chat/completions", at_s)
    sent.max_tokens = max_tokens
    return sent


def tokens(at_s: float, count: float, p: float, *, running: float = 8.0, ttft: Histogram | None = None) -> LoadSample:
    """A sample whose token intervals are all between 0 and `p`."""
    intervals = Histogram((p, inf), (count, count), count * p)
    return LoadSample(at_s, running=running, waiting=0.0, token_interval=intervals, ttft=ttft)


class TestTheBoundOfAnyRequest:
    def test_it_is_queue_prefill_and_all_tokens_with_a_margin(self) -> None:
        assert longest_s(BOUNDS) == pytest.approx(165.456)  # 4,096 x 30 ms = 123 s, + 10 + 5, x 1.2
        assert round(4096 * 0.03) == 123

    def test_a_measured_interval_counts_more_than_the_one_set(self) -> None:
        assert longest_s(BOUNDS, 0.01) == pytest.approx((15 + 40.96) * 1.2)


class TestWhatIsInFlight:
    def test_an_empty_server_is_not_waited_for(self) -> None:
        assert deadline_s(server(), BOUNDS, NOW) == 0.0

    def test_the_longest_of_its_requests_decides(self) -> None:
        member = server()
        send(member, 100)
        send(member, 1000)
        assert deadline_s(member, BOUNDS, NOW) == pytest.approx((15 + 30) * 1.2)

    def test_what_ran_already_is_not_waited_for_again(self) -> None:
        member = server()
        send(member, 1000, NOW - 20)
        assert deadline_s(member, BOUNDS, NOW) == pytest.approx((15 + 30) * 1.2 - 20)

    def test_one_that_ended_does_not_count(self) -> None:
        member = server()
        send(member, 1000).close(Outcome.OK, NOW)
        send(member, 100)
        assert deadline_s(member, BOUNDS, NOW) == pytest.approx((15 + 3) * 1.2)

    def test_one_that_names_no_bound_may_take_as_long_as_any(self) -> None:
        member = server()
        send(member, None)
        assert deadline_s(member, BOUNDS, NOW) == pytest.approx(longest_s(BOUNDS))

    def test_one_that_names_more_than_the_bound_is_held_to_it(self) -> None:
        member = server()
        send(member, 1_000_000)
        assert deadline_s(member, BOUNDS, NOW) == pytest.approx(longest_s(BOUNDS))

    def test_one_that_should_have_ended_long_ago_is_not_understood(self) -> None:
        member = server()
        send(member, 10, NOW - 1000)
        assert deadline_s(member, BOUNDS, NOW) == longest_s(BOUNDS)

    def test_requests_that_only_the_server_knows_may_take_as_long_as_any(self) -> None:
        member = server()
        send(member, 10, NOW - 2)
        member.observe(LoadSample(NOW - 1, running=2.0, waiting=0.0))
        assert deadline_s(member, BOUNDS, NOW) == longest_s(BOUNDS)

    def test_the_first_token_is_taken_from_the_servers_histogram(self) -> None:
        member = server()
        send(member, 0)
        few, enough = (Histogram((2.0, inf), (count, count), count) for count in (99.0, 100.0))
        member.observe(LoadSample(NOW, running=1.0, waiting=0.0, ttft=few))
        assert deadline_s(member, BOUNDS, NOW) == pytest.approx(15 * 1.2)
        member.observe(LoadSample(NOW, running=1.0, waiting=0.0, ttft=enough))
        assert deadline_s(member, BOUNDS, NOW) == pytest.approx(1.98 * 1.2)

    def test_so_is_the_token_interval(self) -> None:
        member = server()
        send(member, 1000)
        member.observe(tokens(NOW - 2, 0, 0.1, running=1.0))
        member.observe(tokens(NOW, 1000, 0.1, running=1.0))
        assert deadline_s(member, BOUNDS, NOW) == pytest.approx((15 + 1000 * 0.099) * 1.2)


class TestTheTokenInterval:
    def test_it_takes_a_thousand_tokens(self) -> None:
        member = server()
        for at_s, count in ((0, 500), (1, 1000), (2, 1499)):
            member.observe(tokens(at_s, count, 0.1))
        assert member.token_interval.p99_s is None
        member.observe(tokens(3, 1500, 0.1))
        assert member.token_interval.p99_s == pytest.approx(0.099)

    def test_it_is_of_the_largest_batch(self) -> None:
        bounds = (0.01, 0.1, inf)
        member = server()

        def see(at_s: float, quick: float, slow: float, running: float) -> None:
            histogram = Histogram(bounds, (quick, quick + slow, quick + slow), 1.0)
            member.observe(LoadSample(at_s, running=running, waiting=0.0, token_interval=histogram))

        see(0, 0, 0, 100)
        see(1, 0, 2000, 100)
        full = member.token_interval.p99_s
        assert full == pytest.approx(0.01 + 0.09 * 0.99)
        see(2, 2000, 2000, 10)
        see(3, 4000, 2000, 10)
        assert member.token_interval.p99_s == full
        see(4, 6000, 2000, 91)
        see(5, 8000, 2000, 91)
        assert member.token_interval.p99_s == pytest.approx(0.01 * 0.99)

    def test_a_pause_does_not_count(self) -> None:
        member = server()
        for at_s, count, running in ((0, 0, 8), (1, 900, 8), (2, 900, 0), (3, 900, 8), (4, 1800, 8)):
            member.observe(tokens(at_s, count, 0.1, running=running))
        assert member.token_interval.p99_s is None

    def test_a_restarted_server_is_measured_anew(self) -> None:
        member = server()
        member.observe(tokens(0, 0, 0.1))
        member.observe(tokens(1, 5000, 0.1))
        assert member.token_interval.p99_s is not None
        member.observe(tokens(2, 10, 0.1))
        assert member.token_interval.p99_s is None


class TestAHistogram:
    def test_quantiles_are_those_of_prometheus(self) -> None:
        histogram = Histogram((1.0, 2.0, 4.0, inf), (50.0, 90.0, 99.0, 100.0), 0.0)
        assert [histogram.quantile_s(q) for q in (0.25, 0.5, 0.7, 0.99, 1.0)] == [0.5, 1.0, 1.5, 4.0, 4.0]

    def test_an_empty_one_has_none(self) -> None:
        assert Histogram((1.0, inf), (0.0, 0.0), 0.0).quantile_s(0.99) is None

    def test_the_later_part_of_one(self) -> None:
        before, after = Histogram((1.0, inf), (2.0, 3.0), 5.0), Histogram((1.0, inf), (2.0, 7.0), 25.0)
        assert after.since(before) == Histogram((1.0, inf), (0.0, 4.0), 20.0)
