"""The parts of a fleet that follows its load: traffic, platform, rules, the clairvoyant's plan, and one small run."""

from __future__ import annotations

from array import array
from math import inf

import pytest

from extproc.autoscale.cold_start import ColdStart
from extproc.endpoint import Address, Endpoint
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.sim.knee import between
from extproc.sim.scaling.clairvoyant import MOST_BLIND, by_load, least, loads, steps
from extproc.sim.scaling.hpa import Ask, Hpa
from extproc.sim.scaling.run import Plan, Ran, run
from extproc.sim.scaling.scalers import GaugeRule, RateRule, on_rate, planned
from extproc.sim.scaling.traffic import Coming, Traffic, always, bursts, ramp, steady, step
from extproc.sim.spec import EngineSpec

ENGINE = EngineSpec(
    base_step_s=0.02,
    per_prefill_token_s=0.001,
    per_decode_seq_s=0.001,
    block_size_tokens=64,
    num_gpu_blocks=200,
    max_num_seqs=8,
    max_model_len=2048,
    enable_prefix_caching=False,
)
COLD = ColdStart(node_s=5.0, image_s=5.0, weights_gb=0.0, engine_s=10.0)
LENGTHS = always(between((150, 250), (5, 15)))


def plan(rate: float = 2.0, seconds: float = 120.0, servers: int = 1, **more: int) -> Plan:
    return Plan(ENGINE, Traffic(seconds, steady(rate), LENGTHS).draw(1), seconds, servers, COLD, **more)


class TestTraffic:
    def test_it_comes_at_its_rate_and_the_same_for_a_seed(self) -> None:
        traffic = Traffic(4000.0, ramp(1.0, 3.0, 1000.0, 3000.0), LENGTHS)
        drawn = traffic.draw(1)
        assert drawn == traffic.draw(1) != traffic.draw(2)
        assert drawn == sorted(drawn)
        counts = [sum(low <= each.at_s < low + 1000.0 for each in drawn) / 1000.0 for low in range(0, 4000, 1000)]
        assert counts == pytest.approx([1.0, 1.5, 2.5, 3.0], rel=0.1)

    def test_bursts_and_steps_and_single_requests(self) -> None:
        rate = bursts(step(1.0, 2.0, 100.0), 3.0, every_s=50.0, seconds=10.0, from_s=120.0)
        assert [rate(at_s) for at_s in (0.0, 119.0, 120.0, 129.0, 131.0, 170.0)] == [1.0, 2.0, 6.0, 6.0, 2.0, 6.0]
        one = Coming(50.0, 7, 7)
        assert Traffic(100.0, steady(0.0), LENGTHS, (one,)).draw(1) == [one]

    def test_no_time_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="none"):
            Traffic(0.0, steady(1.0), LENGTHS)


class TestHpa:
    def hpa(self, replicas: int, **more: float) -> Hpa:
        return Hpa(replicas, min_replicas=0, max_replicas=40, **more)

    def test_within_a_tenth_nothing_happens_so_one_of_many_is_not_seen(self) -> None:
        assert self.hpa(4).sync(0.0, Ask(5, 5 / 4)) == 5
        assert self.hpa(9, stabilisation_s=0.0).sync(0.0, Ask(8, 8 / 9)) == 9, "the first look keeps what there is"
        quick = self.hpa(9, stabilisation_s=0.0)
        assert [quick.sync(at_s, Ask(8, 8 / 9)) for at_s in (0.0, 15.0)] == [9, 8]
        assert [self.hpa(n).sync(0.0, Ask(n + 1, (n + 1) / n)) for n in (9, 11, 20)] == [10, 11, 20]
        stuck = self.hpa(11, stabilisation_s=0.0)
        assert [stuck.sync(15.0 * i, Ask(10, 10 / 11)) for i in range(5)] == [11] * 5

    def test_down_goes_to_the_most_that_was_asked_for_in_five_minutes(self) -> None:
        hpa = self.hpa(6)
        seen = [hpa.sync(15.0 * i, Ask(4 if i == 10 else 2, (4 if i == 10 else 2) / hpa.replicas)) for i in range(40)]
        assert seen[:20] == [6] * 20
        assert seen[21:30] == [4] * 9
        assert seen[-1] == 2

    def test_up_goes_at_once_by_double_or_four(self) -> None:
        hpa = self.hpa(2)
        assert [hpa.sync(15.0 * i, Ask(30, 30 / hpa.replicas)) for i in range(3)] == [6, 12, 24]

    def test_from_none_it_goes_to_one_and_without_a_metric_nowhere(self) -> None:
        assert self.hpa(0).sync(0.0, Ask(5, 1.0)) == 1
        assert self.hpa(3).sync(0.0, None) == 3


def pool(*waiting: float | None) -> Pool:
    made = Pool("p", stale_after_s=3.0)
    endpoints = [Endpoint(Address.of("10.0.0.1", 8000 + n)) for n in range(len(waiting))]
    made.set_endpoints(endpoints)
    for endpoint, value in zip(endpoints, waiting, strict=True):
        if value is not None:
            made.observe(endpoint.address, LoadSample(0.0, running=1.0, waiting=value, kv_usage_ratio=0.1))
    return made


