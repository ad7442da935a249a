"""How far are the thresholds to be lowered, when the time to first token proves them too high?

The verdict LATE says so: over the target, and no signal asked for more. When that was so without interruption for as
long as the time to first token is read over, the thresholds are read at a rate 5 % lower, and so on, down to 0.4 of the
knee. They are never raised again: that the target is kept then shows that they are right, not that they are too low.
"""

from __future__ import annotations

from dataclasses import replace

from extproc.autoscale.policy import Policy
from extproc.autoscale.recommendation import Verdict
from extproc.autoscale.signals import TTFT_WINDOWS
from extproc.autoscale.thresholds import LEAST_RATIO

STEP = 0.95


class Tightening:
    """Of one pool."""

    def __init__(self, policy: Policy) -> None:
        """`policy`: with the thresholds as the load test has them."""
        self.ratio = 1.0  # of the rate that the load test allows
        self._policy = policy
        self._late_since_s: float | None = None  # None: the last verdict was another

    def judged(self, at_s: float, verdict: Verdict | None) -> Policy | None:
        """Take in a verdict. Returns the policy to go on with when that changes it."""
        if verdict is not Verdict.LATE or self._policy.calibration is None:
            self._late_since_s = None
            return None
        if self._late_since_s is None:
            self._late_since_s = at_s
        if at_s - self._late_since_s < TTFT_WINDOWS * self._policy.window_s or self.ratio <= LEAST_RATIO:
            return None
        self._late_since_s = at_s
        self.ratio = max(LEAST_RATIO, self.ratio * STEP)
        return replace(self._policy, calibration=replace(self._policy.calibration, tightened_to=self.ratio))
