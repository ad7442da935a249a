"""Who are the members, when DNS SRV records name them?

Each record is a server: its target's addresses, with its port. Only the records of the lowest priority number count;
of two servers, the one of half the weight gets half as much. They are asked for again when the TTL of what was answered
has passed, at the latest after `dns_refresh_s`. What cannot be found out keeps its last answer, "no such name"
included; only the target "." says that there is nobody.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

from extproc.config.discovery_settings import SrvDiscoverySettings
from extproc.config.settings import PoolSettings
from extproc.discovery.dns_client import DnsClient, DnsError, SrvRecord
from extproc.discovery.failing import Failing
from extproc.discovery.source import EndpointSet
from extproc.endpoint import Address, Endpoint

log = logging.getLogger(__name__)

_JITTER = 0.1
_SHORTEST_S = 1.0  # between two rounds, however short the TTL; a cache answers with a TTL of 0 in its last second
_LONGEST_WAIT_S = 2.0  # for an answer, if dns_refresh_s is not shorter
_AT_ONCE = 32  # targets asked for at one time
# Beside servers with a weight, 0 asks for "a very small chance" (RFC 2782).
_ZERO_WEIGHT = 0.01
_KEPT = "what it said last is kept"


class Dns(Protocol):
    """See `DnsClient`."""

    async def srv(self, name: str) -> tuple[tuple[SrvRecord, ...], float]: ...

    async def addresses(self, name: str, family: str) -> tuple[tuple[str, ...], float]: ...


class SrvSource:
    """Nothing is said before the records were answered once."""

    def __init__(
        self,
        pool: PoolSettings,
        settings: SrvDiscoverySettings,
        client: Dns | None = None,
        rng: random.Random | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`client`: None asks the servers of the settings."""
        self._settings = settings
        self._family = pool.dns_family
        self._refresh_s = pool.dns_refresh_s
        timeout_s = min(_LONGEST_WAIT_S, pool.dns_refresh_s)
        self._client = client or DnsClient(settings.server_addresses, timeout_s=timeout_s)
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._records: tuple[SrvRecord, ...] | None = None
        self._known: dict[str, tuple[str, ...]] = {}  # addresses by target: the last good answer
        self._failing = Failing(log)

    @property
    def failing(self) -> dict[str, str]:
        """The name of the records, or targets, that do not resolve, and why."""
        return self._failing.reasons()

    async def watch(self) -> AsyncGenerator[EndpointSet, None]:
        last: EndpointSet | None = None
        while True:
            ttl_s = await self._round()
            now = self._endpoints()
            if now is not None and now != last:
                last = now
                yield now
            longest_s = self._refresh_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
            await self._sleep(min(longest_s, max(ttl_s, _SHORTEST_S)))

    async def _round(self) -> float:
        """Ask for everything once; for how many seconds the answers hold."""
        name = self._settings.name
        try:
            found, ttl_s = await self._client.srv(name)
        except DnsError as error:
            self._failing.failed(name, str(error), _KEPT)
            ttl_s = self._refresh_s
        else:
            self._records = _first_choice(found)
            self._failing.worked(name)
        targets = dict.fromkeys(record.target for record in self._records or ())
        for gone in (self._known.keys() | self._failing.reasons().keys()) - targets.keys() - {name}:
            self._known.pop(gone, None)
            self._failing.forget(gone)
        few = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._resolve(target, few)) for target in targets]
        return min([ttl_s, *[task.result() for task in tasks]])

    async def _resolve(self, target: str, few: asyncio.Semaphore) -> float:
        async with few:
            try:
                found, ttl_s = await self._client.addresses(target, self._family)
            except DnsError as error:
                self._failing.failed(target, str(error), _KEPT)
                return self._refresh_s
        self._known[target] = found
        self._failing.worked(target)
        return ttl_s

    def _endpoints(self) -> EndpointSet | None:
        """None: not known."""
        if self._records is None:
            return None
        most = max((record.weight for record in self._records), default=0)
        found: dict[Address, Endpoint] = {}
        for record in self._records:
            weight = max(record.weight / most, _ZERO_WEIGHT) if most else 1.0
            for ip in self._known.get(record.target, ()):
                address = Address.of(ip, record.port)
                endpoint = Endpoint(
                    address=address,
                    hostname=record.target,
                    weight=weight,
                    models=self._settings.model,
                    metrics_port=self._settings.metrics_port,
                )
                found.setdefault(address, endpoint)
        if self._records and not found:
            return None  # there are servers, but nobody knows where
        return tuple(found.values())


def _first_choice(records: tuple[SrvRecord, ...]) -> tuple[SrvRecord, ...]:
    """Those of the lowest priority number, in their order."""
    lowest = min((record.priority for record in records), default=0)
    return tuple(record for record in records if record.priority == lowest)
