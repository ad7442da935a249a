"""How long may it take until the requests on a server have ended by themselves?

For any of them, from the bounds that the operator sets:

    T = (T_queue + T_prefill + max_tokens x token interval) x margin                                  (1)

4,096 tokens at 30 ms are 123 s, with 10 s for the prefill and 5 s in the queue, times 1.2: 166 s. The token interval is
the 99th percentile at a full batch; where the server's samples have told it, that counts instead of the setting.

For those that run there now it is often less:

    max over them of (sent + (TTFT p99 + its own max_tokens x token interval) x margin) - now         (2)

What is not known of a request is taken from (1). One that names more tokens than the operator's bound is held to the
bound: T is what the platform was told to wait, and waiting longer than that would help nobody. One that is there
longer than it should be refutes (2), and so do requests of which only the server knows: then (1) counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.pool.member import Member
from extproc.pool.reservation import Reservation

ENOUGH_FIRST_TOKENS = 100.0  # for a 99th percentile


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the operator says of the requests. Seconds and tokens."""

    max_tokens: int = 4096  # the longest answer
    token_interval_s: float = 0.03  # between two tokens of an answer, at a full batch
    queue_s: float = 5.0
    prefill_s: float = 10.0
    margin: float = 1.2  # 1.2 to 1.5


def longest_s(bounds: Bounds, token_interval_s: float | None = None) -> float:
    """T of any request by (1), in seconds. `token_interval_s`: as measured; None: as set."""
    interval_s = bounds.token_interval_s if token_interval_s is None else token_interval_s
    return (bounds.queue_s + bounds.prefill_s + bounds.max_tokens * interval_s) * bounds.margin


def deadline_s(member: Member, bounds: Bounds, now: float) -> float:
    """How long from `now` to wait for the requests on this server, in seconds: the lesser of (1) and (2); 0 when it has
    none."""
    longest = longest_s(bounds, member.token_interval.p99_s)
    if member.reported > member.in_flight:
        return longest
    begin_s = _first_token_s(member, bounds)
    interval_s = bounds.token_interval_s if member.token_interval.p99_s is None else member.token_interval.p99_s
    left = [_left_s(each, bounds, begin_s, interval_s, longest, now) for each in member.open]
    return min(longest, max(left, default=0.0))


def _left_s(
    request: Reservation, bounds: Bounds, begin_s: float, interval_s: float, longest_s: float, now: float
) -> float:
    tokens = bounds.max_tokens if request.max_tokens is None else min(request.max_tokens, bounds.max_tokens)
    left_s = request.charged_at_s + (begin_s + tokens * interval_s) * bounds.margin - now
    return left_s if left_s > 0.0 else longest_s


def _first_token_s(member: Member, bounds: Bounds) -> float:
    ttft = member.sample.ttft if member.sample is not None else None
    if ttft is not None and ttft.count >= ENOUGH_FIRST_TOKENS:
        measured_s = ttft.quantile_s(0.99)
        if measured_s is not None:
            return measured_s
    return bounds.queue_s + bounds.prefill_s
