"""At which rate does one simulated engine still meet its time to first token, and what do its gauges read there?

The load test of one server in virtual time: open loop, at steady rates, each from an idle engine. The knee is bracketed
by doubling and halving, then bisected. All rates meet the same requests, closer together or further apart, so that the
times to first token rise with the rate and not by chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from statistics import fmean

from extproc.autoscale.profile import Lengths, Profile, Server, StepRow
from extproc.pool.sample import LoadSample
from extproc.sim.bodies import MODEL
from extproc.sim.engine import Engine
from extproc.sim.events import FirstToken, Request
from extproc.sim.readings import sample_of
from extproc.sim.spec import EngineSpec

Draw = Callable[[Random], tuple[int, int]]  # the tokens of a prompt and of its answer

_WARM_UP_RATIO = 0.1  # of the requests: what comes before the engine is as full as it will be does not count
_READ_S = 0.5  # between two looks at the gauges; more where there would be more looks than
_MOST_READS = 2000
_TABLE = (0.4, 0.55, 0.7, 0.85)  # of the knee: the rates that the table must have beside those of the search
_APART = 1.03  # rates that are closer tell the same
_MOST_STEPS = 60
_ALONE = 200  # requests one after the other, of the same lengths: what the target must leave room for


def between(prompt_tokens: tuple[int, int], answer_tokens: tuple[int, int]) -> Draw:
    """Lengths that are any within these bounds, all equally likely."""

    def draw(rng: Random) -> tuple[int, int]:
        return rng.randint(*prompt_tokens), rng.randint(*answer_tokens)

    return draw


@dataclass(frozen=True, slots=True)
class _Requests:
    """What is sent at every rate: lengths, and when at one request a second."""

    lengths: list[tuple[int, int]]
    at_s: list[float]

    @classmethod
    def drawn(cls, draw: Draw, count: int, seed: int) -> _Requests:
        lengths, gaps = Random(f"lengths {seed}"), Random(f"gaps {seed}")
        at_s = list(accumulate(gaps.expovariate(1.0) for _ in range(count)))
        # Of a thousand some tens more or less come by chance. Here exactly as many come as the rate of a step says, or
        # its readings would be those of another rate.
        first = int(_WARM_UP_RATIO * count)
        per_s = (count - 1 - first) / (at_s[-1] - at_s[first])
        return cls([draw(lengths) for _ in range(count)], [each_s * per_s for each_s in at_s])


def knee(
    spec: EngineSpec,
    lengths: Draw,
    ttft_p99_s: float,
    seed: int = 0,
    *,
    requests: int = 2000,
    within: float = 0.02,
    made_at: str = "1970-01-01T00:00:00Z",
    progress: Callable[[StepRow], None] | None = None,
) -> Profile:
    """The load test of an engine whose prompts share nothing: its knee for this target, and the table around it.

    `requests`: at each rate; the 99th percentile needs some hundreds. `within`: the knee is found to this part of
    itself, from below. `made_at`: virtual time has no date.

    Raises:
        ValueError: a request is longer than the engine takes, or alone takes longer than the target.
    """
    if not ttft_p99_s > 0.0 or requests < 100 or not within > 0.0:
        raise ValueError("a knee needs a target above 0, at least 100 requests and a precision above 0")
    drawn = _Requests.drawn(lengths, requests, seed)
    rows: dict[float, StepRow] = {}

    def met(rate_per_s: float) -> bool:
        if rate_per_s not in rows:
            rows[rate_per_s] = _step(spec, drawn, rate_per_s, ttft_p99_s)
            if progress is not None:
                progress(rows[rate_per_s])
        return rows[rate_per_s].met

    first_s, answered_s = _alone(spec, drawn)
    if first_s > ttft_p99_s:
        raise ValueError(
            f"even alone, one request of a hundred takes {first_s:.3g} s to its first token, and the target is"
            f" {ttft_p99_s:g} s"
        )
    low = 1.0 / answered_s
    while not met(low):
        low /= 2.0
        if len(rows) > _MOST_STEPS // 4:
            raise ValueError(f"no rate was found that meets a target of {ttft_p99_s:g} s; alone it is {first_s:.3g} s")
    high = 2.0 * low
    while met(high) and len(rows) < _MOST_STEPS:
        low, high = high, 2.0 * high
    while high > (1.0 + within) * low and len(rows) < _MOST_STEPS:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if met(middle) else (low, middle)
    for part in _TABLE:
        if not any(1.0 / _APART < rate / (part * low) < _APART for rate in rows):
            met(part * low)
    return Profile(
        made_at=made_at,
        ttft_p99_target_s=ttft_p99_s,
        knee_per_s=low,
        server=Server(
            model=MODEL,
            engine="simulated",
            kv_tokens=spec.usable_blocks * spec.block_size_tokens,
            max_model_len=spec.max_model_len,
        ),
        lengths=Lengths(
            prompt_tokens=fmean(prompt for prompt, _ in drawn.lengths),
            uncached_tokens=fmean(prompt for prompt, _ in drawn.lengths),
            output_tokens=fmean(answer for _, answer in drawn.lengths),
        ),
        steps=tuple(rows[rate] for rate in sorted(rows)),
    )


def _alone(spec: EngineSpec, drawn: _Requests) -> tuple[float, float]:
    """On an engine that has nothing else to do: the 99th percentile to the first token, and the mean to the end."""
    engine = Engine(spec)
    ttft_s, answered_s, now = [], [], 0.0
    for number, lengths in enumerate(drawn.lengths[:_ALONE]):
        engine.submit(Request(str(number), *lengths), now)
        began_s = now
        while (due_s := engine.next_event_at()) is not None:
            now = due_s
            ttft_s += [event.at_s - began_s for event in engine.advance(now) if isinstance(event, FirstToken)]
        answered_s.append(now - began_s)
    return sorted(ttft_s)[-(-99 * len(ttft_s) // 100) - 1], fmean(answered_s)


@dataclass(slots=True)
class _Gauges:
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    kv_usage_ratio: list[float] = field(default_factory=list)

    def read(self, engine: Engine) -> None:
        self.waiting.append(engine.waiting)
        self.running.append(engine.running)
        self.kv_usage_ratio.append(engine.kv_usage_ratio)


def _step(spec: EngineSpec, drawn: _Requests, rate_per_s: float, target_s: float) -> StepRow:
    """All requests at this rate. Gauges and counters are those from the end of the warm-up to the last arrival."""
    engine, gauges = Engine(spec), _Gauges()
    ttft_s: list[float] = []
    first = int(_WARM_UP_RATIO * len(drawn.at_s))
    arrivals_s = [at_s / rate_per_s for at_s in drawn.at_s]
    from_s, to_s = arrivals_s[first], arrivals_s[-1]
    read_s, between_s = from_s, max(_READ_S, (to_s - from_s) / _MOST_READS)
    before: LoadSample | None = None

    def take(until_s: float) -> None:
        begun = [(int(event.request_id), event.at_s) for event in engine.advance(until_s) if type(event) is FirstToken]
        ttft_s.extend(at_s - arrivals_s[number] for number, at_s in begun if number >= first)

    for number, at_s in enumerate(arrivals_s):
        while read_s <= at_s:
            take(read_s)
            if before is None:
                before = sample_of(engine, read_s, model=MODEL, started_unix_s=0.0)
            gauges.read(engine)
            read_s += between_s
        take(at_s)
        engine.submit(Request(str(number), *drawn.lengths[number]), at_s)
    take(to_s)
    after = sample_of(engine, to_s, model=MODEL, started_unix_s=0.0)
    while (due_s := engine.next_event_at()) is not None and len(ttft_s) < len(arrivals_s) - first:
        take(due_s)
    assert before is not None
    ordered = sorted(ttft_s)
    intervals = _intervals(before, after)
    seconds = to_s - from_s
    computed = (after.prompt_tokens or 0.0) - (before.prompt_tokens or 0.0)
    p99_s = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return StepRow(
        rate_per_s=rate_per_s,
        seconds=seconds,
        requests=len(ordered),
        met=p99_s <= target_s,
        waiting=fmean(gauges.waiting),
        running=fmean(gauges.running),
        kv_usage_ratio=fmean(gauges.kv_usage_ratio),
        prefill_tokens_per_s=computed / seconds,
        hit_ratio=0.0,
        ttft_p50_s=ordered[len(ordered) // 2],
        ttft_p99_s=p99_s,
        token_interval_p50_s=intervals[0],
        token_interval_p99_s=intervals[1],
    )


def _intervals(before: LoadSample, after: LoadSample) -> tuple[float | None, float | None]:
    """The median and the 99th percentile of the time between two tokens, as the engine's histogram tells them."""
    if before.token_interval is None or after.token_interval is None:
        return None, None
    lately = after.token_interval.since(before.token_interval)
    return lately.quantile_s(0.5), lately.quantile_s(0.99)
