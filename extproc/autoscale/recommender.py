"""How many servers should this pool have now, and why?

Up at once, to the greatest of what the signals and the floors ask for. Down slowly: one server, after its load would
long have fitted on the others with room to spare, while nothing starts, drains or is unknown; and the next only
after that one is gone, by the same rule from its beginning. What is missing is unknown: it asks for nothing, and
nothing goes down while it is.

One `Recommender` a pool. It keeps what it said; whoever starts and stops servers is somebody else.
"""

from __future__ import annotations

from extproc.autoscale.calm import Calm
from extproc.autoscale.known import whole
from extproc.autoscale.needs import Need, asked, expected, kv_is_high, little
from extproc.autoscale.policy import Policy
from extproc.autoscale.pooling import pooled
from extproc.autoscale.reading import PoolReading
from extproc.autoscale.recommendation import Recommendation, Signal, SignalName, Verdict
from extproc.autoscale.schedule import Calendar
from extproc.autoscale.signals import TTFT_WINDOWS, PoolSignals, Signals
from extproc.autoscale.thresholds import Thresholds

_EARLY_RATIO = 0.5  # of the target: past the knee it should be near the target itself
_FLOORS = frozenset({SignalName.MIN_REPLICAS, SignalName.SCHEDULE})


class Recommender:
    """For one pool."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._signals = PoolSignals(policy.window_s, policy.sample_stale_after_s)
        self._calm = Calm()
        self._calendar = Calendar(policy.schedules)
        self._desired: int | None = None
        self._hold_until_s: float | None = None  # None: the servers are not known yet
        self._at_s = float("-inf")  # of the last look
        self._up_at_s = float("-inf")
        self._up_words = ""  # why, the last time
        self._low_since_s: float | None = None  # the load would fit on one server less; None: it would not
        self._kv_since_s: float | None = None  # KV usage is high; None: it is not
        self._asked_at_s = float("-inf")  # when signals last asked for more than was ready
        # The most requests per server that were seen running without a queue. Where no load test says what a server
        # can have, no more is believed.
        self._borne = 0.0

    def look(self, reading: PoolReading, unix_s: float) -> Recommendation:
        """Take in a look at the pool, and recommend. Looks must come in the order of time, several per window.

        `unix_s`: the time of day, for schedules.
        """
        policy, now = self.policy, reading.at_s
        cold_start_s = policy.cold_start.total_s(reading.starts_s)
        lead_s = policy.lead_s(cold_start_s)
        signals = self._signals.add(reading, lead_s)
        eases = policy.ease and policy.calibration is not None
        self._calm.note(signals, policy.ttft_target_s if eases else None, policy.window_s)
        room = self._room(signals)
        growth = max(policy.design_growth_per_s2, (signals.growth_per_s2 or 0.0) / max(1, signals.provisioned))
        led = policy.thresholds(growth, lead_s)
        designed = policy.thresholds(policy.design_growth_per_s2, lead_s)
        needs = expected(signals, designed, policy.knee, lead_s, room)
        rows = asked(
            signals,
            led,
            needs,
            calibration=policy.calibration,
            kv_lasts=self._kv_lasts(signals, led),
            lead_s=lead_s,
            min_replicas=policy.min_replicas,
            most=policy.max_replicas,
        )
        scheduled = self._calendar.asks(unix_s, lead_s)
        if scheduled is not None:
            replicas, schedule = scheduled
            words = f'the schedule "{schedule.start}" to "{schedule.end}" ({schedule.zone}) asks for {replicas}'
            rows.append(Signal(SignalName.SCHEDULE, None, None, min(replicas, policy.max_replicas), None, words))
        self._note(signals, led, rows)
        held = self._held(reading, policy.window_s)
        if held is None or self._desired is not None:
            reason = self._decide(signals, led, needs, rows, held, policy.down_s(cold_start_s))
        else:
            reason = f"nothing is recommended: {held}"
        self._at_s = now
        if policy.calibration is None:
            reason += "; the pool is uncalibrated, its thresholds are safe defaults"
        too_low = self._min_too_low(signals)
        if too_low is not None:
            reason += f"; min_replicas too low: the fastest ramp within {lead_s:.0f} s needs {too_low}"
        p99 = signals.ttft_p99_s
        stale = self._desired is None or signals.age_s is None or signals.age_s > policy.stale_after_s
        return Recommendation(
            at_s=now,
            desired=self._desired,
            reason=reason,
            signals=tuple(rows),
            provisioned=signals.provisioned,
            ready=signals.ready,
            starting=signals.starting,
            draining=signals.draining,
            stale_servers=signals.stale,
            verdict=self._verdict(signals, room),
            ttft_p99_s=None if p99 is None else p99.value,
            ttft_target_s=policy.ttft_target_s,
            age_s=signals.age_s,
            stale=stale,
            held=held,
            calibrated=policy.calibration is not None,
            cold_start_s=cold_start_s,
            lead_s=lead_s,
            min_too_low=too_low,
            calm=self._calm.now,
            room=room,
            down_ratio=self._calm.down_ratio,
        )

    def _room(self, signals: Signals) -> float:
        """How many times the load of the knee a server may have."""
        calibration = self.policy.calibration
        if calibration is None or not self._calm.now:
            return 1.0
        return pooled(1.0 / calibration.most_ratio, signals.provisioned)

    def _held(self, reading: PoolReading, window_s: float) -> str | None:
        """Why load does not change the number now; sets it when the servers are first known."""
        if self._hold_until_s is None:
            if not reading.known:
                return "the servers of the pool are not known yet"
            self._hold_until_s = reading.at_s + window_s
            self._desired = 0
        if reading.at_s < self._hold_until_s:
            left_s = self._hold_until_s - reading.at_s
            return f"the first window of signals is complete in {left_s:.0f} s"
        return None

    def _decide(
        self,
        signals: Signals,
        led: Thresholds,
        needs: list[Need],
        rows: list[Signal],
        held: str | None,
        down_s: float,
    ) -> str:
        """Set `_desired`, and say why."""
        before = self._desired or 0
        floor = max((row.replicas or 0 for row in rows if row.name in _FLOORS), default=0)
        if held is not None:
            self._low_since_s = None
            # What is there was asked for by somebody: by us, before we started.
            self._desired = max(before, floor, min(signals.provisioned, self.policy.max_replicas))
            return f"{self._desired} stay: {held}"
        most = max(rows, key=lambda row: row.replicas or 0)
        if (most.replicas or 0) > before:
            self._desired = most.replicas
            self._up_at_s, self._low_since_s = signals.at_s, None
            self._calm.up(signals.at_s)
            self._up_words = most.words
            return f"up from {before} to {self._desired}: {most.words}{self._bound(most)}"
        if signals.at_s - self._at_s > self.policy.window_s:
            self._low_since_s = None  # nobody looked: that is no proof
        kept = self._kept(signals, led, needs, floor, before)
        if kept is not None:
            self._low_since_s = None
            return f"{before} stay: {kept}{self._bound(most)}"
        if self._low_since_s is None:
            self._low_since_s = signals.at_s
        low_s = signals.at_s - max(self._low_since_s, self._up_at_s)
        left = min(signals.ready, before) - 1
        if low_s < down_s:
            return f"{before} stay: the load would fit on {left}, for {low_s:.0f} s of {down_s:.0f} s now"
        self._desired, self._low_since_s = before - 1, None
        ratio = self._calm.down_ratio
        self._calm.down(signals.at_s)
        fitted = f"the load would fit on {left} under {ratio:g} of every threshold, for {low_s:.0f} s now"
        return f"down from {before} to {self._desired}: {fitted}"

    def _kept(self, signals: Signals, led: Thresholds, needs: list[Need], floor: int, desired: int) -> str | None:
        """Why no server may go; None: the load would fit on the others."""
        if desired <= floor:
            return "no fewer are allowed" if desired else "nothing asks for a server"
        if signals.stale:
            return f"nothing is known of the load of {signals.stale} of {signals.provisioned} servers"
        if signals.starting:
            return f"{signals.starting} of {signals.provisioned} servers start ({self._up_words or 'since before us'})"
        if signals.draining:
            return f"{signals.draining} servers drain"
        if not signals.ready:
            return "no server is ready"
        if signals.ready > desired:
            return f"{signals.ready} are ready, and one has to go first"
        waiting, running, usage, rate = signals.waiting, signals.running, signals.kv_usage, signals.rate_per_s
        if not signals.all_loads_known or waiting is None or running is None or usage is None:
            return "waiting, running or KV usage of a server is not known"
        if rate is None:
            return "the arrival rate is not known"
        left = min(signals.ready, desired) - 1
        if not left:
            idle = not (rate.value or waiting.value or running.value)
            return None if idle else f"the last server has work ({rate.value:.3g} requests/s)"
        if self.policy.calibration is not None and not needs:
            return "the calibration does not tell what a server can have"
        ratio = self._calm.down_ratio
        for need in needs:
            if need.servers >= ratio * left > 0.0 and need.value:
                return f"{need.words}, would be over {ratio:g} of {left} servers"
        return _too_much(signals, led, led.running or self._borne, left, ratio)

    def _note(self, signals: Signals, led: Thresholds, rows: list[Signal]) -> None:
        # Those that have just come are the answer to what was asked.
        there = signals.ready - signals.fresh + signals.stale
        asked = any((row.replicas or 0) > there for row in rows if row.name not in _FLOORS)
        waiting, running = signals.waiting, signals.running
        if waiting is not None and running is not None and led.waiting is not None:
            if waiting.value <= led.waiting:
                self._borne = max(self._borne, running.value)
            elif signals.waiting_gone_in_s is not None:
                asked = True  # before: what was asked for is at work
        if asked:
            self._asked_at_s = signals.at_s

    def _kv_lasts(self, signals: Signals, led: Thresholds) -> bool:
        """Whether KV usage, itself a mean over a window, has been high for one more."""
        if not kv_is_high(signals, led.kv_usage_ratio):
            self._kv_since_s = None
            return False
        if self._kv_since_s is None:
            self._kv_since_s = signals.at_s
        return signals.at_s - self._kv_since_s >= self.policy.window_s

    def _bound(self, most: Signal) -> str:
        at_bound = most.name is not SignalName.MIN_REPLICAS and most.replicas == self.policy.max_replicas
        return ", which is max_replicas" if at_bound else ""

    def _verdict(self, signals: Signals, room: float) -> Verdict | None:
        p99, target_s = signals.ttft_p99_s, self.policy.ttft_target_s
        if p99 is None or target_s is None or self._desired is None:
            return None
        if p99.value <= target_s:
            early = p99.value < _EARLY_RATIO * target_s and self._past_knee(signals, room)
            return Verdict.EARLY if early else Verdict.OK
        if signals.ready + signals.stale < self._desired:
            return Verdict.SCALING
        if self._desired >= self.policy.max_replicas:
            return Verdict.AT_CAPACITY
        # What is over its target may have begun before the servers came that were asked for.
        lately = signals.at_s - self._asked_at_s <= TTFT_WINDOWS * self.policy.window_s
        if lately:
            return Verdict.SCALING
        return None if signals.stale else Verdict.LATE  # a server that does not tell may be the one that is full

    def _past_knee(self, signals: Signals, room: float) -> bool:
        """Whether the servers have more than they are thought to have at most within the target."""
        if self.policy.calibration is None or not signals.ready:
            return False
        knee = self.policy.knee
        if any(need.servers > signals.ready for need in little(signals.rate_per_s, signals, knee, room)):
            return True
        return signals.waiting is not None and knee.waiting is not None and signals.waiting.value > knee.waiting

    def _min_too_low(self, signals: Signals) -> int | None:
        """The rise itself must fit on the servers that are always there: others come when it is over."""
        rise, rate = signals.fastest_rise_per_s, signals.rate_per_s
        if rise is None or rate is None or rise <= 0.0:
            return None
        needs = little(type(rate)(rise, rate.age_s), signals, self.policy.knee)
        servers = max((whole(need.servers, self.policy.max_replicas) for need in needs), default=0)
        return servers if servers > self.policy.min_replicas else None


def _too_much(signals: Signals, led: Thresholds, running_each: float, left: int, ratio: float) -> str | None:
    """What of that which servers have now would be too much for `left` of them; None: nothing."""
    spread = signals.ready / left
    loads = (
        ("waiting", signals.waiting, led.waiting),
        ("running", signals.running, running_each),
        ("KV usage", signals.kv_usage, led.kv_usage_ratio),
    )
    for name, measured, threshold in loads:
        if measured is None:
            return f"{name} is not known"
        value = measured.value
        if threshold is None:
            return f"there is no threshold of {name}"
        if value * spread >= ratio * threshold and value:
            return f"{name} would be {value * spread:.3g} per server on {left}, over {ratio:g} of {threshold:.3g}"
    if led.kv_usage_ratio is not None and signals.kv_usages[-1] > led.kv_usage_ratio:
        return f"a server has a KV usage of {signals.kv_usages[-1]:.0%}, threshold {led.kv_usage_ratio:.0%}"
    return None
