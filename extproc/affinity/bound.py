"""When is the preferred server too busy for the next request of its key?

Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2017): an over-full server passes the key to the
next on the ring. The bound is absolute and relative. A relative one alone misfires at low load: with a mean of 1 it
would tear a session from its server for the second request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

RELATIVE = 1.25
ABSOLUTE = 8


def load_limit(total_in_flight: float, servers: int) -> float:
    """Requests in flight above which a server is over-full: `max(1.25 * mean, mean + 8)`; `servers` is at least 1."""
    mean = total_in_flight / servers
    return max(RELATIVE * mean, mean + ABSOLUTE)


def bounded(preference: Iterable[str], in_flight: Mapping[str, float]) -> tuple[str, ...]:
    """The preference, with the over-full servers moved behind the others; both keep their order.

    `in_flight` names the candidates: all that may be picked, and over which the mean is taken. Others are left out.
    At least one candidate is never over-full, since the limit lies above the mean.
    """
    if not in_flight:
        return ()
    limit = load_limit(sum(in_flight.values()), len(in_flight))
    fit: list[str] = []
    full: list[str] = []
    for server in preference:
        load = in_flight.get(server)
        if load is not None:
            (full if load > limit else fit).append(server)
    return (*fit, *full)


def first_within(preference: Iterable[str], in_flight: Mapping[str, float], limit: float) -> str | None:
    """The first server of the preference that is a candidate and not over-full; None: there is none.

    For the hot path: with `Ring.walk` it looks only as far along the ring as it must.
    """
    for server in preference:
        load = in_flight.get(server)
        if load is not None and load <= limit:
            return server
    return None
