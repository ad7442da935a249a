"""Which names were asked for that do not exist?

A request whose route or header names no pool or profile of ours is routed all the same, as if it had named none. Each
is counted by what named it. The names that routes give (they are the operator's) are kept, up to a bound, so that a
person can be told of each once; what a client's header says is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum

MOST_NAMES = 20
NAME_CHARS = 100


class NamedBy(StrEnum):
    """What named something."""

    ROUTE_POOL = "route_pool"  # the route's x-extproc-pool
    ROUTE_PROFILE = "route_profile"  # the route's x-extproc-profile
    HEADER_PROFILE = "header_profile"  # the client's, in scheduling.profile_header


class UnknownNames:
    """Counts since start."""

    def __init__(self) -> None:
        self.counts: Counter[NamedBy] = Counter()
        self.names: Counter[tuple[NamedBy, str]] = Counter()  # of routes, the first `MOST_NAMES`, cut off
        self.on_new: Callable[[NamedBy, str], None] | None = None  # told of each of `names` once

    def add(self, by: NamedBy, name: str) -> None:
        self.counts[by] += 1
        if by is NamedBy.HEADER_PROFILE:
            return
        key = (by, name[:NAME_CHARS])
        if key in self.names:
            self.names[key] += 1
        elif len(self.names) < MOST_NAMES:
            self.names[key] = 1
            if self.on_new is not None:
                self.on_new(*key)
