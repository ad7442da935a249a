"""What may an option of a benchmark be?"""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number from 1, as a `type` of argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be 1 or more")
    return number
