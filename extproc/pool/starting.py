"""How long do the servers of a pool take to start?

From the first look at a server, which found it not serving yet, to the first moment that it might be picked. A server
that serves at the first look tells nothing of that; nor does one whose process is older than our first look, or one
that may only have been slow to answer.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from extproc.pool.health import Health
from extproc.pool.sample import LoadSample

KEPT = 20  # newer ones replace the oldest: another model or another image starts differently
CLOCKS_DIFFER_S = 2.0  # that of the server and ours, at most


class StartTimes:
    """The last ones of a pool, in seconds."""

    def __init__(self) -> None:
        self.count = 0  # since we started
        self._last: deque[float] = deque(maxlen=KEPT)

    def add(self, start_s: float) -> None:
        self.count += 1
        self._last.append(start_s)

    @property
    def last_s(self) -> tuple[float, ...]:
        """The newest last."""
        return tuple(self._last)

    @property
    def median_s(self) -> float | None:
        """None: none was seen to start."""
        return median(self._last) if self._last else None


def start_s(health: Health, sample: LoadSample | None, unix_s: float | None) -> float | None:
    """How long this server took to start, in seconds; None: that was not seen, or it does not serve yet.

    `unix_s`: the time of day at 0 of the monotonic clock; None: not known.
    """
    if health.starting_since_s is None or health.proven_at_s is None:
        return None
    took_s = health.proven_at_s - health.starting_since_s
    process_s = sample.process_start_s if sample is not None else None
    if process_s is not None and unix_s is not None:
        return took_s if process_s - unix_s >= health.starting_since_s - CLOCKS_DIFFER_S else None
    return took_s if health.was_refused else None
