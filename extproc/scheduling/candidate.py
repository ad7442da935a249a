"""What may a filter or a cost look at?"""

from __future__ import annotations

from typing import Protocol

from extproc.endpoint import Address


class Health(Protocol):
    """What was observed of a server."""

    @property
    def reached(self) -> bool: ...
    @property
    def sound(self) -> bool: ...
    def answers_badly(self, now: float) -> bool: ...
    def problem(self, now: float) -> str | None: ...


class Endpoint(Protocol):
    """What the operator says of a server."""

    @property
    def address(self) -> Address: ...
    @property
    def drained(self) -> bool: ...
    @property
    def weight(self) -> float: ...


class Prefill(Protocol):
    """Its account of prompt tokens: `rate` in tokens/s; `clear_at_s`, when it will have computed those it owes now."""

    @property
    def rate(self) -> float: ...
    @property
    def clear_at_s(self) -> float: ...


class Candidate(Protocol):
    """A server that might be picked.

    `waiting`, `kv_usage_ratio` (None when the page did not tell), `reported` (requests running or waiting) and
    `kv_penalty_s` are of its last sample, which is believed until `usable_until_s` (monotonic clock).
    """

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def health(self) -> Health: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def unseen(self) -> int: ...
    @property
    def waiting(self) -> float | None: ...
    @property
    def kv_usage_ratio(self) -> float | None: ...
    @property
    def usable_until_s(self) -> float: ...
    @property
    def reported(self) -> float: ...
    @property
    def kv_penalty_s(self) -> float: ...
    @property
    def prefill(self) -> Prefill: ...
    @property
    def slot(self) -> int: ...
