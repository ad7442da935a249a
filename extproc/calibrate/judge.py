"""Does the server keep its target at this rate? Decided while a step runs, as soon as it is clear.

The target is kept when at most 1 % of the requests wait longer than it for their first token. A request that fails, or
has waited longer already, is over it. Of the requests that were measured a share is over; Clopper and Pearson's bounds
tell between which values that of all requests lies:

- *met*: the upper bound is at most 1 %, of enough requests and seconds, and times do not rise any more. With none over
  the target 299 requests are enough for 95 %. Where the 99th percentile is over half of the target the server may be
  near its limit, and more are needed: how many come in a time varies by their square root, so n requests cannot tell
  rates apart that differ by less than about sqrt(2/n), and a queue that grows slowly looks like one that does not.
- *missed*: the lower bound is above 1 %; of fewer requests than that above 5 %, which a hopeless rate shows after
  twenty.
- At a number of requests that is set the share itself decides, and the step says that it is not certain. A step whose
  times still rise then is missed: the queue grows.

Requests that are over the target come in bursts, since they wait for each other, so ten of them say less than ten that
have nothing to do with each other. The step is cut into batches in order of arrival; as much as the share varies more
between these than it would between independent requests, as many fewer requests count (the design effect of surveys).
How long bursts are shows better where there are more of them, so the share over half of the target is looked at too.
A look is taken whenever there are a tenth more requests, not at each, as every look is another chance to err.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import ceil, inf
from statistics import fmean

from extproc.calibrate import confidence as bounds
from extproc.calibrate.sent import quantile

OVER_RATIO = 0.01  # of a 99th percentile
_CLEARLY_RATIO = 0.05
_LOOK_RATIO = 1.1
_FIRST_LOOK = 20  # requests
_BATCHES = 20
_BATCH = 5  # requests, at least
_NEAR_RATIO = 0.5  # of the target
_RISING = 2.0  # the last third over the first
_RISING_RATIO = 0.25  # of the target: what rises below it says nothing


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a step is decided. Raises ValueError for what cannot be meant."""

    target_s: float  # to the first token
    confidence: float = 0.95
    tolerance: float = 0.05  # rates that differ by so much are to be told apart
    least_s: float = 30.0  # a step is not met in less
    most: int = 3000  # requests: then it is decided in any case

    def __post_init__(self) -> None:
        if not self.target_s > 0.0:
            raise ValueError(f"the target is {self.target_s:g} s; it must be above 0")
        if not 0.5 <= self.confidence < 1.0:
            raise ValueError(f"confidence {self.confidence:g} is not from 0.5 to below 1")
        if not 0.0 < self.tolerance <= 1.0:
            raise ValueError(f"tolerance {self.tolerance:g} is not above 0 and at most 1")
        if self.most < max(self.least, self.least_near):
            raise ValueError(
                f"{self.most:,} requests a step are too few: a 99th percentile with confidence {self.confidence:g}"
                f" takes {self.least:,}, and to tell rates apart that differ by {self.tolerance:.0%} takes"
                f" {self.least_near:,}"
            )

    @property
    def least(self) -> int:
        """Requests without which no step is met."""
        return bounds.enough(OVER_RATIO, self.confidence)

    @property
    def least_near(self) -> int:
        """Requests without which no step is met whose 99th percentile is near the target."""
        return max(self.least, ceil(2.0 / self.tolerance**2))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a look gave. `verdict` None: not clear yet."""

    verdict: Verdict | None
    over: int  # requests over the target
    of: int  # requests
    low: float  # bounds of the share of all requests that are over
    high: float
    certain: bool  # the bounds decided
    why: str

    @property
    def share(self) -> float:
        return self.over / self.of if self.of else 0.0


class Judge:
    """Of one step."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._least = (rule.least, rule.least_near)
        self._next_look = _FIRST_LOOK
        self._waited = False  # for time alone

    def look(self, ttft_s: Sequence[float], seconds: float) -> Judgement | None:
        """`ttft_s`: of all requests that came longer ago than the target, in order of arrival; infinite: there is no
        first token yet, or never will be. `seconds`: since the first could come. None: nothing new to look at."""
        due = len(ttft_s) >= self._next_look or (self._waited and seconds >= self._rule.least_s)
        if not due or not ttft_s:
            return None
        self._next_look = max(self._next_look, int(len(ttft_s) * _LOOK_RATIO) + 1)
        for count in (self._rule.most, *self._least[::-1]):
            if self._next_look > count > len(ttft_s):
                self._next_look = count
        found = judge(ttft_s, seconds, self._rule, self._least)
        self._waited = found.verdict is None and seconds < self._rule.least_s and found.high <= OVER_RATIO
        return found


def judge(ttft_s: Sequence[float], seconds: float, rule: Rule, least: tuple[int, int]) -> Judgement:
    """One look at a step; see `Judge.look`. `least`: those of the rule, far from the target and near it."""
    of, over = len(ttft_s), sum(each > rule.target_s for each in ttft_s)
    effect = max(design_effect([each > part * rule.target_s for each in ttft_s]) for part in (1.0, _NEAR_RATIO))
    low = bounds.lower(over / effect, of / effect, rule.confidence)
    high = bounds.upper(over / effect, of / effect, rule.confidence)
    rising = _rises(ttft_s, rule.target_s)

    def found(verdict: Verdict | None, why: str, *, certain: bool = True) -> Judgement:
        return Judgement(verdict, over, of, low, high, certain, why)

    share = f"{over:,} of {of:,} over the target"
    if of >= _FIRST_LOOK and low > (OVER_RATIO if of >= least[0] else _CLEARLY_RATIO):
        return found(Verdict.MISSED, f"{share}: at least {low:.1%} of all")
    near = (quantile(ttft_s, 1.0 - OVER_RATIO) or inf) > _NEAR_RATIO * rule.target_s
    if high <= OVER_RATIO and of >= least[near] and seconds >= rule.least_s and not rising:
        return found(Verdict.MET, f"{share}: at most {high:.2%} of all")
    if of < rule.most or seconds < rule.least_s:
        return found(None, share)
    if rising:
        return found(Verdict.MISSED, f"{share}, and times still rise: the queue grows", certain=False)
    met = over <= OVER_RATIO * of
    why = f"{share}, between {low:.1%} and {high:.1%} of all: not certain"
    return found(Verdict.MET if met else Verdict.MISSED, why, certain=False)


def design_effect(over: Sequence[bool]) -> float:
    """How many of these requests, in order of arrival, count as one independent request; at least 1."""
    of, share = len(over), sum(over) / len(over)
    batches = min(_BATCHES, of // _BATCH)
    if batches < 2 or share in (0.0, 1.0):
        return 1.0
    edges = [of * place // batches for place in range(batches + 1)]
    shares = [sum(over[low:high]) / (high - low) for low, high in pairwise(edges)]
    variance = sum((each - share) ** 2 for each in shares) / (batches - 1)
    return max(1.0, variance * (of / batches) / (share * (1.0 - share)))


def _rises(ttft_s: Sequence[float], target_s: float) -> bool:
    third = len(ttft_s) // 3
    if third < _FIRST_LOOK // 2:
        return False
    most = 2.0 * target_s  # an infinite time is none to reckon with
    first, last = (fmean(min(each, most) for each in part) for part in (ttft_s[:third], ttft_s[-third:]))
    return last > _RISING * first and last > _RISING_RATIO * target_s
