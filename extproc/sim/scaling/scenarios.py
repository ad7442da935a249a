"""Which loads can a fleet be shown to follow?

Two fleets. The small one, of two to nine servers: a small and slow engine, so that a run takes seconds, with a cold
start of two minutes. A request alone has its first token after 0.4 s; the target, 5 s for the 99th percentile, is
twelve times that, as one second is where a prompt takes 80 ms. The large one is four times as large, and each of its
engines and its target half as fast, which halves the requests that a run has to compute. Rates are given in servers: 2
is the load that keeps two of them at the knee of the load test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, cos, pi

from extproc.autoscale.cold_start import ColdStart
from extproc.autoscale.policy import Policy
from extproc.autoscale.profile import Profile, StepRow
from extproc.autoscale.schedule import Schedule
from extproc.sim.knee import Draw, between, knee
from extproc.sim.scaling import scalers
from extproc.sim.scaling.hpa import TOLERANCE
from extproc.sim.scaling.run import Loss, Plan
from extproc.sim.scaling.scalers import Maker
from extproc.sim.scaling.traffic import Coming, Rate, Traffic, always, bursts, ramp, steady, step, then
from extproc.sim.spec import EngineSpec

TARGET_S = 5.0  # 99 of 100 requests have their first token within
MOST = 9  # servers: of ten or more the tolerance of an HPA hides one
SEED = 1
COLD_START = ColdStart(node_s=40.0, image_s=20.0, weights_gb=16.0, storage_gb_per_s=2.0, engine_s=52.0)
ENGINE = EngineSpec(
    # Assumed, to be small: a prompt of 2,000 tokens takes 0.33 s alone, a token of the answer about 40 ms.
    base_step_s=0.030,
    per_prefill_token_s=150e-6,
    per_decode_seq_s=0.3e-3,
    block_size_tokens=64,
    num_gpu_blocks=4000,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    max_model_len=110_000,
    enable_prefix_caching=False,
)
SLOWER = 2.0
LONG_S, LONG_AT_S = 8 * 3600.0, 2 * 3600.0  # a working day, and when its load changes
LENGTHS = between((1000, 3000), (50, 250))
LONGER = between((1500, 4500), (75, 375))  # one and a half times as long
LONG_ANSWERS = between((1000, 3000), (100, 500))


@dataclass(frozen=True, slots=True)
class Fleet:
    """What its servers are."""

    engine: EngineSpec
    target_s: float  # 99 of 100 requests have their first token within
    most: int  # servers
    tolerance: float  # of the HPA


SMALL = Fleet(ENGINE, TARGET_S, MOST, TOLERANCE)
LARGE = Fleet(
    replace(
        ENGINE,
        base_step_s=SLOWER * ENGINE.base_step_s,
        per_prefill_token_s=SLOWER * ENGINE.per_prefill_token_s,
        per_decode_seq_s=SLOWER * ENGINE.per_decode_seq_s,
    ),
    SLOWER * TARGET_S,
    4 * MOST,
    0.0,  # as the manifests that ship have it: of more than ten servers a tenth hides one
)


@cache
def profile(draw: Draw = LENGTHS, fleet: Fleet = SMALL) -> Profile:
    """The load test of one server of a fleet, in virtual time. It takes some seconds."""
    return knee(fleet.engine, draw, fleet.target_s, SEED)


def at_knee(fleet: Fleet = SMALL) -> StepRow:
    """What the load test read at the knee: the targets of the common rules."""
    tested = profile(fleet=fleet)
    return next(row for row in tested.steps if row.rate_per_s == tested.knee_per_s)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A load, and what the operator says."""

    words: str
    seconds: float
    rate: Rate  # in servers at their knee
    fleet: Fleet = SMALL
    servers: int | None = None  # ready at first; None: as many as the load of the beginning fills
    lengths: Callable[[float], Draw] = field(default_factory=lambda: always(LENGTHS))
    extra: tuple[Coming, ...] = ()
    min_replicas: int = 1
    max_replicas: int | None = None  # None: those of the fleet
    growth_ratio: float = 0.0  # of the knee: the load of a server may grow so much within a lead, by design
    schedules: tuple[Schedule, ...] = ()
    unix_s: float = 0.0  # the time of day at the beginning
    losses: tuple[Loss, ...] = ()

    def traffic(self) -> Traffic:
        per_server = profile(fleet=self.fleet).knee_per_s
        return Traffic(self.seconds, lambda at_s: per_server * self.rate(at_s), self.lengths, self.extra)

    @property
    def most(self) -> int:
        return self.fleet.most if self.max_replicas is None else self.max_replicas

    def plan(self, seed: int = SEED) -> Plan:
        """What is run."""
        first = self.servers
        if first is None:
            first = max(self.min_replicas, min(self.most, ceil(self.rate(0.0) - 1e-9)))
        return Plan(
            spec=self.fleet.engine,
            arrivals=self.traffic().draw(seed),
            seconds=self.seconds,
            servers=first,
            cold_start=COLD_START,
            min_replicas=self.min_replicas,
            max_replicas=self.most,
            losses=self.losses,
            tolerance=self.fleet.tolerance,
        )

    def policy(self, **changes: object) -> Policy:
        """What the recommender is told of the fleet."""
        plain = Policy(
            max_replicas=self.most,
            min_replicas=self.min_replicas,
            calibration=profile(fleet=self.fleet).calibration,
            ttft_target_s=self.fleet.target_s,
            cold_start=COLD_START,
            schedules=self.schedules,
            scrape_s=0.5,
        )
        lead_s = plain.lead_s(COLD_START.total_s())
        growth = self.growth_ratio * profile(fleet=self.fleet).knee_per_s / lead_s
        return replace(plain, design_growth_per_s2=growth, **changes)  # type: ignore[arg-type]

    def knee_per_s(self, at_s: float) -> float:
        """Of one server, with the lengths of that time."""
        return profile(self.lengths(at_s), self.fleet).knee_per_s


