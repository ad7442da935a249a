"""What comes for a fleet, and when?

A Poisson process whose rate changes with time, open loop: what comes does not depend on how it fares. The prompts share
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from extproc.sim.knee import Draw

Rate = Callable[[float], float]  # requests a second, at a time


@dataclass(frozen=True, slots=True, order=True)
class Coming:
    """One request."""

    at_s: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """All that comes in a run. Raises ValueError if it lasts no time."""

    seconds: float
    rate_per_s: Rate
    lengths: Callable[[float], Draw]  # at a time
    extra: tuple[Coming, ...] = field(default=())  # beside the process

    def __post_init__(self) -> None:
        if not self.seconds > 0.0:
            raise ValueError(f"traffic of {self.seconds} s is none")

    def draw(self, seed: int) -> list[Coming]:
        """The requests, in order of time. The lengths of those before a change are the same with and without it."""
        rng = Random(f"lengths {seed}")
        drawn = [Coming(at_s, *self.lengths(at_s)(rng)) for at_s in self._times(seed)]
        return sorted([*drawn, *self.extra])

    def most_per_s(self) -> float:
        """The greatest rate, looked for second by second."""
        return max(self.rate_per_s(float(second)) for second in range(int(self.seconds) + 1))

    def _times(self, seed: int) -> Iterator[float]:
        """By thinning: of a process at the greatest rate each is kept with the probability of the rate at its time."""
        rng = Random(f"times {seed}")
        most = 1.05 * self.most_per_s()
        if not most > 0.0:
            return
        at_s = 0.0
        while (at_s := at_s + rng.expovariate(most)) < self.seconds:
            if rng.random() * most < self.rate_per_s(at_s):
                yield at_s


def steady(rate_per_s: float) -> Rate:
    """The same all the time."""
    return lambda _: rate_per_s


def ramp(low: float, high: float, from_s: float, to_s: float) -> Rate:
    """From one rate to another by a straight line between these times."""

    def rate(at_s: float) -> float:
        part = (at_s - from_s) / (to_s - from_s)
        return low + (high - low) * min(1.0, max(0.0, part))

    return rate


def step(low: float, high: float, at_s: float) -> Rate:
    """From one rate to another at once."""
    return lambda now: high if now >= at_s else low


def bursts(rate: Rate, factor: float, *, every_s: float, seconds: float, from_s: float = 0.0) -> Rate:
    """A rate that is so many times as high for a while, again and again, from a time on."""

    def bursting(at_s: float) -> float:
        within = at_s >= from_s and (at_s - from_s) % every_s < seconds
        return rate(at_s) * (factor if within else 1.0)

    return bursting


def always(draw: Draw) -> Callable[[float], Draw]:
    """The same lengths all the time."""
    return lambda _: draw


def then(before: Draw, after: Draw, at_s: float) -> Callable[[float], Draw]:
    """Other lengths from a time on."""
    return lambda now: after if now >= at_s else before
