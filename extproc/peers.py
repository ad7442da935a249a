"""How many requests have come to the other processes in front of a pool? Asks them, and adds up.

They are listed (`autoscale.peers`) by address, or by a name that resolves to all of them. This process may be among
them: it knows itself by its id. While one of them cannot be asked, what came is unknown, not less.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

from extproc.autoscale.peers import SILENT_S, Peers
from extproc.config.settings import AdminSettings, EndpointSettings, PoolSettings
from extproc.discovery.listed import ListedSource
from extproc.endpoint import Address, Endpoint
from extproc.telemetry.peers import PeerCounts, PeerPoller

log = logging.getLogger(__name__)


class PoolPeers:
    """Those of one pool."""

    def __init__(
        self,
        pool: str,
        peers: tuple[str, ...],
        process: str,
        every_s: float,
        clock: Callable[[], float],
        *,
        own: AdminSettings,
    ) -> None:
        """`process`: our own id; `own`: our own admin port. Raises ValueError for a CA that cannot be used."""
        self._pool = pool
        self._clock = clock
        self._sum = Peers(process)
        self._source = ListedSource(PoolSettings(endpoints=tuple(EndpointSettings(address=peer) for peer in peers)))
        self._poller = PeerPoller(self, every_s, clock, own=own)
        self._answers: dict[Address, str | None] | None = None  # why it did not answer; None: it did. None: none known
        self._complete_s: float | None = None  # when all answered last; None: never yet

    @property
    def requests(self) -> float | None:
        """That came to the others since they were first heard; it does not fall. None: not known now."""
        silent = self._complete_s is None or self._clock() - self._complete_s > SILENT_S
        return None if silent else self._sum.requests

    @property
    def failing(self) -> tuple[str, ...]:
        """Who cannot be asked, and why."""
        names = [f"{name}: {reason}" for name, reason in self._source.failing.items()]
        silent = [f"{address}: {why}" for address, why in (self._answers or {}).items() if why is not None]
        return (*names, *silent)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._poller.run(), name=f"peers {self._pool}")
            async with aclosing(self._source.watch()) as found:
                async for endpoints in found:
                    before = self._answers or {}
                    unheard = "it was not heard yet"
                    self._answers = {each.address: before.get(each.address, unheard) for each in endpoints}
                    self._poller.set_endpoints(endpoints)

    def on_counts(self, endpoint: Endpoint, counts: PeerCounts) -> None:
        requests = counts.requests.get(self._pool)
        if requests is None:
            self.on_no_counts(endpoint, f"it has no pool {self._pool!r}")
            return
        self._sum.told(counts.process, requests)
        self._note(endpoint.address, None)
        if self._answers is not None and not self._source.failing and not any(self._answers.values()):
            self._complete_s = self._clock()

    def on_no_counts(self, endpoint: Endpoint, reason: str) -> None:
        self._note(endpoint.address, reason)

    def _note(self, address: Address, reason: str | None) -> None:
        answers = self._answers if self._answers is not None else {}
        before = answers.get(address)
        answers[address] = reason
        if reason is not None and before != reason:
            log.warning(
                "pool %s: how many requests come is unknown: peer %s does not tell: %s",
                self._pool,
                address,
                reason,
            )
        elif reason is None and before is not None:
            log.info("pool %s: peer %s tells how many requests come to it", self._pool, address)
