"""Why did this server get this request? The rule's own numbers at that moment, as a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Cost = tuple[float, ...]


def reason(chosen: Cost, others: Sequence[Cost]) -> str:
    """Say what decided, by the costs of `least_loaded`: waiting, unknown, KV usage, in flight.

    "waiting" includes what was sent since the last look at the server, as in the rule.
    """
    if not others:
        return "the only one that can be used"
    same = [other for other in others if other[0] == chosen[0]]
    more = [other[0] for other in others if other[0] != chosen[0]]
    head = f"fewest waiting {chosen[0]:g} (others {_range(more, '{:g}'.format)})" if more else f"{chosen[0]:g} waiting"
    if not same:
        return head
    known = [other for other in same if other[1] == chosen[1]]
    if not known:
        return f"{head}, and its load is known"
    same = [other for other in known if other[2] == chosen[2]]
    if not same:
        return f"{head}, lowest KV {chosen[2]:.1%} ({_range([o[2] for o in known], '{:.1%}'.format)})"
    equal = [other for other in same if other[3] == chosen[3]]
    if not equal:
        in_flight = _range([other[3] for other in same], "{:g}".format)
        return f"{head}, KV {chosen[2]:.1%}, fewest in flight {chosen[3]:g} ({in_flight})"
    return f"{head}, KV {chosen[2]:.1%}: drawn among {len(equal) + 1} equal ones"


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low}–{high}"
