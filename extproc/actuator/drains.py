"""How does the drain of a server stand, by what each service process in front of it says?

Each has an account of its own, and each must have stopped sending before the server may be stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Stand(IntEnum):
    """From what must be dealt with first to what is well."""

    CANCELLED = 0  # somebody has brought it back
    FORGOTTEN = 1  # a service was restarted, or was not told yet
    DRAINING = 2
    EXPIRED = 3  # the deadline passed with requests still running
    DRAINED = 4
    GONE = 5  # nobody knows the server any more


@dataclass(frozen=True, slots=True)
class Drain:
    """All of them together."""

    stand: Stand
    words: str  # what it waits for


def together(views: Mapping[str, Mapping[str, Any] | None], told: Mapping[str, float]) -> Drain:
    """`views`: what each service shows of the server's drain, None: it does not know the server. `told`: when each that
    was told of the drain had started. At least one is asked."""
    drains = [Drain(_stand(view, told.get(url)), _words(view)) for url, view in views.items()]
    return min(drains, key=lambda each: each.stand)


def _stand(view: Mapping[str, Any] | None, told: float | None) -> Stand:
    if view is None:
        return Stand.GONE
    if view.get("state") == "gone":
        return Stand.EXPIRED if view.get("deadline_s") == 0 else Stand.DRAINING
    phase = view.get("phase")
    if phase is None:
        return Stand.CANCELLED if told is not None and told == view.get("service_started") else Stand.FORGOTTEN
    return {"drained": Stand.DRAINED, "expired": Stand.EXPIRED}.get(phase, Stand.DRAINING)


def _words(view: Mapping[str, Any] | None) -> str:
    if view is None:
        return "the service does not know it"
    if view.get("phase") == "expired":
        still = view.get("open_at_end") if view.get("open_at_end") is not None else view.get("in_flight")
        return f"{still} requests still ran at its deadline"
    if view.get("in_flight"):
        return f"{view['in_flight']} requests are in flight"
    if view.get("running") or view.get("waiting"):
        return (
            f"{view.get('running') or 0:g} requests run and {view.get('waiting') or 0:g} wait, not through this service"
        )
    return "its engine must show that nothing runs"
