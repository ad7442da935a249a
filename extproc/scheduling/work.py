"""What would a request cost a server?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from extproc.value import value


@value
class Work:
    """The prompt of one request, as far as it is understood."""

    prompt_tokens: float = 0.0  # estimated from its length
    # Tokens of its beginning that a server is believed to hold, by the server's slot; absent: none.
    held: Mapping[int, float] = field(default_factory=dict)
    in_session: bool = False  # it names a conversation or user
    turns_to_come: float = 0.0  # requests to expect after it in its conversation; 0 if it is not the first

    most_held: float = field(init=False)  # by one server
    # Nobody holds half of it: what it begins will stay, and grow, where it goes.
    begins_something: bool = field(init=False)

    def __post_init__(self) -> None:
        self.most_held = most = max(self.held.values(), default=0.0)  # type: ignore[misc]
        self.begins_something = 2 * most < self.prompt_tokens  # type: ignore[misc]

    def held_at(self, slot: int) -> float:
        """Tokens of it that the server of this slot is believed to hold."""
        return self.held.get(slot, 0.0)

    def held_ratio_at(self, slot: int) -> float:
        """The part of it that the server of this slot is believed to hold, 0 to 1."""
        held = self.held.get(slot, 0.0)
        return 1.0 if held > self.prompt_tokens else held / self.prompt_tokens if held else 0.0

    def uncached_at(self, slot: int) -> float:
        """Tokens of it that the server of this slot must compute."""
        return max(0.0, self.prompt_tokens - self.held_at(slot))


UNKNOWN = Work()
