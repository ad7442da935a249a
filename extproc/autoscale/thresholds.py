"""How much may one server have, so that it still meets its target when more servers are there at last?

A load test of one server gives a table: at each rate, what was read from it. The knee is the highest rate that met the
target. A server needs the lead L to come, and load may grow by g a second per server meanwhile: so the thresholds are
what was read at the rate knee - g x L. Extrapolating the number of waiting requests instead does not work: it stays
flat, then explodes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields
from itertools import pairwise
from math import isfinite

LEAST_RATIO = 0.4  # of the knee: below it the table says little, and servers would idle
# A gauge that is read between two steps of the engine shows requests that wait for nothing but the next step.
LEAST_WAITING = 0.5
# A cache that is half empty lacks no room, however full it was at the knee: where something else is short there, longer
# requests fill it without harm.
LEAST_KV_RATIO = 0.5


@dataclass(frozen=True, slots=True)
class Step:
    """What was read from one server under one steady rate. None: it was not measured."""

    rate_per_s: float
    waiting: float | None = None  # mean
    running: float | None = None  # mean
    kv_usage_ratio: float | None = None  # mean
    prefill_tokens_per_s: float | None = None  # prompt tokens computed
    ttft_s: float | None = None  # mean, as Little's law has it; or the median, where only that is known
    token_interval_s: float | None = None  # as ttft_s

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not (isfinite(value) and value >= 0.0):
                raise ValueError(f"a step of the calibration has {field.name} {value}")
        if not self.rate_per_s:
            raise ValueError("a step of the calibration has no rate")


@dataclass(frozen=True, slots=True)
class Calibration:
    """The load test of one server."""

    steps: tuple[Step, ...]  # by rising rate
    knee_per_s: float  # the highest rate that met the target
    uncached_tokens: float | None = None  # of its prompts, what was computed: mean
    output_tokens: float | None = None  # mean
    kv_tokens: float | None = None  # room of the server's KV cache
    tightened_to: float = 1.0  # share of the rate that it allows; see `tightening`

    def __post_init__(self) -> None:
        if not self.steps:
            raise ValueError("a calibration needs at least one step")
        if any(low.rate_per_s >= high.rate_per_s for low, high in pairwise(self.steps)):
            raise ValueError("the steps of a calibration must have rising rates")
        if not (isfinite(self.knee_per_s) and self.knee_per_s > 0.0):
            raise ValueError(f"the knee of a calibration is a rate above 0, not {self.knee_per_s}")
        if not 0.0 < self.tightened_to <= 1.0:
            raise ValueError(f"tightened_to is a share above 0, at most 1, not {self.tightened_to}")

    def at(self, rate_per_s: float) -> Thresholds:
        """What was read at this rate, by a straight line between the steps around it, and the outermost beyond them;
        of waiting and of KV usage at least their floors."""
        waiting = self.read("waiting", rate_per_s)
        kv_ratio = self.read("kv_usage_ratio", rate_per_s)
        if kv_ratio is not None:
            kv_ratio = max(kv_ratio, LEAST_KV_RATIO)
        return Thresholds(
            rate_per_s=rate_per_s,
            waiting=None if waiting is None else max(waiting, LEAST_WAITING),
            kv_usage_ratio=kv_ratio,
            running=self.read("running", rate_per_s),
            prefill_tokens_per_s=self.read("prefill_tokens_per_s", rate_per_s),
            kv_tokens=None if kv_ratio is None or self.kv_tokens is None else self.kv_tokens * kv_ratio,
            ttft_s=self.read("ttft_s", rate_per_s),
            token_interval_s=self.read("token_interval_s", rate_per_s),
            uncached_tokens=self.uncached_tokens,
            output_tokens=self.output_tokens,
            calibrated=True,
        )

    def read(self, name: str, rate_per_s: float) -> float | None:
        """A field of the steps, as it was read at this rate: no floor is held. None: it was not measured."""
        points = [(step.rate_per_s, getattr(step, name)) for step in self.steps if getattr(step, name) is not None]
        if not points:
            return None
        i = bisect_left(points, rate_per_s, key=lambda point: point[0])
        if i == 0 or i == len(points):
            return float(points[min(i, len(points) - 1)][1])
        (low, below), (high, above) = points[i - 1], points[i]
        return float(below + (above - below) * (rate_per_s - low) / (high - low))

    def led(self, growth_per_s2: float, lead_s: float) -> Thresholds:
        """The thresholds when load may grow by so many requests/s each second, per server, for so long."""
        ahead = max(0.0, growth_per_s2) * max(0.0, lead_s)
        ahead = ahead if isfinite(ahead) else self.knee_per_s
        rate_per_s = (self.knee_per_s - ahead) * self.tightened_to
        return self.at(max(rate_per_s, LEAST_RATIO * self.knee_per_s))

    @property
    def most_ratio(self) -> float:
        """The most that a server was seen to serve, of the knee."""
        return max(self._served_per_s(step) for step in self.steps) / self.knee_per_s

    def rate_at_kv_usage(self, ratio: float) -> float | None:
        """The rate at which a server was so full, and the outermost beyond the table; None: that was not measured.

        Usage does not grow in proportion with the rate: near the knee requests stay longer, so that a tenth less of
        them may take a third less room.
        """
        points: list[tuple[float, float]] = []  # usage, which does not fall from step to step, and rate
        for step in self.steps:
            if step.kv_usage_ratio is not None and (not points or step.kv_usage_ratio > points[-1][0]):
                points.append((step.kv_usage_ratio, self._served_per_s(step)))
        if not points:
            return None
        i = bisect_left(points, ratio, key=lambda point: point[0])
        if i == 0 or i == len(points):
            return points[min(i, len(points) - 1)][1]
        (low, below), (high, above) = points[i - 1], points[i]
        return below + (above - below) * (ratio - low) / (high - low)

    def _served_per_s(self, step: Step) -> float:
        """What it served of the rate that was offered to it: past its limit a server serves no more."""
        if step.prefill_tokens_per_s is None or not self.uncached_tokens:
            return step.rate_per_s
        return min(step.rate_per_s, step.prefill_tokens_per_s / self.uncached_tokens)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What one server may have. None: not known, so nothing is concluded from it."""

    rate_per_s: float | None = None  # at which they were read
    waiting: float | None = None  # requests, mean over a window
    kv_usage_ratio: float | None = None  # mean over a window
    running: float | None = None  # requests at once: C
    prefill_tokens_per_s: float | None = None  # prompt tokens computed a second: V
    kv_tokens: float | None = None  # tokens in the KV cache: KV
    ttft_s: float | None = None  # how long a request takes to its first token, there
    token_interval_s: float | None = None  # and from one token to the next
    uncached_tokens: float | None = None  # the lengths that this was measured with
    output_tokens: float | None = None
    calibrated: bool = False

    def residence_s(self, uncached_tokens: float | None, output_tokens: float | None) -> float | None:
        """How long a request of these lengths is on a server that is loaded so; None: that is not known.

        With the lengths of the load test it is what Little's law says of it: requests at once by rate. For others that
        is scaled: a longer prompt takes longer to its first token in proportion, a longer answer longer from there.
        Medians alone would tell too little: a token waits for the prompts of others now and then, and long, which no
        median shows. Lengths that are not known are those of the load test.
        """
        output = self.output_tokens if output_tokens is None else output_tokens
        if self.ttft_s is None or self.token_interval_s is None or output is None:
            return None
        longer = 1.0
        if uncached_tokens is not None and self.uncached_tokens:
            longer = max(1.0, uncached_tokens / self.uncached_tokens)
        stay_s = self.ttft_s * longer + output * self.token_interval_s
        if not (self.running and self.rate_per_s and self.output_tokens):
            return stay_s
        tested_s = self.ttft_s + self.output_tokens * self.token_interval_s
        return self.running / self.rate_per_s * (stay_s / tested_s) if tested_s else stay_s


# For a pool without a load test: low, so that a server too many is likelier than one too few.
UNCALIBRATED = Thresholds(waiting=1.0, kv_usage_ratio=0.7)
