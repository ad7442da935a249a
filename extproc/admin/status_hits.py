"""What share of the prompts did a server's prefix cache hold lately, by the server's own counters?"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from extproc.pool.member import Member
from extproc.pool.sample import LoadSample

LATELY_S = 60.0  # over which it is counted


class CacheHits:
    """The prefix cache of one server, as it counts itself: tokens asked for and found."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self._looks: deque[tuple[float, float, float]] = deque()  # time, asked and found, added up over its restarts
        self._sample: LoadSample | None = None
        self._asked = self._found = 0.0

    def look(self, now: float) -> tuple[float, float]:
        """What was added since the look before: tokens asked for, and of those found."""
        asked, found = self._asked, self._found
        self._take(self.member.sample)
        self._looks.append((now, self._asked, self._found))
        while len(self._looks) > 1 and now - self._looks[0][0] > LATELY_S:
            self._looks.popleft()
        return self._asked - asked, self._found - found

    def lately(self, sample: LoadSample | None) -> tuple[float, float]:
        """What was added since the oldest look that counts."""
        asked, found = _added(self._sample, sample)
        _, asked_then, found_then = self._looks[0]
        return self._asked + asked - asked_then, self._found + found - found_then

    def _take(self, sample: LoadSample | None) -> None:
        if sample is not None and sample is not self._sample:
            asked, found = _added(self._sample, sample)
            self._asked += asked
            self._found += found
            self._sample = sample


def _added(before: LoadSample | None, sample: LoadSample | None) -> tuple[float, float]:
    """Between two samples. A counter that fell began anew in between; of the first sample nothing counts."""
    if before is None or sample is None or sample is before:
        return 0.0, 0.0
    asked, found = sample.prefix_queries_tokens, sample.prefix_hits_tokens
    asked_then, found_then = before.prefix_queries_tokens, before.prefix_hits_tokens
    if asked is None or found is None or asked_then is None or found_then is None:
        return 0.0, 0.0
    if asked < asked_then or found < found_then:
        return asked, found
    return asked - asked_then, found - found_then


def ratio(added: Iterable[tuple[float, float]]) -> float | None:
    pairs = list(added)
    asked = sum(each for each, _ in pairs)
    return min(1.0, sum(each for _, each in pairs) / asked) if asked > 0.0 else None
