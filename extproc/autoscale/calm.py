"""Does a pool need all the room that its thresholds leave?

Thresholds are those of one server at its knee, and a server goes only when the load fits on the others at 0.7 of them.
Both leave room: for load that jumps while a server takes minutes to come, and for what many servers can do and one
cannot. Whether a pool needs it, how its requests fare tells. It is calm where the 99th percentile of the time to first
token, over an hour, is within 0.8 of its target, and the rate did not jump in that hour. Then Little's law may put on a
server what servers bear that share a queue (`pooling`), while nothing grows. If the percentile is within half of the
target, and no server was asked for in the hour, one may go when the load fits on the others at 0.9.

If one is asked for within a quarter of an hour after that, the next time takes twice as long, up to a day.
"""

from __future__ import annotations

from math import inf

from extproc.autoscale.policy import DOWN_RATIO
from extproc.autoscale.signals import LONG_S, Signals

CALM_DOWN_RATIO = 0.9
_MISSED_S = LONG_S / 4.0  # a server that is asked for so soon after one went was missed
_WITHIN_RATIO = 0.8  # of the target
_FAR_RATIO = 0.5  # of the target: with one server fewer it will be nearer
_LONGEST_S = 86_400.0


class Calm:
    """Of one pool, since its recommender began."""

    def __init__(self) -> None:
        self.now = False
        self._settled = False
        self._since_s: float | None = None  # no jump was seen, and somebody looked; None: just now that was not so
        self._settles_s = LONG_S
        self._up_at_s = self._down_at_s = self._at_s = float("-inf")  # servers were asked for, one went, a look

    @property
    def down_ratio(self) -> float:
        """Of every threshold: the load must stay under it before a server goes."""
        return CALM_DOWN_RATIO if self._settled else DOWN_RATIO

    def note(self, signals: Signals, target_s: float | None, window_s: float) -> None:
        """Take in a look. `target_s`: of the time to first token; None: nothing is proven."""
        now, p99 = signals.at_s, signals.ttft_long_p99_s
        unseen, self._at_s = now - self._at_s > window_s, now  # that is no proof
        if target_s is None or signals.jumped or unseen:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now
        even = self._since_s is not None and now - self._since_s >= LONG_S
        of_target = p99.value / target_s if p99 is not None and target_s else inf
        self.now = even and of_target <= _WITHIN_RATIO
        self._settled = even and of_target <= _FAR_RATIO and now - self._up_at_s >= self._settles_s

    def up(self, at_s: float) -> None:
        """More servers are recommended."""
        if at_s - self._down_at_s < _MISSED_S:
            self._settles_s = min(_LONGEST_S, 2.0 * self._settles_s)
        elif at_s - self._up_at_s >= self._settles_s:  # else it is more of the same
            self._settles_s = LONG_S
        self._up_at_s, self._down_at_s, self._settled = at_s, float("-inf"), False

    def down(self, at_s: float) -> None:
        """One fewer is."""
        if self._settled:
            self._down_at_s = at_s
