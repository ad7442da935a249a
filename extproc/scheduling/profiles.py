"""Which rules can an operator name?

A profile is a list of ways to choose; the first that has what it needs does it. Load is the last of all: every request
can be placed by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, auto


class By(IntEnum):  # an int, since it is counted by at each pick and other enums hash slowly
    """A way to choose among the candidates, and what it needs of the request."""

    FIRST_TOKEN = auto()  # the least expected time to first token; needs the prompt
    PREFIX = auto()  # consistent hashing of the prompt's first blocks, within a load bound; needs a block
    SESSION = auto()  # consistent hashing of the conversation or user, within a load bound; needs its key
    LOAD = auto()  # fewest waiting, then KV usage, then in flight; needs nothing
    # Comes before the ways of every profile that reads bodies: nobody else can answer.
    STORED = auto()  # who has the response that the request names; needs its id, and to know it


@dataclass(frozen=True, slots=True)
class Profile:
    """A named way to place requests. All share the filter (`filters.eligible`)."""

    name: str
    ways: tuple[By, ...]

    @property
    def reads_body(self) -> bool:
        return self.ways != (By.LOAD,)


PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("least-loaded", (By.LOAD,)),
        Profile("session", (By.SESSION, By.LOAD)),
        Profile("prefix-hash", (By.PREFIX, By.SESSION, By.LOAD)),
        Profile("cache-aware", (By.FIRST_TOKEN, By.SESSION, By.LOAD)),
    )
}
