"""Signals are weighted by time, gaps are unknown, and noise is no growth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan
from random import Random
from statistics import fmean

import pytest

from extproc.autoscale.arrivals import Arrivals
from extproc.autoscale.cold_start import ColdStart, lead_s
from extproc.autoscale.first_token import FirstTokens, p99_s
from extproc.autoscale.growth import jumps, slope
from extproc.autoscale.reading import Offered
from extproc.autoscale.thresholds import LEAST_KV_RATIO, LEAST_WAITING, Step
from extproc.autoscale.window import Window
from extproc.pool.sample import Histogram
from tests.autoscale.fleet import CALIBRATION, steps


class TestAWindow:
    def test_a_mean_is_weighted_by_time_and_not_by_samples(self) -> None:
        window = Window(60.0, 60.0)
        window.add(0.0, 10.0)
        for i in range(100):
            window.add(30.0 + i / 100, 0.0)
        assert window.mean(60.0).value == pytest.approx(5.0)  # type: ignore[union-attr]

    def test_a_gap_is_neither_zero_nor_the_last_value_for_ever(self) -> None:
        window = Window(60.0, 5.0)
        window.add(0.0, 10.0)
        window.add(50.0, 20.0)
        assert window.mean(55.0).value == pytest.approx(15.0)  # type: ignore[union-attr]
        assert window.mean(55.0).age_s == 5.0  # type: ignore[union-attr]
        assert window.mean(200.0) is None

    @pytest.mark.parametrize("value", [None, nan, inf, -1.0])
    def test_what_no_gauge_can_be_is_unknown_from_then_on(self, value: float | None) -> None:
        window = Window(60.0, 60.0)
        window.add(0.0, 10.0)
        window.add(10.0, value)
        window.add(20.0, 30.0)
        assert window.mean(30.0).value == pytest.approx(20.0)  # type: ignore[union-attr]

    def test_of_its_end_and_without_its_greatest_part(self) -> None:
        window = Window(180.0, 5.0, parts=36)
        for i in range(180):
            window.add(float(i), 9.0 if 140 <= i < 150 else 60.0 if i < 60 else 1.0)
        assert window.mean(180.0, over_s=60.0).value == pytest.approx((50 * 1.0 + 10 * 9.0) / 60.0)  # type: ignore[union-attr]
        assert window.mean(180.0, over_s=60.0, leave_out=1 / 3).value == pytest.approx(1.0)  # type: ignore[union-attr]
        assert window.mean(180.0, over_s=60.0, leave_out=0.1).value == pytest.approx((50 + 4 * 9) / 54)  # type: ignore[union-attr]

    def test_its_memory_is_bounded_and_its_mean_right_however_often_it_is_read(self) -> None:
        window = Window(60.0, 5.0)
        for i in range(60_001):
            window.add(i / 1000, float(i % 2))
        assert len(window._pieces) <= 260
        assert window.mean(60.0).value == pytest.approx(0.5, abs=0.01)  # type: ignore[union-attr]


class TestGrowth:
    def test_a_line_has_its_slope_in_any_order(self) -> None:
        points = [(float(t), 3.0 * t) for t in range(12)]
        Random(1).shuffle(points)
        assert slope(points) == pytest.approx(3.0)

    def test_single_bursts_are_no_growth(self) -> None:
        assert slope([(float(t), 100.0 if t == 9 else 5.0) for t in range(12)]) == 0.0

    def test_noise_is_mostly_none(self) -> None:
        random = Random(7)
        found = [slope([(t, random.gauss(50.0, 5.0)) for t in range(12)]) for _ in range(300)]
        assert sum(each != 0.0 for each in found) < 30  # 5 % by chance

    def test_of_few_points_nothing_is_said(self) -> None:
        assert slope([(0.0, 1.0)] * 5) is None

    def test_a_jump_is_none_and_a_ramp_is(self) -> None:
        random = Random(5)
        for _ in range(100):
            noise = [random.gauss(0.0, 0.3) for _ in range(24)]
            assert jumps([(float(t), noise[t] + (4.0 if t >= 14 else 0.0)) for t in range(24)])
            assert not jumps([(float(t), noise[t] + 4.0 * t / 24) for t in range(24)])
        assert jumps([(0.0, 1.0)])


def six_a_second(seed: int) -> Iterator[tuple[float, Arrivals]]:
    """Requests that come by chance, for ten hours, looked at every 5 s: the time and the arrivals, once a minute."""
    random, arrivals, count, due_s = Random(seed), Arrivals(60.0), 0.0, 0.0
    for i in range(7200):
        while due_s <= i * 5.0:
            due_s += random.expovariate(6.0)
            count += 1.0
        arrivals.add(i * 5.0, Offered(count), 176.0)
        if i % 12 == 0:
            yield i * 5.0, arrivals


class TestArrivals:
    def test_rate_and_lengths_are_of_the_window(self) -> None:
        arrivals = Arrivals(60.0)
        for i in range(61):
            arrivals.add(i * 5.0, Offered(i * 20.0, i * 10.0, i * 10.0 * 700.0, i * 10.0 * 300.0, i * 900.0), 100.0)
        assert arrivals.rate_per_s(300.0).value == pytest.approx(4.0)  # type: ignore[union-attr]
        assert arrivals.tokens("uncached_tokens", 300.0).value == pytest.approx(300.0)  # type: ignore[union-attr]
        assert arrivals.tokens("output_tokens", 300.0).value == pytest.approx(90.0)  # type: ignore[union-attr]
        assert arrivals.growth_per_s2(300.0) == 0.0

    def test_a_steady_rate_is_counted_for_longer_than_a_window(self) -> None:
        """Six a second for ten hours: of one window their number has a variance of 6 / 60, of three 6 / 180."""
        off = []
        for minute, (now, arrivals) in enumerate(six_a_second(seed=4)):
            if minute > 5:
                found = arrivals.rate_per_s(now)
                assert found is not None
                off.append(found.value - 6.0)
        assert fmean(each * each for each in off) < 0.6 * 6.0 / 60.0

    def test_a_change_that_is_no_chance_is_told_by_the_last_window_alone(self) -> None:
        arrivals = Arrivals(60.0)
        for i in range(133):
            at_s = i * 5.0
            arrivals.add(at_s, Offered(6.0 * at_s + max(0.0, at_s - 600.0) * 3.0), 176.0)
            if at_s == 600.0:
                before = arrivals.rate_per_s(at_s)
        after = arrivals.rate_per_s(660.0)
        assert before is not None
        assert after is not None
        assert (before.value, after.value) == (pytest.approx(6.0), pytest.approx(9.0))

    @pytest.mark.parametrize("offset_s", [0.0, 3.0, 6.0])
    def test_a_burst_counts_in_the_longer_mean_and_not_by_its_window(self, offset_s: float) -> None:
        """Ten seconds at twice the rate are 1/18 of three windows, but 1/6 of one."""
        arrivals = Arrivals(60.0)
        rates = []
        for i in range(300):
            at_s = i * 5.0
            bursts = sum(min(10.0, max(0.0, at_s - from_s)) for from_s in (300.0 + offset_s, 900.0 + offset_s))
            arrivals.add(at_s, Offered(12.0 * (at_s + bursts)), 176.0)
            if at_s >= 300.0:
                rates.append(arrivals.rate_per_s(at_s).value)  # type: ignore[union-attr]
        assert min(rates) == pytest.approx(12.0)
        assert max(rates) <= 12.0 * (1 + 1 / 18) + 1e-9

    def test_bursts_that_come_again_and_again_are_load(self) -> None:
        """Twenty seconds of each minute at three times the rate."""
        arrivals, count = Arrivals(60.0), 0.0
        for i in range(400):
            at_s = i * 5.0
            count += 5.0 * (24.0 if at_s % 60.0 < 20.0 else 8.0)
            arrivals.add(at_s + 5.0, Offered(count), 176.0)
            if at_s >= 300.0:
                found = arrivals.rate_per_s(at_s + 5.0)
                assert found is not None
                assert found.value == pytest.approx(40.0 / 3.0, rel=0.05)

    def test_what_lasts_for_more_than_a_third_of_a_window_is_no_burst(self) -> None:
        arrivals = Arrivals(60.0)
        seen = {}
        for i in range(133):
            at_s = i * 5.0
            arrivals.add(at_s, Offered(12.0 * (at_s + max(0.0, at_s - 600.0))), 176.0)
            seen[at_s] = arrivals.rate_per_s(at_s)
        assert seen[640.0].value > 1.3 * 12.0  # type: ignore[union-attr]
        assert seen[660.0].value == pytest.approx(24.0)  # type: ignore[union-attr]

    def test_few_requests_by_chance_are_no_bursts(self) -> None:
        """One in ten seconds, for ten hours: what is counted is as many as came."""
        random, arrivals, count, due_s = Random(3), Arrivals(60.0), 0.0, 0.0
        found = []
        for i in range(7200):
            while due_s <= i * 5.0:
                due_s += random.expovariate(0.1)
                count += 1.0
            arrivals.add(i * 5.0, Offered(count), 176.0)
            if i > 60:
                found.append(arrivals.rate_per_s(i * 5.0).value)  # type: ignore[union-attr]
        assert fmean(found) == pytest.approx(0.1, rel=0.1)

    @pytest.mark.parametrize("told", [True, False])
    def test_answers_do_not_seem_shorter_while_the_rate_rises(self, told: bool) -> None:
        """Answers of 90 tokens take 30 s each, and the rate doubles within a look: of what begins meanwhile not all is
        generated yet."""
        arrivals, begun, generated = Arrivals(60.0), [0.0], 0.0
        lengths = []
        for i in range(1, 200):
            begun.append(begun[-1] + 5.0 * (4.0 if i < 120 else 8.0))
            running = begun[i] - begun[max(0, i - 6)]
            generated += 5.0 * running * 90.0 / 30.0
            offered = Offered(begun[i], begun[i], begun[i] * 700.0, begun[i] * 700.0, generated)
            arrivals.add(i * 5.0, offered, 176.0, running if told else None)
            if i > 60:
                lengths.append(arrivals.tokens("output_tokens", i * 5.0).value)  # type: ignore[union-attr]
        assert (min(lengths) > 0.95 * 90.0) is told
        assert max(lengths) < 1.1 * 90.0

    def test_what_came_while_nobody_looked_is_spread_over_that_time(self) -> None:
        arrivals = Arrivals(60.0)
        arrivals.add(0.0, Offered(0.0), 100.0)
        arrivals.add(600.0, Offered(1200.0), 100.0)
        assert arrivals.rate_per_s(600.0).value == 2.0  # type: ignore[union-attr]

    def test_counters_that_begin_anew_are_no_negative_rate(self) -> None:
        arrivals = Arrivals(60.0)
        arrivals.add(0.0, Offered(1e6), 100.0)
        arrivals.add(30.0, Offered(0.0), 100.0)
        assert arrivals.rate_per_s(30.0) is None
        arrivals.add(60.0, Offered(90.0), 100.0)
        assert arrivals.rate_per_s(60.0).value == 3.0  # type: ignore[union-attr]

    def test_a_counter_that_is_not_there_is_unknown(self) -> None:
        arrivals = Arrivals(60.0)
        for i in range(20):
            arrivals.add(i * 10.0, Offered(), 100.0)
        assert arrivals.rate_per_s(190.0) is None
        assert arrivals.growth_per_s2(190.0) is None

    @pytest.mark.parametrize("lead_s", [56.0, 176.0, 600.0])
    def test_a_steady_ramp_has_its_growth(self, lead_s: float) -> None:
        arrivals = Arrivals(60.0)
        for i in range(400):
            at_s = i * 5.0
            arrivals.add(at_s, Offered(0.01 * at_s**2 / 2.0), lead_s)
        growth = arrivals.growth_per_s2(at_s)
        assert growth is not None
        assert growth == pytest.approx(0.01, rel=0.1)

    def test_a_step_is_soon_no_growth_any_more(self) -> None:
        arrivals = Arrivals(60.0)
        most = 0.0
        for i in range(400):
            at_s = i * 5.0
            arrivals.add(at_s, Offered(4.0 * at_s + max(0.0, at_s - 900.0) * 4.0), 176.0)
            rate, growth = arrivals.rate_per_s(at_s), arrivals.growth_per_s2(at_s)
            if rate is not None and growth is not None:
                most = max(most, rate.value + 176.0 * growth)
        assert 8.0 <= most <= 8.0 + 0.5 * 4.0
        assert arrivals.growth_per_s2(at_s) == 0.0, "it is over"

    def test_a_burst_as_long_as_a_window_is_no_growth(self) -> None:
        arrivals, count = Arrivals(60.0), 0.0
        for i in range(400):
            count += 5.0 * (9.0 if 1000.0 <= i * 5.0 < 1060.0 else 6.0)
            arrivals.add(i * 5.0, Offered(count), 176.0)
            assert 176.0 * max(0.0, arrivals.growth_per_s2(i * 5.0) or 0.0) <= 0.5 * 3.0

    def test_chance_is_hardly_ever_growth(self) -> None:
        """Six requests a second for ten hours: at most one look of fifty sees growth, and then little of it."""
        seen = [max(0.0, arrivals.growth_per_s2(now) or 0.0) * 176.0 for now, arrivals in six_a_second(seed=3)]
        assert sum(rise > 0.0 for rise in seen) <= 0.02 * len(seen)
        assert max(seen) < 2.0


class TestFirstTokens:
    def test_only_what_was_observed_lately_counts(self) -> None:
        tokens = FirstTokens(60.0)
        tokens.add(0.0, Histogram((1.0, 2.0, inf), (0.0, 1e6, 1e6), 0.0))
        tokens.add(50.0, Histogram((1.0, 2.0, inf), (200.0, 1e6 + 200, 1e6 + 200), 0.0))
        found = p99_s([tokens.lately(50.0)])
        assert found is not None
        assert found.value == pytest.approx(0.99)

    def test_servers_with_other_buckets_are_added_up_in_those_that_all_have(self) -> None:
        one = Histogram((1.0, 2.0, inf), (90.0, 100.0, 100.0), 0.0)
        other = Histogram((0.5, 2.0, inf), (50.0, 100.0, 100.0), 0.0)
        found = p99_s([(one, 0.0), (other, 2.0)])
        assert found is not None
        assert (found.value, found.age_s) == (pytest.approx(1.98), 2.0)
        assert found == p99_s([(other, 2.0), (one, 0.0)])

    def test_of_few_requests_there_is_none(self) -> None:
        assert p99_s([(Histogram((1.0, inf), (99.0, 99.0), 0.0), 0.0), None]) is None

    def test_another_process_begins_anew(self) -> None:
        tokens = FirstTokens(60.0)
        tokens.add(0.0, Histogram((1.0, inf), (500.0, 500.0), 0.0))
        tokens.add(10.0, Histogram((1.0, inf), (5.0, 5.0), 0.0))
        found = tokens.lately(10.0)
        assert found is not None
        assert found[0].count == 0.0


class TestThresholds:
    def test_growth_lowers_them_down_to_a_floor(self) -> None:
        assert CALIBRATION.led(0.0, 100.0).running == pytest.approx(20.0)
        assert CALIBRATION.led(0.03, 100.0).running == pytest.approx(14.0)  # at 7 of 10 a second
        assert CALIBRATION.led(1e300, 1e300).rate_per_s == 4.0
        assert CALIBRATION.led(0.06, 100.0).waiting == LEAST_WAITING

    def test_a_cache_that_is_half_empty_lacks_no_room(self) -> None:
        low = replace(
            CALIBRATION, steps=tuple(replace(s, kv_usage_ratio=(s.kv_usage_ratio or 0.0) / 4) for s in steps())
        )
        assert (low.at(10.0).kv_usage_ratio, low.at(10.0).kv_tokens) == (LEAST_KV_RATIO, 26_125.0 * LEAST_KV_RATIO)
        assert CALIBRATION.at(10.0).kv_usage_ratio == pytest.approx(0.8)

    def test_a_longer_answer_stays_longer(self) -> None:
        knee = CALIBRATION.at(10.0)
        assert knee.residence_s(None, None) == pytest.approx(2.0)
        assert knee.residence_s(1000.0, 190.0) == pytest.approx(4.0)
        assert knee.residence_s(2000.0, 90.0) == pytest.approx(2.2)

    def test_a_kv_usage_belongs_to_a_rate_of_the_table(self) -> None:
        rates = {0.0: 2.0, 0.16: 2.0, 0.4: 5.0, 0.8: 10.0, 0.96: 12.0, 1.0: 12.0}
        assert {kv: CALIBRATION.rate_at_kv_usage(kv) for kv in rates} == pytest.approx(rates)
        assert replace(CALIBRATION, steps=(Step(1.0),)).rate_at_kv_usage(0.5) is None
        noisy = replace(CALIBRATION, steps=(Step(1.0, kv_usage_ratio=0.2), Step(2.0, kv_usage_ratio=0.1)))
        assert noisy.rate_at_kv_usage(0.15) == 1.0

    def test_a_kv_usage_past_the_limit_belongs_to_what_was_served_there(self) -> None:
        """20 a second were offered and 12 served: so full a server needs a fifth more of them than at 10, not twice as
        many."""
        over = Step(20.0, kv_usage_ratio=1.0, prefill_tokens_per_s=12_000.0)
        calibration = replace(CALIBRATION, steps=(*steps(), over))
        assert calibration.rate_at_kv_usage(1.0) == pytest.approx(12.0)

    def test_how_long_requests_stay_is_what_ran_at_once_by_the_rate(self) -> None:
        """Now and then a token waits for the prompts of others, which its median does not show: by it a request would
        stay for 2 s, and 3 s is what 30 at once at 10 a second are."""
        calibration = replace(CALIBRATION, steps=tuple(replace(s, running=s.rate_per_s * 3.0) for s in steps()))
        assert calibration.at(10.0).residence_s(None, None) == pytest.approx(3.0)
        assert calibration.at(10.0).residence_s(1000.0, 190.0) == pytest.approx(6.0)


class TestTheColdStart:
    def test_it_is_node_image_weights_and_engine(self) -> None:
        cold = ColdStart(node_s=30.0, image_s=10.0, weights_gb=141.0, storage_gb_per_s=2.0, engine_s=20.0)
        assert cold.total_s() == pytest.approx(130.5)
        assert lead_s(130.5, 60.0, 1.0, 15.0) == pytest.approx(176.5)

    def test_measured_starts_take_its_place_except_for_the_node_which_nobody_sees(self) -> None:
        cold = ColdStart(node_s=30.0, image_s=10.0, weights_gb=0.0, engine_s=90.0)
        assert cold.total_s((20.0, 20.0)) == 130.0  # too few to believe that it is so quick
        assert cold.total_s((200.0,)) == 230.0
        assert cold.total_s(tuple(float(n) for n in range(1, 21))) == 48.0

    def test_what_cannot_be_meant_is_refused(self) -> None:
        with pytest.raises(ValueError, match="storage_gb_per_s"):
            ColdStart(storage_gb_per_s=0.0)
