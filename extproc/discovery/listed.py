"""Who are the members, when they are listed, by IP address or by DNS name?

The list may be replaced at any time; without names nothing else changes. Every name is resolved again each
`dns_refresh_s` (+-10 %). A resolution that fails or does not end keeps the addresses that the name had: a DNS server
that is down must not empty a healthy fleet. What has really gone is noticed by the scrapes. One name that hangs holds
up a round by `_ROUND_S` at most, and is not asked again before its last question has ended: it takes one resolver
thread, not one more each round.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection

from extproc.config.settings import EndpointSettings, PoolSettings
from extproc.discovery.failing import Failing
from extproc.discovery.source import EndpointSet, endpoint_set, literal_address
from extproc.endpoint import Address, Endpoint, split_host_port

log = logging.getLogger(__name__)

_JITTER = 0.1
_ROUND_S = 2.0  # longest wait for the answers of one round, if dns_refresh_s is not shorter

Resolver = Callable[[str], Awaitable[list[str]]]


async def system_resolver(name: str) -> list[str]:
    """The A and AAAA records of a name, by the system's resolver. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found if info[0] in (socket.AF_INET, socket.AF_INET6)]


def of_family(addresses: Collection[str], family: str) -> Collection[str]:
    """Those of the addresses that Envoy would use with this `dns_lookup_family`, but for link-local ones: no server has
    one, and at one of them clouds hand out their credentials (169.254.169.254)."""
    addresses = [text for text in addresses if not _link_local(text)]
    v6 = [text for text in addresses if ":" in text]
    v4 = [text for text in addresses if ":" not in text]
    match family:
        case "v4_only":
            return v4
        case "v6_only":
            return v6
        case "auto":
            return v6 or v4
        case "v4_preferred":
            return v4 or v6
    return addresses


def _link_local(text: str) -> bool:
    ip = ipaddress.ip_address(text.partition("%")[0])
    return (getattr(ip, "ipv4_mapped", None) or ip).is_link_local


class ListedSource:
    """IP addresses among the entries are taken as they are."""

    def __init__(
        self,
        pool: PoolSettings,
        resolver: Resolver = system_resolver,
        rng: random.Random | None = None,
        *,
        listed: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`listed`: the pool's endpoints are the list; False: nothing is known before `replace` says it."""
        self._pool = pool
        self._resolver = resolver
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._known: dict[str, tuple[str, ...]] = {}  # last good answer, sorted: DNS servers rotate theirs
        self._failing = Failing(log)
        self._entries: tuple[EndpointSettings, ...] | None = None
        self._names: tuple[str, ...] = ()
        self._replaced = asyncio.Event()
        if listed:
            self.replace(pool.endpoints)

    @property
    def failing(self) -> dict[str, str]:
        """Names whose last resolution failed or has not ended, and why."""
        return self._failing.reasons()

    def replace(self, entries: tuple[EndpointSettings, ...]) -> None:
        """Have this list from now on. Names that stay keep their addresses."""
        self._entries = entries
        hosts = (split_host_port(entry.address)[0] for entry in entries if literal_address(entry) is None)
        self._names = tuple(dict.fromkeys(hosts))
        for gone in (self._known.keys() | self._failing.reasons().keys()) - set(self._names):
            self._known.pop(gone, None)
            self._failing.forget(gone)
        self._replaced.set()

    async def watch(self) -> AsyncGenerator[EndpointSet, None]:
        pending: dict[str, asyncio.Task[list[str]]] = {}
        last: frozenset[Endpoint] | None = None  # another order is no change
        refresh_s = self._pool.dns_refresh_s
        await self._replaced.wait()
        try:
            while True:
                self._replaced.clear()
                await self._round(pending, min(refresh_s, _ROUND_S))
                now = endpoint_set(self._entries or (), self._addresses)
                if frozenset(now) != last:
                    last = frozenset(now)
                    yield now
                await self._pause(refresh_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER))
        finally:
            for task in pending.values():
                task.cancel()
            await asyncio.gather(*pending.values(), return_exceptions=True)

    async def _pause(self, refresh_s: float) -> None:
        """Wait until something may have changed."""
        if not self._names:
            await self._replaced.wait()
            return
        replaced = asyncio.ensure_future(self._replaced.wait())
        rested = asyncio.ensure_future(self._sleep(refresh_s))
        try:
            await asyncio.wait((replaced, rested), return_when=asyncio.FIRST_COMPLETED)
            if rested.done():
                rested.result()
        finally:
            replaced.cancel()
            rested.cancel()
            await asyncio.gather(replaced, rested, return_exceptions=True)

    async def _round(self, pending: dict[str, asyncio.Task[list[str]]], timeout_s: float) -> None:
        for name in pending.keys() - set(self._names):
            pending.pop(name).cancel()
        for name in self._names:
            if name not in pending:
                pending[name] = asyncio.create_task(self._resolve(name), name=f"resolve {name}")
        if pending:
            await asyncio.wait(pending.values(), timeout=timeout_s)
        for name, task in list(pending.items()):
            if not task.done():
                self._failed(name, f"no answer within {timeout_s:g} s")
                continue
            del pending[name]
            try:
                answer = task.result()
            except (OSError, UnicodeError) as error:  # UnicodeError: no DNS name can look like this
                self._failed(name, str(error))
                continue
            if not answer:
                self._failed(name, "the answer has no usable address")
                continue
            self._known[name] = tuple(answer)
            self._failing.worked(name)

    async def _resolve(self, name: str) -> list[str]:
        # A link-local address comes with a zone id, which Envoy cannot route to.
        usable = {text for text in await self._resolver(name) if "%" not in text}
        return sorted(of_family(usable, self._pool.dns_family), key=lambda text: (":" in text, text))

    def _addresses(self, entry: EndpointSettings) -> tuple[Address, ...]:
        host, port = split_host_port(entry.address)
        return tuple(Address.of(ip, port) for ip in self._known.get(host, ()))

    def _failed(self, name: str, reason: str) -> None:
        self._failing.failed(name, reason, f"keeping its last {len(self._known.get(name, ()))} address(es)")
