"""Which servers must not be considered, and why?

Wishes are never overruled: what the operator drained, and what lies outside the gateway's subset, is out whatever
else happens. What only its platform takes down serves on while no other can: an answer that may be cut short is better
than an error. Observations can be overruled, step by step. Servers that said 429 or 503 just now are used when no other
can be: where all are full, who sends where changes nothing. When every server looks bad, those are used whose metrics
pages alone speak against them, or that return from errors and have their share already (`panic`: our view of the fleet
may be what is broken, and an error is certain otherwise), and only when there is none of these, also those that
answered with errors or sleep.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Generic, TypeVar

from extproc.endpoint import Address
from extproc.scheduling.candidate import Candidate
from extproc.value import value

DOES_NOT_SERVE = "does not serve the model"

C = TypeVar("C", bound=Candidate)


@value
class Eligible(Generic[C]):
    """The servers left. `panic`: they are those that observation had dropped."""

    candidates: Sequence[C]
    panic: bool = False


class Subset:
    """The gateway's restriction of one pick, as parsed addresses: `ip:port` or a bare IP for all its ports."""

    __slots__ = ("_addresses", "_ips")

    def __init__(self, hint: frozenset[str]) -> None:
        self._addresses: set[Address] = set()
        self._ips: set[str] = set()
        for text in hint:
            try:
                self._addresses.add(Address.parse(text))
            except ValueError:
                try:
                    self._ips.add(Address.of(text.strip(), 1).ip)
                except ValueError:
                    continue  # names nothing that could be picked

    def __contains__(self, address: Address) -> bool:
        return address in self._addresses or address.ip in self._ips


@lru_cache(maxsize=256)
def subset_of(hint: frozenset[str]) -> Subset:
    """The hint of a request, parsed once: a gateway repeats itself."""
    return Subset(hint)


def drop_reason(candidate: Candidate, now: float, subset: Subset | None = None, model: str | None = None) -> str | None:
    """Why a server is dropped where another can be used, in words for a person; None: it is not."""
    if model is not None and candidate.models is not None and model not in candidate.models:
        return DOES_NOT_SERVE
    if candidate.out is not None:
        return candidate.out
    if subset is not None and candidate.endpoint.address not in subset:
        return "outside the gateway's subset"
    problem = candidate.problem(now)
    if problem is not None:
        return problem
    if not candidate.health.reached:
        return "not seen to serve yet"
    if candidate.health.held:
        return "warming up: it has as many requests as it may until it has begun more"
    return "full: it answered 429 or 503" if candidate.health.full(now) else None


def eligible(
    candidates: Sequence[C], now: float, hint: frozenset[str] | None = None, *, all_ready: bool = False
) -> Eligible[C]:
    """Filter one pool for one request. `all_ready`: it is known that no candidate is unsound or unwanted.

    A server that was not seen to serve yet is kept out while another was (its port may not even be open). One that
    warms up, and has as many requests as it may, counts as full.
    """
    if hint is not None:
        subset = subset_of(hint)
        candidates = [c for c in candidates if c.endpoint.address in subset]
    if all_ready:
        return Eligible(candidates)
    good = [c for c in candidates if c.health.sound and c.out is None]
    if len(good) == len(candidates):
        return Eligible(good)
    wanted = [c for c in candidates if c.out is None]
    if good and len(good) == len(wanted):
        return Eligible(good)
    good = []
    full: list[C] = []  # as they said
    rest: list[C] = []
    for candidate in wanted:
        health = candidate.health
        if health.sound:
            good.append(candidate)
        elif not health.reached or candidate.problem(now) is not None:
            rest.append(candidate)
        else:
            (full if health.full(now) else good).append(candidate)
    if good or full:
        return Eligible(good or full)
    leaving = [c for c in candidates if c.last_resort]
    serving = [c for c in leaving if c.health.reached and c.problem(now) is None]
    if serving or not rest:
        return Eligible(serving or leaving)
    starting = [c for c in rest if c.problem(now) is None]
    if starting:
        return Eligible(starting)
    return Eligible([c for c in rest if not c.health.answers_badly(now)] or rest, panic=True)
