"""What does DNS answer, and for how long does that hold?

The system's resolver (getaddrinfo) tells neither SRV records nor a TTL, so DNS is spoken here, by dnspython: over UDP,
and over TCP where an answer does not fit. It is an optional dependency; only what needs SRV records imports this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import dns.asyncresolver
import dns.exception
import dns.nameserver
import dns.resolver
from dns.rdtypes.IN.SRV import SRV

from extproc.discovery.listed import of_family
from extproc.endpoint import Address

_TRY_S = 1.0  # for one server, before the next is asked
_RECORDS = {"v4_only": ("A",), "v6_only": ("AAAA",)}  # by family; of the others both are asked for


class DnsError(Exception):
    """No answer, or one that does not say what was asked for."""


@dataclass(frozen=True, slots=True)
class SrvRecord:
    """`target` without its last dot."""

    priority: int
    weight: int
    port: int
    target: str


class DnsClient:
    def __init__(self, servers: Sequence[Address] = (), *, timeout_s: float = 2.0) -> None:
        """`servers`: whom to ask, in this order; empty: whom /etc/resolv.conf names, with its search list."""
        self._servers = tuple(servers)
        self._timeout_s = timeout_s

    async def srv(self, name: str) -> tuple[tuple[SrvRecord, ...], float]:
        """The records, in an order that does not change, and for how many seconds they hold.

        A single record with the target "." says that the service is decidedly not there: no records.

        Raises DnsError.
        """
        answer = await self._ask(name, "SRV")
        if answer is None:
            raise DnsError("it has no SRV records")
        records = [
            SrvRecord(found.priority, found.weight, found.port, found.target.to_text(omit_final_dot=True))
            for found in answer
            if isinstance(found, SRV) and found.target != dns.name.root and found.port
        ]
        records.sort(key=lambda record: (record.priority, record.target, record.port))
        return tuple(records), answer.chaining_result.minimum_ttl

    async def addresses(self, name: str, family: str) -> tuple[tuple[str, ...], float]:
        """The IP addresses of a name, IPv4 first, and for how many seconds they hold. `family`: as `dns_family`.

        Raises DnsError, also when one of both families gives no answer: the half that is known is not all.
        """
        asked = _RECORDS.get(family, ("A", "AAAA"))
        answers = [answer for kind in asked if (answer := await self._ask(name, kind))]
        found = of_family(sorted({item.address for answer in answers for item in answer}), family)
        if not found:
            raise DnsError("it has no usable address")
        ordered = sorted(found, key=lambda text: (":" in text, text))
        return tuple(ordered), min(answer.chaining_result.minimum_ttl for answer in answers)

    async def _ask(self, name: str, kind: str) -> dns.resolver.Answer | None:
        """None: there is the name, but it has nothing of this kind.

        In a task of its own: dnspython waits by `asyncio.wait_for`, which before Python 3.12 loses a cancellation that
        comes together with the answer. Who is cancelled here is cancelled.
        """
        asking = asyncio.create_task(self._resolve(name, kind), name=f"resolve {name}")
        try:
            await asyncio.wait((asking,))
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait((asking,))
        return asking.result()

    async def _resolve(self, name: str, kind: str) -> dns.resolver.Answer | None:
        try:
            resolver = dns.asyncresolver.Resolver(configure=not self._servers)
            if self._servers:
                resolver.nameservers = [dns.nameserver.Do53Nameserver(at.ip, at.port) for at in self._servers]
            resolver.timeout = min(_TRY_S, self._timeout_s)
            return await resolver.resolve(name, kind, lifetime=self._timeout_s, search=not self._servers)
        except dns.resolver.NoAnswer:
            return None
        except (dns.exception.DNSException, OSError, UnicodeError) as error:
            raise DnsError(_words(error)) from error


def _words(error: Exception) -> str:
    if isinstance(error, dns.resolver.NXDOMAIN):
        return "there is no such name"
    if isinstance(error, dns.exception.Timeout):
        return "no answer in time"
    return str(error) or type(error).__name__