class NoLead(Policy):
    """The control: it takes servers to be there as soon as they are asked for."""

    def lead_s(self, cold_start_s: float) -> float:
        return 0.0


def without_lead(policy: Policy) -> Policy:
    return NoLead(**{name: getattr(policy, name) for name in Policy.__dataclass_fields__})


def sine(low: float, high: float, seconds: float) -> Rate:
    """From low to high and back, once."""
    return lambda at_s: low + (high - low) * (0.5 - 0.5 * cos(2 * pi * at_s / seconds))


POLICIES: Mapping[str, str] = {
    "ours": "the recommender",
    "no-lead": "the recommender, made to think that servers are there at once",
    "hpa-waiting": "HPA on waiting requests per server, target as at the knee",
    "hpa-kv": "HPA on KV usage, target as at the knee",
    "keda-rate": "KEDA on requests a second, target the knee",
    "keda-tuned": "the same with the target that costs least and keeps 99 %, found by trying on these very requests",
    "static-peak": "always as many as the busiest minute fills at the knee",
    "clairvoyant": "the fewest that do, for one who knows what will come",
    "no-foresight": "the same for one who knows what comes in a minute when it is over, and nothing before",
}


def maker(policy: str, scenario: Scenario, plan: Plan) -> Maker:
    """The scaler of a policy that needs no search. Raises KeyError for another."""
    if policy == "ours":
        return scalers.ours(scenario.policy(), scenario.unix_s)
    if policy == "no-lead":
        return scalers.ours(without_lead(scenario.policy()), scenario.unix_s)
    if policy == "hpa-waiting":
        return scalers.on_waiting(at_knee(scenario.fleet).waiting or 1.0)
    if policy == "hpa-kv":
        return scalers.on_kv_usage(at_knee(scenario.fleet).kv_usage_ratio or 1.0)
    if policy == "keda-rate":
        return keda(scenario)
    if policy == "static-peak":
        from extproc.sim.scaling.clairvoyant import loads

        peak = max(loads(plan.arrivals, plan.seconds, scenario.knee_per_s))
        return scalers.planned([(0.0, min(plan.max_replicas, max(1, ceil(peak))))])
    raise KeyError(policy)


def keda(scenario: Scenario, factor: float = 1.0) -> Maker:
    """It asks for so many times as many as fill at the knee."""
    return scalers.on_rate(profile(fleet=scenario.fleet).knee_per_s / factor)


def _long_prompts() -> tuple[Coming, ...]:
    """While eight servers may not go yet. Each is nearly half of a server's cache."""
    return tuple(Coming(155.0 + 8.0 * i, 100_000, 3000) for i in range(3))


