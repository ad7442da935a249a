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
    head = f"{chosen[0]:g} waiting"
    if not same:
        return f"fewest waiting: {_against(chosen[0], [o[0] for o in others], '{:g}'.format)}"
    if len(same) < len(others):
        head = f"fewest waiting ({_against(chosen[0], [o[0] for o in others if o[0] != chosen[0]], '{:g}'.format)})"
    known = [other for other in same if other[1] == chosen[1]]
    if not known:
        return f"{head}, and its load is known"
    same = [other for other in known if other[2] == chosen[2]]
    if not same:
        return f"{head}, then lowest KV: {_against(chosen[2], [o[2] for o in known], '{:.1%}'.format)}"
    fewer = [other for other in same if other[3] == chosen[3]]
    if not fewer:
        return (
            f"{head}, KV {chosen[2]:.1%}, fewest in flight: {_against(chosen[3], [o[3] for o in same], '{:g}'.format)}"
        )
    return f"{head}, KV {chosen[2]:.1%}: drawn among {len(fewer) + 1} equal ones"


def _against(value: float, others: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = text(min(others)), text(max(others))
    return f"{text(value)} against {low}" + ("" if low == high else f" to {high}")
