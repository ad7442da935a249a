"""How many servers does each signal ask for?

Little's law: requests that come at a rate and stay for a time are rate x time at once. The time is that at the point
where a server should work, with the lengths of now, so that a number follows before any queue has formed. Two rates
are asked about, and the greater need counts: that of now, against thresholds that leave room for the growth the
operator designs for; and that which will be there after the lead as the rate grows now, against those of the knee. So
growth is counted once, whichever is greater.

Waiting and KV usage are what servers say. They count against thresholds that leave room for the greater growth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from extproc.autoscale.known import Measured, known, whole
from extproc.autoscale.recommendation import Signal, SignalName
from extproc.autoscale.signals import Signals
from extproc.autoscale.thresholds import Calibration, Thresholds

_WITH_WAITING_RATIO = 0.5  # of the threshold of waiting: then a full KV cache is no accident


@dataclass(frozen=True, slots=True)
class Need:
    """What Little's law gives for one resource."""

    name: SignalName
    value: float  # of the whole pool
    threshold: float  # of one server
    age_s: float
    words: str

    @property
    def servers(self) -> float:
        return self.value / self.threshold


def little(rate: Measured | None, signals: Signals, per_server: Thresholds, room: float = 1.0) -> list[Need]:
    """The need of each resource of which enough is known, at this rate. `room`: a server may have so many times what
    its thresholds say."""
    if rate is None:
        return []
    uncached = _value(signals.uncached_tokens, per_server.uncached_tokens)
    output = _value(signals.output_tokens, per_server.output_tokens)
    prompt = _value(signals.prompt_tokens, uncached)
    stay_s = per_server.residence_s(uncached, output)
    needs = []

    def need(name: SignalName, value: float | None, threshold: float | None, words: str) -> None:
        if value is not None and known(value) is not None and threshold and known(value / threshold) is not None:
            allowed = threshold * room
            of_test = f" ({room:.0%} of the load test)" if room > 1.0 else ""
            needs.append(Need(name, value, allowed, rate.age_s, f"{words}, {allowed:,.4g} a server{of_test}"))

    per_s = f"{rate.value:.3g} requests/s"
    if stay_s is not None:
        need(SignalName.REQUESTS, rate.value * stay_s, per_server.running, f"{per_s} for {stay_s:.3g} s each")
    if uncached is not None:
        per_prompt = f"{per_s} with {uncached:,.0f} tokens to compute each"
        need(SignalName.PREFILL, rate.value * uncached, per_server.prefill_tokens_per_s, per_prompt)
    if stay_s is not None and prompt is not None and output is not None:
        held = prompt + output / 2.0  # an answer grows while it is there
        words = f"{per_s} that hold {held:,.0f} tokens for {stay_s:.3g} s each"
        need(SignalName.KV_TOKENS, rate.value * stay_s * held, per_server.kv_tokens, words)
    return needs


def expected(signals: Signals, designed: Thresholds, knee: Thresholds, lead_s: float, room: float = 1.0) -> list[Need]:
    """Of each resource the greater of what is needed now and what will be after the lead. `room`: a server may have so
    many times as much while nothing grows; as much as the load will grow, so much less."""
    rate = signals.rate_per_s
    greatest = {need.name: need for need in little(rate, signals, designed, room)}
    # What chance makes of a slope asks for nothing.
    growth = max(0.0, (signals.growth_per_s2 or 0.0) - signals.growth_chance_per_s2)
    if rate is not None and growth:
        later = Measured(rate.value + growth * lead_s, rate.age_s)
        left = max(1.0, room - growth * lead_s / rate.value) if rate.value else 1.0
        for need in little(later, signals, knee, left):
            if need.name not in greatest or need.servers > greatest[need.name].servers:
                soon = f"in {lead_s:.0f} s {need.words}"
                greatest[need.name] = replace(need, words=soon)
    return list(greatest.values())


def kv_is_high(signals: Signals, threshold: float | None) -> bool:
    """Whether the mean is over it, and at least half of the servers are: one server of long requests is not enough."""
    if signals.kv_usage is None or threshold is None or signals.kv_usage.value <= threshold:
        return False
    return 2 * sum(usage > threshold for usage in signals.kv_usages) >= len(signals.kv_usages)


def _is_worked_off(signals: Signals, lead_s: float) -> bool:
    """Whether the queue will be gone before a server could come. One that does not tell may have a queue that stays."""
    gone_in_s = signals.waiting_gone_in_s
    return gone_in_s is not None and gone_in_s <= lead_s and not signals.stale


