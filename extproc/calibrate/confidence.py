"""Which part of all requests is over the target, when so many of those that were measured are?

Clopper and Pearson's bounds: exact for independent requests, if anything too wide. The numbers need not be whole: of
requests whose fates hang together, fewer count (see `judge`).
"""

from __future__ import annotations

from math import exp, lgamma, log

_TINY = 1e-300
_STEPS = 200  # of the continued fraction, and of the bisection


def lower(over: float, of: float, confidence: float) -> float:
    """The part is greater than this with the confidence (0 to 1, one-sided)."""
    return 0.0 if over <= 0.0 else _beta_quantile(1.0 - confidence, over, of - over + 1.0)


def upper(over: float, of: float, confidence: float) -> float:
    """The part is less than this with the confidence (0 to 1, one-sided)."""
    return 1.0 if over >= of else _beta_quantile(confidence, over + 1.0, of - over)


def enough(part: float, confidence: float) -> int:
    """How many requests, none of them over the target, show that less than this part is."""
    count = 1
    while upper(0.0, count, confidence) > part:
        count *= 2
    least = count // 2
    while count - least > 1:
        middle = (least + count) // 2
        least, count = (middle, count) if upper(0.0, middle, confidence) > part else (least, middle)
    return count


def _beta_quantile(probability: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _beta(middle, a, b) < probability else (low, middle)
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by Lentz's continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):  # where the fraction converges fast
        return 1.0 - _beta(1.0 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1.0 - x)) / a
    fraction, c, d = 1.0, 1.0, 0.0
    for step in range(_STEPS):
        half = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = half * (b - half) * x / ((a + 2 * half - 1.0) * (a + 2 * half))
        else:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1.0))
        d = 1.0 / ((1.0 + term * d) or _TINY)
        c = (1.0 + term / c) or _TINY
        fraction *= c * d
        if abs(1.0 - c * d) < 1e-12:
            break
    return front * (fraction - 1.0)
