"""How long do conversations get, and is a request the first of one?

Where a conversation begins decides where all its turns go. How much that weighs depends on how many there will be:
agents call some twenty times, and clients that give each request an id of its own never come back. So it is counted:
the requests that had a key, over the keys that were new, those before the last few hundred conversations ever less.
"""

from __future__ import annotations

from xxhash import xxh3_64_intdigest

KEPT = 50_000  # conversations remembered, those that were silent longest out first: about 6 MB
HALF_LIFE = 100.0  # conversations
PRIOR_TURNS, PRIOR_CONVERSATIONS = 2.0, 2.0  # a guess, soon outweighed

_KEEP = 0.5 ** (1.0 / HALF_LIFE)


def number_of(key: str) -> int:
    """What stands for a key: 64 bits, the same in all processes."""
    return xxh3_64_intdigest(key.encode("utf-8", "backslashreplace"))


class Conversations:
    """The conversations of one pool, by the numbers of their keys."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._known: dict[int, None] = {}  # the longest silent first
        self._requests = PRIOR_TURNS * PRIOR_CONVERSATIONS
        self._begun = PRIOR_CONVERSATIONS

    @property
    def mean(self) -> float:
        """Requests of a conversation, at least 1."""
        return self._requests / self._begun

    def to_come(self, number: int) -> float:
        """Requests to expect after this one where it is the first of its conversation; 0 for a later one."""
        return 0.0 if number in self._known else self.mean - 1.0

    def add(self, number: int) -> None:
        """A request of this conversation was placed."""
        known = self._known
        self._requests += 1.0
        if number in known:
            del known[number]
        else:
            self._requests *= _KEEP
            self._begun = (self._begun + 1.0) * _KEEP
            if len(known) >= self._kept:
                del known[next(iter(known))]
        known[number] = None