def asked(
    signals: Signals,
    led: Thresholds,
    needs: list[Need],
    *,
    calibration: Calibration | None,
    kv_lasts: bool,
    lead_s: float,
    min_replicas: int,
    most: int,
) -> list[Signal]:
    """What each signal of load asks for, at most `most`. `led`: thresholds of that calibration that leave room for
    growth. `kv_lasts`: KV usage has been high for a while."""
    out = [
        Signal(need.name, need.value, need.threshold, whole(need.servers, most), need.age_s, need.words)
        for need in needs
    ]
    out += [_waiting(signals, led, lead_s, most), _kv_usage(signals, led, calibration, kv_lasts, most)]
    rate = signals.rate_per_s
    if rate is not None and rate.value > 0.0 and not signals.provisioned:
        words = f"{rate.value:.3g} requests/s come and there is no server"
        out.append(Signal(SignalName.DEMAND, rate.value, None, min(1, most), rate.age_s, words))
    words = f"min_replicas is {min_replicas}"
    out.append(Signal(SignalName.MIN_REPLICAS, None, None, min(min_replicas, most), None, words))
    return out


def _waiting(signals: Signals, led: Thresholds, lead_s: float, most: int) -> Signal:
    """Over its threshold it asks for one more, and for those that work off the backlog within another lead; for none
    while those that are there do so.

    Servers that start are not counted, nor those that came within the window: they are the answer to this question, not
    a reason to ask again.
    """
    waiting, threshold = signals.waiting, led.waiting
    if waiting is None or threshold is None:
        return Signal(SignalName.WAITING, None, threshold, None, None, "how many wait is not known")
    words = f"{waiting.value:.3g} wait per server, threshold {threshold:.3g}"
    if waiting.value <= threshold:
        return Signal(SignalName.WAITING, waiting.value, threshold, None, waiting.age_s, words)
    if signals.waiting_lasting is not None and signals.waiting_lasting.value <= threshold:
        return Signal(SignalName.WAITING, waiting.value, threshold, None, waiting.age_s, f"{words}, in a single burst")
    if _is_worked_off(signals, lead_s):
        words += f", gone in {signals.waiting_gone_in_s:.0f} s as they are worked off"
        return Signal(SignalName.WAITING, waiting.value, threshold, None, waiting.age_s, words)
    excess = (waiting.value - threshold) * signals.ready
    # What one works off: what it serves within a lead. Where no load test tells how fast it is, as many as it runs at
    # once: with requests waiting, these are all it can.
    each = led.running or (signals.running.value if signals.running is not None else 0.0)
    if led.rate_per_s is not None:
        each = max(each, led.rate_per_s * lead_s)
    backlog = 0
    if each > 0.0:
        servers = excess / each
        backlog = int(servers) if servers < most else most
    there = signals.ready - signals.fresh + signals.stale
    words += f": one more than {there}" + (f" and {backlog} for the backlog" if backlog else "")
    return Signal(SignalName.WAITING, waiting.value, threshold, min(there + 1 + backlog, most), waiting.age_s, words)


def _kv_usage(signals: Signals, led: Thresholds, calibration: Calibration | None, lasts: bool, most: int) -> Signal:
    """Over its threshold it asks for one more, and for as many as bring each server back to the rate of the threshold:
    by the load test, or else as if usage went with the rate."""
    usage, threshold = signals.kv_usage, led.kv_usage_ratio
    if usage is None or threshold is None:
        return Signal(SignalName.KV_USAGE, None, threshold, None, None, "KV usage is not known")
    words = f"KV usage is {usage.value:.0%}, threshold {threshold:.0%}"
    waiting = signals.waiting.value if signals.waiting is not None else 0.0
    queues = led.waiting is not None and waiting >= _WITH_WAITING_RATIO * led.waiting
    if not kv_is_high(signals, threshold) or not (lasts or queues or signals.preempting):
        return Signal(SignalName.KV_USAGE, usage.value, threshold, None, usage.age_s, words)
    there = signals.ready - signals.fresh + signals.stale  # as with waiting
    over = usage.value / threshold
    rate_per_s = None if calibration is None else calibration.rate_at_kv_usage(usage.value)
    allowed_per_s = None if calibration is None else calibration.rate_at_kv_usage(threshold)
    if rate_per_s is not None and allowed_per_s:
        over = rate_per_s / allowed_per_s
    replicas = max(min(there + 1, most), whole(there * over, most))
    why = "and requests wait" if queues else "and requests are preempted" if signals.preempting else "for a while"
    return Signal(SignalName.KV_USAGE, usage.value, threshold, replicas, usage.age_s, f"{words}, {why}")


def _value(measured: Measured | None, otherwise: float | None) -> float | None:
    return otherwise if measured is None else measured.value
