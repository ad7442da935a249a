"""Which number does a parameter of a query give?"""

from __future__ import annotations

import math


def number(text: str) -> float:
    """NaN for what is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
