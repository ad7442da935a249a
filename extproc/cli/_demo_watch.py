"""What did the service decide, and why? The demo looks over the router's shoulder."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.app import App
from extproc.decision import Decision, Pick
from extproc.note import Note
from extproc.placement import Placed
from extproc.pool.member import Member
from extproc.request import RawRequest
from extproc.router import Considered
from extproc.why import why

_KEPT = 20_000  # picks; a demo makes some hundred


@dataclass(frozen=True, slots=True)
class Seen:
    """One pick."""

    at_unix_s: float
    path: str
    address: str
    destination: str  # all hosts named, as Envoy reads them
    why: str


class Watch:
    """The picks of a service, over its restarts."""

    def __init__(self) -> None:
        self.picks: deque[Seen] = deque(maxlen=_KEPT)
        self.got: Counter[str] = Counter()  # picks by address
        self.apps: list[App] = []
        self.down = False  # the service is away; what is known of the servers is old

    def attach(self, app: App) -> App:
        """Watch this service from now on."""
        router, route = app.router, app.router.route

        def watched(raw: RawRequest, now: float, note: Note | None = None) -> Decision:
            considered = router.consider(raw, now)
            decision = route(raw, now, note)
            if isinstance(decision, Pick) and considered.placed is not None:
                self._note(raw, decision, considered, considered.placed)
            return decision

        router.route = watched  # type: ignore[method-assign]  # the demo only: a pick's reason is not kept by the router
        self.apps.append(app)
        self.down = False
        return app

    @property
    def app(self) -> App:
        return self.apps[-1]

    @property
    def members(self) -> Sequence[Member]:
        return self.app.router.pools[0].members

    def member(self, address: str) -> Member:
        """Raises KeyError for an address that is none of the pool's."""
        for member in self.members:
            if str(member.address) == address:
                return member
        raise KeyError(address)

    def _note(self, request: RawRequest, pick: Pick, considered: Considered, placed: Placed) -> None:
        address = str(pick.address)
        chosen = next(i for i, each in enumerate(considered.candidates) if each.address == pick.address)
        reason = why(placed, considered.profile, considered.candidates, chosen)
        self.picks.append(Seen(time.time(), request.path, address, pick.destination, reason))
        self.got[address] += 1