class TestRules:
    @pytest.mark.parametrize(
        ("waiting", "replicas"),
        [
            ((3.0, 5.0), 4),  # 4 on average, target 2
            ((1.0, 1.0), 1),
            ((6.0, None), 3),  # the silent one counts as idle: 3 on average
            ((0.5, None), 2),  # as right at the target: 1.25 on average
            ((3.0, None), 2),  # with it the others do not ask for more: nothing changes
        ],
    )
    def test_an_hpa_on_a_gauge_takes_the_mean_over_servers(
        self, waiting: tuple[float | None, ...], replicas: int
    ) -> None:
        rule = GaugeRule(pool(*waiting), lambda member: member.waiting, 2.0)
        rule.look(1.0)
        ask = rule.ask(1.0, len(waiting))
        assert ask is not None
        assert ask.replicas == replicas

    def test_without_any_reading_it_does_not_know(self) -> None:
        rule = GaugeRule(pool(None, None), lambda member: member.waiting, 2.0)
        rule.look(1.0)
        assert rule.ask(1.0, 2) is None

    def test_a_rate_is_that_of_the_last_minute(self) -> None:
        count = 0.0
        rule = RateRule(lambda: count, 2.0)
        for i in range(60):
            count += 5.0 * (9.0 if i >= 45 else 3.0)
            rule.look(5.0 * i)
        ask = rule.ask(295.0, 4)
        assert ask is not None
        assert (ask.replicas, ask.ratio) == (5, pytest.approx(4.5 / 4))


class TestARun:
    def test_every_request_is_answered_and_the_account_is_right(self) -> None:
        of = run(plan(), planned([(0.0, 1), (45.0, 2), (75.0, 1)]))
        assert all(0.15 < ttft_s < inf for ttft_s in of.ttft_s)
        assert (of.refused, of.in_flight_left) == (0, 0)
        assert of.wanted == [(0.0, 1), (45.0, 2), (75.0, 1)]
        assert [left for _, left in of.gone] == [0]
        assert of == run(plan(), planned([(0.0, 1), (45.0, 2), (75.0, 1)])), "the same again"

    def test_a_server_is_there_after_its_cold_start_and_paid_for_from_the_beginning(self) -> None:
        of = run(plan(), planned([(0.0, 1), (30.0, 2)]))
        ready_s = next(moment.at_s for moment in of.moments if moment.ready == 2)
        assert 30.0 + 0.9 * 20.0 <= ready_s <= 30.0 + 1.1 * 20.0 + 5.0
        assert of.replica_hours == pytest.approx((120.0 + 90.0) / 3600.0)
        starting = [moment for moment in of.moments if moment.starting]
        assert all(moment.ready == 1 and moment.there == 2 for moment in starting)

    def test_without_a_server_all_is_refused(self) -> None:
        of = run(plan(servers=0, min_replicas=0), planned([(0.0, 0)]))
        assert of.refused == len(of.arrivals)
        assert of.attained(10.0) == 0.0
        assert of.ttft_p99_s() == inf

    def test_what_cannot_be_run_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="3 servers are not within 1 and 2"):
            plan(servers=3, max_replicas=2)
        with pytest.raises(ValueError, match="max_model_len"):
            Plan(ENGINE, [Coming(0.0, 3000, 1)], 10.0, 1, COLD)

    def test_reversals_are_changes_of_direction_soon_after_another(self) -> None:
        wanted = ((0.0, 2), (100.0, 3), (200.0, 2), (900.0, 3), (1000.0, 4), (1100.0, 3))
        of = Ran([], array("d"), 1200.0, (), (), wanted, (), 1.0, 0, 0)
        assert of.reversals() == 2
        assert of.reversals(inf) == 3


class TestTheClairvoyant:
    def test_load_is_counted_in_servers_at_their_knee(self) -> None:
        arrivals = [Coming(float(i), 1, 1) for i in range(120)]
        assert loads(arrivals, 120.0, lambda at_s: 1.0 if at_s < 60.0 else 0.5) == pytest.approx([1.0, 2.0])

    def test_its_servers_are_asked_for_a_cold_start_before_they_are_needed(self) -> None:
        planned_steps = steps(plan(seconds=600.0), [1.0] * 5 + [2.6] + [1.0] * 4, 1.0)
        assert planned_steps == [(0.0, 1), (270.0, 3), (360.0, 1)]

    def test_without_foresight_a_minute_is_known_when_it_is_over(self) -> None:
        planned_steps = steps(plan(seconds=600.0), [1.0] * 5 + [2.6] + [1.0] * 4, 1.0, foresight=False)
        assert planned_steps == [(0.0, 1), (360.0, 3), (420.0, 1)]

    def test_the_least_that_does_is_found(self) -> None:
        """One server serves about 4 a second of 0.25 s each; so 6 a second take two, and one is not enough."""
        of = plan(rate=6.0, seconds=180.0, servers=2)
        bound = least(of, by_load(of, lambda _: 3.5), 5.0)
        assert bound is not None
        assert bound.ran.attained(5.0) >= 0.99
        assert bound.ran.replica_hours == pytest.approx(2 * 180.0 / 3600.0, rel=0.15)

    def test_a_rule_is_tuned_to_the_least_that_does(self) -> None:
        """4 a second are what one server serves, so half of that for each asks for one too many, and 8 for too few."""
        of = plan(rate=6.0, seconds=900.0, servers=2, max_replicas=4)
        bound = least(of, lambda factor: on_rate(4.0 / factor), 5.0, most=MOST_BLIND)
        assert bound is not None
        assert 0.75 <= bound.factor < 2.0
        assert bound.ran.attained(5.0) >= 0.99 > run(of, on_rate(8.0)).attained(5.0)
        assert bound.ran.replica_hours < run(of, on_rate(2.0)).replica_hours

    def test_where_nothing_does_there_is_no_bound(self) -> None:
        of = plan(rate=20.0, seconds=20.0, max_replicas=2)
        assert least(of, by_load(of, lambda _: 3.5), 1.0) is None
