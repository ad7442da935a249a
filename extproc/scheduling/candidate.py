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
    @property
    def held(self) -> bool: ...
    def answers_badly(self, now: float) -> bool: ...
    def full(self, now: float) -> bool: ...


class Endpoint(Protocol):
    """What the operator says of a server."""

    @property
    def address(self) -> Address: ...
    @property
    def weight(self) -> float: ...


# What the cost in seconds goes by, as one tuple that is made when something changes: a pick reads it of every server.
#
#   slot                as below
#   clear_at_s          when it will have computed the prompt tokens it owes now
#   token_s             that it takes to compute one
#   requests_per_s      sent there lately
#   half_bound_per_s    half of those sent there for what it holds
#   kv_wait_s           to expect for KV blocks, by the last sample
#   requests            there, by the last sample and our own count, by weight
#   load                of ours in flight there, by weight
#   usable_until_s      as below
Standing = tuple[int, float, float, float, float, float, float, float, float]


class Candidate(Protocol):
    """A server that might be picked.

    `waiting` and `kv_usage_ratio` (None when the page did not tell) are of its last sample, which is believed until
    `usable_until_s` (monotonic clock). `slot` is the router's number for it. `out`: why somebody wants it to get no new
    requests; None: nobody does. `last_resort`: it may get some all the same when nothing else is left.
    """

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def health(self) -> Health: ...
    @property
    def out(self) -> str | None: ...
    @property
    def last_resort(self) -> bool: ...
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
    def load(self) -> float: ...
    @property
    def standing(self) -> Standing: ...
    @property
    def slot(self) -> int: ...
    @property
    def models(self) -> frozenset[str] | None: ...
    def problem(self, now: float) -> str | None: ...
