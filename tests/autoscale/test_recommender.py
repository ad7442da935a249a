"""Up at once, down slowly, and nothing from what is not known."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from extproc.autoscale.reading import Offered, PoolReading, ServerReading, ServerState
from extproc.autoscale.recommendation import SignalName, Verdict
from extproc.autoscale.recommender import Recommender
from extproc.pool.sample import Histogram
from tests.autoscale.fleet import CALIBRATION, Run, policy, server, servers

STALE = ServerState.STALE


class TestTheStart:
    def test_before_the_servers_are_known_nothing_is_recommended_which_is_not_zero(self) -> None:
        said = Recommender(policy()).look(PoolReading(0.0, known=False), 0.0)
        assert said.desired is None
        assert said.stale
        assert "not known yet" in said.reason

    def test_for_one_window_what_is_there_stays_whatever_the_load(self) -> None:
        run = Run()
        assert run.for_s(60, servers(4, waiting=100.0), rate=1.0).desired == 4
        assert run.look(servers(4, waiting=100.0), rate=1.0).desired is not None
        assert run.look(servers(4, waiting=100.0), rate=1.0).desired > 4  # type: ignore[operator]


class TestUp:
    def test_by_littles_law(self) -> None:
        said = Run().for_s(180, servers(2), rate=35.0)
        assert said.desired == 4  # 35 a second, 10 a server
        assert "35 requests/s" in said.reason

    def test_longer_answers_at_the_same_rate_ask_for_more_before_any_queue(self) -> None:
        run = Run()
        assert run.for_s(180, servers(4), rate=35.0).desired == 4
        assert run.for_s(180, servers(4), rate=35.0, output=190.0).desired == 8  # 7 by 4 s instead of 2, 7.3 by KV

    def test_long_prompts_ask_for_more_while_kv_usage_is_low(self) -> None:
        run = Run(policy())
        run.for_s(120, servers(2, kv=0.01), rate=15.0)
        reading = PoolReading(run.now, tuple(servers(2, kv=0.01)))
        assert reading.count(ServerState.READY) == 2
        counts = run.requests
        for i in range(1, 30):
            more = 15.0 * 5.0 * i
            offered = Offered(counts + more, counts + more, None, counts * 1000.0 + more * 4000.0, run.output_tokens)
            at_s = run.now + 5.0 * i
            said = run.recommender.look(PoolReading(at_s, tuple(servers(2, kv=0.01)), offered=offered), at_s)
        prefill = next(row for row in said.signals if row.name is SignalName.PREFILL)
        assert prefill.replicas == 6  # 15 x 4,000 tokens/s, 10,000 a server
        assert said.desired is not None
        assert said.desired >= 6

    def test_waiting_asks_for_one_more_and_for_what_works_off_the_backlog_within_a_lead(self) -> None:
        run = Run()
        run.for_s(120, servers(4, waiting=0.5), rate=10.0)
        said = run.for_s(65, servers(4, waiting=322.0, running=20.0), rate=10.0)
        assert said.desired == 4 + 1 + 1  # (322 - 2) x 4 waiting too many; a server serves 10 a second for 106 s

    def test_a_burst_whose_queue_is_gone_asks_for_nothing(self) -> None:
        """15 wait per server for fifteen seconds: 3.75 on average over a window, and 2 is the threshold."""
        run = Run()
        run.for_s(240, servers(4, waiting=0.5), rate=10.0)
        run.for_s(15, servers(4, waiting=15.0, running=20.0), rate=10.0)
        said = run.for_s(30, servers(4, waiting=0.5), rate=10.0)
        waiting = next(row for row in said.signals if row.name is SignalName.WAITING)
        assert waiting.value is not None
        assert waiting.value > 2.0
        assert "in a single burst" in waiting.words
        assert {each.desired for each in run.seen} == {4}

    def test_bursts_that_come_each_minute_ask_for_more(self) -> None:
        run = Run()
        run.for_s(240, servers(4, waiting=0.5), rate=10.0)
        for _ in range(4):
            run.for_s(15, servers(4, waiting=15.0, running=20.0), rate=10.0)
            run.for_s(45, servers(4, waiting=0.5), rate=10.0)
        assert run.seen[-1].desired == 5

    def test_a_queue_that_stays_asks_within_half_a_window(self) -> None:
        run = Run()
        run.for_s(240, servers(4, waiting=0.5), rate=10.0)
        assert run.for_s(30, servers(4, waiting=15.0, running=20.0), rate=10.0).desired == 5

    @pytest.mark.parametrize(("falls_per_s", "asks"), [(1.0, False), (0.2, True), (0.0, True)])
    def test_a_queue_that_is_worked_off_before_a_server_could_come_asks_for_no_more(
        self, falls_per_s: float, asks: bool
    ) -> None:
        """By 1 a second, 80 a server are gone in 80 s, less than a lead of 106 s; by 0.2 a second they are not."""
        run = Run()
        run.for_s(240, servers(4, waiting=0.5), rate=10.0)
        asked = run.for_s(60, servers(4, waiting=80.0, running=20.0), rate=10.0).desired
        assert asked == 5
        for second in range(0, 75, 5):
            said = run.look(servers(5, waiting=64.0 - falls_per_s * second, running=20.0), rate=10.0)
        waiting = next(row for row in said.signals if row.name is SignalName.WAITING)
        assert waiting.value is not None
        assert waiting.value > 2.0
        assert ("worked off" in waiting.words) is not asks, waiting
        assert (waiting.replicas, said.desired) == ((6, 6) if asks else (None, 5))
        assert said.verdict is not Verdict.LATE

    def test_a_queue_that_a_server_takes_with_it_is_not_worked_off(self) -> None:
        run = Run()
        run.for_s(240, servers(5, waiting=0.5), rate=10.0)
        run.for_s(120, servers(5, waiting=80.0, running=20.0), rate=10.0)
        said = run.for_s(30, servers(3, waiting=80.0, running=20.0), rate=10.0)
        waiting = next(row for row in said.signals if row.name is SignalName.WAITING)
        assert waiting.replicas == 4

    def test_where_no_load_test_tells_how_fast_one_is_the_backlog_is_shared_by_what_one_runs(self) -> None:
        run = Run(policy(calibration=None))
        run.for_s(120, servers(4, waiting=0.5), rate=10.0)
        said = run.for_s(65, servers(4, waiting=21.0, running=20.0), rate=10.0)
        assert said.desired == 4 + 1 + 4  # (21 - 1) x 4 waiting too many, 20 at once a server

    def test_a_server_that_has_just_come_is_the_answer_too(self) -> None:
        run = Run()
        run.for_s(120, servers(4, waiting=3.0, running=20.0), rate=10.0)
        there = [*servers(4, waiting=3.0, running=20.0), server(9)]
        assert run.for_s(60, there, rate=10.0).desired == 5
        assert run.for_s(30, there, rate=10.0).desired == 6, "they wait though it has been there for a window"

    def test_servers_that_start_are_the_answer_and_no_reason_to_ask_again(self) -> None:
        run = Run()
        run.for_s(120, servers(4, waiting=3.0, running=20.0), rate=10.0)
        there = [*servers(4, waiting=3.0, running=20.0), server(9, state=ServerState.STARTING)]
        assert run.for_s(600, there, rate=10.0).desired == 5

    def test_never_above_max_replicas(self) -> None:
        said = Run(policy(max_replicas=6)).for_s(180, servers(4, waiting=1e9), rate=1e6)
        assert said.desired == 6
        assert "max_replicas" in said.reason

    def test_from_zero_by_the_first_request(self) -> None:
        run = Run(policy(min_replicas=0))
        assert run.for_s(120, [], rate=0.0).desired == 0
        assert run.look([], rate=0.2).desired == 1

    def test_a_steep_ramp_asks_for_what_is_there_after_the_lead(self) -> None:
        run = Run()
        run.for_s(120, servers(4), rate=20.0)
        said = run.for_s(120, servers(4), rate=lambda s: 20.0 + 0.2 * s)
        assert said.desired is not None
        assert said.desired >= 6  # 44 a second now; +0.2 a second each second for 106 s

    def test_growth_that_is_designed_for_leaves_room_beforehand(self) -> None:
        plain = Run().for_s(180, servers(4), rate=35.0)
        leading = Run(policy(design_growth_per_s2=0.03)).for_s(180, servers(4), rate=35.0)
        assert (plain.desired, leading.desired) == (4, 6)  # 10 a server; 10 - 0.03 x 106 = 6.8 a server


class TestKvUsage:
    def test_one_server_full_of_long_requests_asks_for_nothing(self) -> None:
        run = Run()
        there = [server(0, kv=1.0), *(server(n, kv=0.79) for n in range(1, 8))]
        assert run.for_s(600, there, rate=10.0).desired == 8

    def test_but_no_server_goes_meanwhile(self) -> None:
        run = Run()
        there = [server(0, kv=1.0, running=1.0), *(server(n, kv=0.0, running=1.0) for n in range(1, 8))]
        said = run.for_s(1200, there, rate=1.0)
        assert said.desired == 8
        assert "a server has a KV usage of 100%" in said.reason

    def test_most_of_them_full_for_a_while_ask_for_more(self) -> None:
        run = Run()
        run.for_s(120, servers(4, kv=0.3), rate=10.0)
        first = run.for_s(60, servers(4, kv=1.0), rate=10.0)
        assert first.desired == 4
        assert run.for_s(120, servers(4, kv=1.0), rate=10.0).desired == 5

    def test_or_at_once_when_requests_wait(self) -> None:
        run = Run()
        run.for_s(120, servers(4, kv=0.3), rate=10.0)
        assert run.for_s(60, servers(4, kv=1.0, waiting=1.9), rate=10.0).desired == 5


class TestDown:
    def test_one_at_a_time_and_the_next_after_its_drain(self) -> None:
        run = Run()
        run.for_s(120, servers(4, running=1.0, kv=0.05), rate=2.0)
        assert run.for_s(300, servers(4, running=1.0, kv=0.05), rate=2.0).desired == 3
        assert run.for_s(900, servers(4, running=1.0, kv=0.05), rate=2.0).desired == 3  # it has not gone
        draining = [*servers(3, running=1.0, kv=0.05), server(3, state=ServerState.DRAINING)]
        assert run.for_s(900, draining, rate=2.0).desired == 3
        assert run.for_s(290, servers(3, running=1.0, kv=0.05), rate=2.0).desired == 3
        assert run.for_s(30, servers(3, running=1.0, kv=0.05), rate=2.0).desired == 2

    def test_a_moment_of_load_begins_the_wait_anew(self) -> None:
        run = Run()
        run.for_s(300, servers(4, running=1.0, kv=0.05), rate=2.0)
        run.for_s(60, servers(4, running=20.0, kv=0.7), rate=2.0)
        assert run.for_s(290, servers(4, running=1.0, kv=0.05), rate=2.0).desired == 4

    def test_two_cold_starts_if_that_is_longer(self) -> None:
        run = Run()
        low = servers(4, running=1.0, kv=0.05)
        assert run.for_s(900, low, rate=2.0, starts_s=(500.0,) * 5).desired == 4
        assert run.for_s(200, low, rate=2.0, starts_s=(500.0,) * 5).desired == 3

    @pytest.mark.parametrize("state", [ServerState.STARTING, ServerState.DRAINING, STALE])
    def test_not_while_one_starts_drains_or_is_unknown(self, state: ServerState) -> None:
        run = Run()
        there = [*servers(4, running=1.0, kv=0.05), server(9, state=state)]
        assert run.for_s(1500, there, rate=2.0).desired in (4, 5)
        assert all(said.desired == run.seen[0].desired for said in run.seen)

    def test_an_empty_queue_is_no_room_while_servers_run_what_they_can(self) -> None:
        said = Run().for_s(1500, servers(4, waiting=0.0, running=12.0, kv=0.1), rate=2.0)
        assert said.desired == 4
        assert "running would be 16 per server on 3" in said.reason

    def test_the_last_one_goes_only_when_nothing_comes(self) -> None:
        run = Run(policy(min_replicas=0))
        assert run.for_s(900, servers(1, running=0.0, kv=0.0), rate=0.01).desired == 1
        assert run.for_s(600, servers(1, running=0.0, kv=0.0), rate=0.0).desired == 0


class TestMissingData:
    @pytest.mark.parametrize("lost", [1, 2, 4])
    def test_servers_that_say_nothing_never_lower_the_number(self, lost: int) -> None:
        run = Run()
        run.for_s(120, servers(4, running=1.0, kv=0.05), rate=2.0)
        there = [*servers(4 - lost, running=1.0, kv=0.05), *(ServerReading(f"s{n}", STALE) for n in range(lost))]
        said = run.for_s(3600, there, rate=2.0)
        assert said.desired == 4
        assert f"{lost} of 4 servers" in said.reason

    def test_what_is_known_of_the_others_may_still_ask(self) -> None:
        run = Run()
        run.for_s(120, servers(4), rate=2.0)
        there = [*servers(3, waiting=30.0), ServerReading("s", STALE)]
        assert (run.for_s(60, there, rate=2.0).desired or 0) > 4

    @pytest.mark.parametrize("lost", [1, 2, 3])
    def test_servers_that_are_silent_for_a_moment_make_no_answer_seem_longer(self, lost: int) -> None:
        """Answers that take two minutes: what runs again on those that tell again did not begin meanwhile."""
        run = Run(policy(calibration=replace(CALIBRATION, kv_tokens=None)))
        there = servers(4, running=16.0, kv=0.3)
        holed = [server(i, state=STALE, running=None, waiting=None, kv=None) for i in range(lost)] + there[lost:]
        for seconds, seen in ((400, there), (15, holed), (120, there)):
            run.for_s(seconds, seen, 64.0 / 120.0, output=5990.0)
        assert {said.desired for said in run.seen} == {4}

    def test_of_no_server_known_for_long_it_is_stale_and_keeps_its_number(self) -> None:
        run = Run()
        run.for_s(120, servers(2), rate=2.0)
        gone = [ServerReading(f"10.0.0.{n}:8000", STALE) for n in range(2)]
        assert not run.for_s(290, gone, rate=2.0).stale
        said = run.for_s(30, gone, rate=2.0)
        assert said.stale
        assert said.desired == 2

    def test_without_an_arrival_rate_nothing_goes(self) -> None:
        said = Run().for_s(1500, servers(4, running=1.0, kv=0.05), rate=None)
        assert said.desired == 4
        assert "arrival rate is not known" in said.reason

    def test_a_page_that_lost_a_gauge_keeps_its_server(self) -> None:
        assert Run().for_s(1500, servers(4, running=1.0, kv=None), rate=2.0).desired == 4


class TestAnUncalibratedPool:
    def test_it_says_so_and_scales_by_safe_thresholds(self) -> None:
        run = Run(policy(calibration=None))
        assert "uncalibrated" in run.for_s(120, servers(2), rate=500.0).reason
        said = run.for_s(60, servers(2, waiting=1.5), rate=500.0)
        assert said.desired == 3
        assert not said.calibrated

    def test_no_server_is_believed_to_bear_more_than_it_was_seen_to(self) -> None:
        run = Run(policy(calibration=None))
        assert run.for_s(1500, servers(4, running=3.0, kv=0.1), rate=5.0).desired == 4
        run.for_s(120, servers(4, running=12.0, kv=0.3), rate=5.0)
        assert run.for_s(500, servers(4, running=3.0, kv=0.1), rate=5.0).desired == 3


def tokens(run: Run, slow: bool) -> Histogram:
    """All requests so far, in 0.1 to 0.2 s or in 2 to 4 s."""
    count = run.now * 2
    counts = (0.0, count, count, count, count) if not slow else (0.0, 0.0, 0.0, count, count)
    return Histogram((0.1, 0.2, 2.0, 4.0, float("inf")), counts, count)


class TestTheVerdict:
    def judged(self, run: Run, *, slow: bool, rate: float, count: int = 2, waiting: float = 0.0) -> Verdict | None:
        for _ in range(120):
            run.look(servers(count, waiting=waiting, ttft=tokens(run, slow)), rate)
        return run.seen[-1].verdict

    def test_within_the_target(self) -> None:
        assert self.judged(Run(), slow=False, rate=5.0) is Verdict.OK

    def test_late_when_no_signal_asked(self) -> None:
        assert self.judged(Run(), slow=True, rate=5.0) is Verdict.LATE

    def test_scaling_while_more_are_on_their_way(self) -> None:
        assert self.judged(Run(), slow=True, rate=35.0) is Verdict.SCALING

    def test_scaling_while_what_was_asked_for_works_the_queue_off(self) -> None:
        """For long: by a hundredth a second it is always gone soon, and asks for no more."""
        run = Run()
        run.for_s(120, servers(2, waiting=300.0), rate=5.0)
        for second in range(0, 500, 5):
            there = servers(run.seen[-1].desired or 0, waiting=300.0 * exp(-0.01 * second), ttft=tokens(run, slow=True))
            run.look(there, 5.0)
        waiting = next(row for row in run.seen[-1].signals if row.name is SignalName.WAITING)
        assert waiting.replicas is None
        assert run.seen[-1].verdict is Verdict.SCALING

    def test_at_capacity_when_there_may_be_no_more(self) -> None:
        assert self.judged(Run(policy(max_replicas=2)), slow=True, rate=35.0) is Verdict.AT_CAPACITY

    def test_early_when_past_the_knee_it_is_far_below_the_target(self) -> None:
        assert self.judged(Run(), slow=False, rate=35.0) is Verdict.EARLY

    def test_with_a_server_that_does_not_tell_the_thresholds_are_not_blamed_and_nothing_is_on_its_way(self) -> None:
        run = Run()
        assert self.judged(run, slow=True, rate=15.0) is Verdict.LATE
        there = [server(0, ttft=tokens(run, slow=True)), server(1, state=ServerState.STALE)]
        assert run.look(there, 15.0).verdict is None
        assert run.for_s(60, [server(number, state=ServerState.STALE) for number in range(2)], 15.0).verdict is None

    def test_nothing_is_judged_without_a_target_or_requests(self) -> None:
        assert self.judged(Run(policy(ttft_target_s=None)), slow=True, rate=5.0) is None
        assert Run().for_s(300, servers(2), rate=5.0).verdict is None


def test_a_ramp_that_is_faster_than_servers_come_names_the_number_of_min_replicas() -> None:
    run = Run()
    run.for_s(180, servers(1), rate=2.0)
    said = run.for_s(60, servers(1), rate=41.0)
    assert said.min_too_low == 4  # 39 a second more, 10 a server
    assert "min_replicas too low" in said.reason
    assert Run(policy(min_replicas=4)).for_s(60, servers(4), rate=2.0).min_too_low is None