SCENARIOS: Mapping[str, Scenario] = {
    "day": Scenario(
        "a day's sine in two hours, and every quarter of an hour a minute at one and a half times the rate",
        7200.0,
        bursts(sine(1.2, 5.5, 7200.0), 1.5, every_s=900.0, seconds=60.0, from_s=450.0),
    ),
    "full-day": Scenario(
        "a day's sine in its 24 hours, and every three minutes ten seconds at twice the rate",
        86_400.0,
        bursts(sine(1.2, 5.5, 86_400.0), 2.0, every_s=180.0, seconds=10.0, from_s=90.0),
    ),
    "long-step": Scenario(
        "half as much again at once, after two of eight hours", LONG_S, step(8.8, 13.2, LONG_AT_S), LARGE
    ),
    "long-ramp": Scenario(
        "from 6.4 to 16.8 in twenty minutes, after two of eight hours",
        LONG_S,
        ramp(6.4, 16.8, LONG_AT_S, LONG_AT_S + 1200.0),
        LARGE,
    ),
    "long-lengths": Scenario(
        "prompts and answers half as long again, at an equal rate, after two of eight hours",
        LONG_S,
        steady(8.8),
        LARGE,
        lengths=then(LENGTHS, LONGER, LONG_AT_S),
    ),
    "step": Scenario("half as much again at once", 2400.0, step(2.2, 3.3, 800.0)),
    "ramp": Scenario("from 1.6 to 4.2 in twenty minutes", 2400.0, ramp(1.6, 4.2, 400.0, 1600.0)),
    "lengths": Scenario(
        "prompts and answers half as long again, at an equal rate",
        2400.0,
        steady(2.2),
        lengths=then(LENGTHS, LONGER, 800.0),
    ),
    "large-day": Scenario(
        "a day's sine in four hours, and every three minutes ten seconds at one and a half times the rate",
        14400.0,
        bursts(sine(4.8, 22.0, 14400.0), 1.5, every_s=180.0, seconds=10.0, from_s=90.0),
        LARGE,
    ),
    "large-step": Scenario("half as much again at once", 2400.0, step(8.8, 13.2, 800.0), LARGE),
    "large-ramp": Scenario("from 6.4 to 16.8 in twenty minutes", 2400.0, ramp(6.4, 16.8, 400.0, 1600.0), LARGE),
    "large-lengths": Scenario(
        "prompts and answers half as long again, at an equal rate",
        2400.0,
        steady(8.8),
        LARGE,
        lengths=then(LENGTHS, LONGER, 800.0),
    ),
    "steady": Scenario("the same load for two hours, with the noise of chance", 7200.0, steady(2.2), servers=3),
    "growth": Scenario(
        "a ramp within the growth that the operator designs for, 1.6 to 4.8 in 400 s",
        1000.0,
        ramp(1.6, 4.8, 200.0, 600.0),
        servers=3,
        growth_ratio=0.45,
    ),
    "doubling": Scenario("twice as much at once", 1500.0, step(2.0, 4.0, 300.0), servers=3),
    "bursts": Scenario(
        "ten seconds at twice the rate, every three minutes",
        1800.0,
        bursts(steady(2.0), 2.0, every_s=180.0, seconds=10.0, from_s=100.0),
        servers=4,
    ),
    "long-prompts": Scenario(
        "three requests of 100,000 tokens among others, two on one of eight servers", 1200.0, steady(4.0), servers=8,
        extra=_long_prompts(),
    ),
    "long-answers": Scenario(
        "answers twice as long from a time on, at an equal rate",
        1200.0,
        steady(2.4),
        lengths=then(LENGTHS, LONG_ANSWERS, 600.0),
        servers=3,
    ),
    "prefill": Scenario(
        "long prompts with few tokens of answer, so that KV usage stays low",
        1500.0,
        step(1.2, 3.4, 300.0),
        servers=2,
        lengths=always(between((1500, 3500), (1, 9))),
    ),
    "metrics-lost-one": Scenario(
        "low load; the metrics of one server are lost for ten minutes", 1800.0, steady(1.0), servers=4,
        losses=(Loss(200.0, 800.0, 1),),
    ),
    "metrics-lost-half": Scenario(
        "low load; the metrics of half of the servers are lost for ten minutes", 1800.0, steady(1.0), servers=4,
        losses=(Loss(200.0, 800.0, 2),),
    ),
    "metrics-lost-all": Scenario(
        "low load; all metrics are lost for ten minutes", 1800.0, steady(1.0), servers=4,
        losses=(Loss(200.0, 800.0, 4),),
    ),
    "falling": Scenario(
        "the load falls to an eighth", 2700.0, ramp(4.0, 0.5, 200.0, 500.0), servers=5
    ),
    "from-zero": Scenario("requests come, and there is no server", 900.0, steady(1.5), servers=0, min_replicas=0),
    "at-max": Scenario("twice what all servers can bear", 900.0, steady(4.0), servers=2, max_replicas=2),
}  # fmt: skip
