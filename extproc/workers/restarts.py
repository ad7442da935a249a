"""When is a worker that has ended started again?

At once if it had run for a while; then ever later, up to `LONGEST_S`: something may only have to come back. After
`IN_A_ROW` that ended within `SOON_S` of their start nothing speaks for another one to fare better: given up.
"""

from __future__ import annotations

FIRST_S = 0.1
LONGEST_S = 5.0
SOON_S = 10.0
IN_A_ROW = 6


class Restarts:
    """Of one worker. Times are of the monotonic clock, in seconds."""

    def __init__(self) -> None:
        self.count = 0  # ends that were not wished
        self._soon = 0  # of these, the last in a row that came soon after the start

    def ended(self, started_s: float, now: float) -> float | None:
        """It has ended and nobody asked it to. How long to wait; None: do not start it any more."""
        self.count += 1
        self._soon = self._soon + 1 if now - started_s < SOON_S else 0
        if self._soon >= IN_A_ROW:
            return None
        return min(FIRST_S * 2.0**self._soon, LONGEST_S)
