"""In how long is a pool's queue gone, as it is worked off now?

What waits is compared with what waited a window ago, both of them means over a window. A queue that only a server took
with it was not worked off: where fewer servers are there than then, nothing is said.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from extproc.autoscale.window import PARTS


@dataclass(frozen=True, slots=True)
class _Mark:
    at_s: float
    requests: float
    servers: int


class Backlog:
    """Of one pool. Memory is bounded."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._marks: deque[_Mark] = deque()  # one a part of the window, by time

    def gone_in_s(self, now: float, waiting: float | None, servers: int) -> float | None:
        """Take in the mean that waits per server, over the window that ends now, on so many servers.

        None: nothing waits less, or that is not known.
        """
        if waiting is None:
            self._marks.clear()
            return None
        requests = waiting * servers
        if not self._marks or now - self._marks[-1].at_s >= self._window_s / PARTS:
            self._marks.append(_Mark(now, requests, servers))
        while len(self._marks) > 1 and self._marks[1].at_s <= now - self._window_s:
            self._marks.popleft()
        then = self._marks[0]
        over_s = now - then.at_s
        if over_s < self._window_s or then.servers > servers or then.requests <= requests:
            return None
        return requests / (then.requests - requests) * over_s
