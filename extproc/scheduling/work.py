"""What would a request cost a server?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Work:
    """The prompt of one request, as far as it is understood."""

    prompt_tokens: float = 0.0  # estimated from its length
    # Leading tokens of it that a server is believed to hold, by the server's slot; absent: none.
    held_tokens: Mapping[int, float] = field(default_factory=dict)
    in_session: bool = False  # it names a conversation or user

    @property
    def begins_something(self) -> bool:
        """Nobody holds half of it: what it begins will stay, and grow, where it goes."""
        return 2 * max(self.held_tokens.values(), default=0.0) < self.prompt_tokens


UNKNOWN = Work()
