"""How long are the prompts and answers that a load test sends?

A shape of lengths is written so, in tokens:

    800                   always 800
    uniform:100:2000      evenly between these, both included
    lognormal:800:0.6     800 on average; their logarithm has the standard deviation 0.6
    buckets:MEAN:b=n,...  n of them up to b and above the bound before it, MEAN on average: what a histogram tells
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite, log
from random import Random
from typing import Protocol

import orjson

_DRAWS = 1000  # for a pair that fits the server
_GRAMMAR = "write a number, uniform:LOW:HIGH or lognormal:MEAN:SIGMA"


class Shape(Protocol):
    """Lengths of one kind, in tokens."""

    @property
    def text(self) -> str:
        """As `read_shape` reads it."""

    @property
    def mean(self) -> float:
        """Of many."""

    def draw(self, rng: Random) -> int:
        """One, 1 or more."""


@dataclass(frozen=True, slots=True)
class Fixed:
    tokens: int

    @property
    def text(self) -> str:
        return str(self.tokens)

    @property
    def mean(self) -> float:
        return float(self.tokens)

    def draw(self, rng: Random) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    low: int
    high: int

    @property
    def text(self) -> str:
        return f"uniform:{self.low}:{self.high}"

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def draw(self, rng: Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LogNormal:
    mean: float
    sigma: float

    @property
    def text(self) -> str:
        return f"lognormal:{self.mean:g}:{self.sigma:g}"

    def draw(self, rng: Random) -> int:
        return max(1, round(rng.lognormvariate(log(self.mean) - self.sigma**2 / 2, self.sigma)))


@dataclass(frozen=True, slots=True)
class Buckets:
    """Between two bounds lengths are as likely, times the factor that gives them their mean."""

    bounds: tuple[float, ...]  # rising
    counts: tuple[float, ...]  # of each bucket, not added up
    mean: float

    @property
    def text(self) -> str:
        pairs = ",".join(f"{bound:g}={count:g}" for bound, count in zip(self.bounds, self.counts, strict=True))
        return f"buckets:{self.mean:g}:{pairs}"

    def draw(self, rng: Random) -> int:
        totals = list(accumulate(self.counts))
        place = bisect_left(totals, rng.random() * totals[-1])
        low = self.bounds[place - 1] if place else 0.0
        return max(1, round(rng.uniform(low, self.bounds[place]) * self._factor))

    @property
    def _factor(self) -> float:
        lows = (0.0, *self.bounds)
        middle = sum(count * (low + high) / 2 for count, low, high in zip(self.counts, lows, self.bounds, strict=False))
        return self.mean * sum(self.counts) / middle


def read_shape(text: str) -> Shape:
    """Raises ValueError, which says what is wrong and what to write."""
    kind, _, rest = text.strip().partition(":")
    values = rest.split(":")
    try:
        if not rest:
            return Fixed(_tokens(kind))
        if kind == "uniform" and len(values) == 2:
            low, high = _tokens(values[0]), _tokens(values[1])
            if low > high:
                raise ValueError(f"{low} is more than {high}")
            return Uniform(low, high)
        if kind == "lognormal" and len(values) == 2:
            mean, sigma = float(values[0]), float(values[1])
            if not (isfinite(mean) and mean >= 1 and 0 <= sigma <= 5):
                raise ValueError("the mean must be at least 1 and sigma from 0 to 5")
            return LogNormal(mean, sigma)
        if kind == "buckets" and len(values) == 2:
            pairs = [pair.split("=") for pair in values[1].split(",")]
            return Buckets(tuple(float(b) for b, _ in pairs), tuple(float(n) for _, n in pairs), float(values[0]))
    except ValueError as error:
        raise ValueError(f'"{text}": {error}; {_GRAMMAR}') from None
    raise ValueError(f'"{text}" is no length; {_GRAMMAR}')


def _tokens(text: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        raise ValueError(f'"{text}" is no whole number') from None
    if tokens < 1:
        raise ValueError("a length is at least 1")
    return tokens


class Lengths(Protocol):
    """What is drawn for each request."""

    @property
    def text(self) -> str:
        """For a person, and to tell whether two are the same."""

    @property
    def means(self) -> tuple[float, float]:
        """Of prompt and answer, in tokens."""

    def draw(self, rng: Random, most: int | None) -> tuple[int, int]:
        """Tokens of a prompt and of its answer, which together have at most so many."""


@dataclass(frozen=True, slots=True)
class Independent:
    """Prompt and answer know nothing of each other."""

    prompt: Shape
    output: Shape

    @property
    def text(self) -> str:
        return f"prompts {self.prompt.text}, answers {self.output.text}"

    @property
    def means(self) -> tuple[float, float]:
        return self.prompt.mean, self.output.mean

    def draw(self, rng: Random, most: int | None) -> tuple[int, int]:
        """What does not fit is drawn again. Raises ValueError if next to nothing fits."""
        for _ in range(_DRAWS):
            prompt, output = self.prompt.draw(rng), self.output.draw(rng)
            if most is None or prompt + output <= most:
                return prompt, output
        raise ValueError(f"{self.text}: hardly any request fits the server, which takes {most:,} tokens")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Pairs that were seen, drawn at random."""

    pairs: tuple[tuple[int, int], ...]
    name: str

    @property
    def text(self) -> str:
        prompt, output = self.means
        return f"{self.name}: {len(self.pairs):,} pairs, {prompt:.2f} and {output:.2f} tokens on average"

    @property
    def means(self) -> tuple[float, float]:
        return (
            sum(prompt for prompt, _ in self.pairs) / len(self.pairs),
            sum(output for _, output in self.pairs) / len(self.pairs),
        )

    def draw(self, rng: Random, most: int | None) -> tuple[int, int]:
        """Raises ValueError if next to nothing fits."""
        for _ in range(_DRAWS):
            prompt, output = rng.choice(self.pairs)
            if most is None or prompt + output <= most:
                return prompt, output
        raise ValueError(f"{self.name}: hardly any pair fits the server, which takes {most:,} tokens")

    def too_long(self, most: int) -> int:
        """How many pairs the server would refuse."""
        return sum(prompt + output > most for prompt, output in self.pairs)


def read_recorded(lines: Iterable[bytes], name: str) -> Recorded:
    """Lines of JSON, {"prompt_tokens": 812, "output_tokens": 140}; blank ones and other members do not matter.

    Raises ValueError, which names the line.
    """
    pairs: list[tuple[int, int]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            pairs.append(_pair(line, f"{name}, line {number}"))
    if not pairs:
        raise ValueError(f'{name} has no lengths; its lines are to be {{"prompt_tokens": 800, "output_tokens": 100}}')
    return Recorded(tuple(pairs), name)


def _pair(line: bytes, where: str) -> tuple[int, int]:
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{where}: no JSON ({error})") from None
    values: Sequence[object] = (
        [document.get(name) for name in ("prompt_tokens", "output_tokens")] if isinstance(document, dict) else []
    )
    numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 1]
    if len(numbers) != 2:
        raise ValueError(f"{where}: prompt_tokens and output_tokens are to be whole numbers of at least 1")
    return numbers[0], numbers[1]
