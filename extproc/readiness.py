"""May Envoy send requests here yet?

Once the members of all pools are known (or their source fails) and one is seen to serve and its load is known, or when
that has been waited for: picks before that would be blind. Once ready it stays so.
"""

from __future__ import annotations

from collections.abc import Callable

from extproc.router import Router


class Readiness:
    """Of one process."""

    def __init__(self, router: Router, known: Callable[[], bool], *, wait_s: float, clock: Callable[[], float]) -> None:
        """`known`: whether the members of all pools are, or their source says that it fails. A request for a pool whose
        servers are not known yet is better off without us."""
        self._router = router
        self._known = known
        self._until_s = clock() + wait_s
        self._clock = clock
        self._was = False

    def __call__(self) -> bool:
        if not self._was:
            now = self._clock()
            self._was = now > self._until_s or (
                self._known() and any(pool.can_pick(now) for pool in self._router.pools)
            )
        return self._was
