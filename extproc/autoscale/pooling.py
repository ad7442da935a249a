"""How much more than one server may each of many have, where they share a queue?

A request waits only when all of them are busy, so many may be used to more of what they can do than one, for the same
wait. By Sakasegawa's approximation of a queue with c servers (An approximation formula Lq ~ a rho^b / (1 - rho), 1977)
the wait goes with rho^(sqrt(2 (c + 1)) - 1) / (c (1 - rho)). A router that sends each request to the server with the
shortest queue comes near that.
"""

from __future__ import annotations

from math import sqrt

MOST_RHO = 0.97  # what is fuller takes long to come back from any burst
_HALVINGS = 20


def pooled(rho: float, servers: int) -> float:
    """How many times the load of one server each of so many may have, for the same wait; at least 1.

    `rho`: the part of what it can do that one server is used to.
    """
    if not 0.0 < rho < MOST_RHO or servers < 2:
        return 1.0
    allowed = _wait(rho, 1)
    low, high = rho, MOST_RHO
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _wait(middle, servers) <= allowed else (low, middle)
    return low / rho


def _wait(rho: float, servers: int) -> float:
    """In a unit that is the same for any number of servers."""
    return float(rho ** (sqrt(2.0 * (servers + 1)) - 1.0) / (servers * (1.0 - rho)))
