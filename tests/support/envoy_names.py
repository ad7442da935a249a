"""A DNS server on loopback that knows one name, for Envoy to ask instead of the system's.

Names that both resolvers know are no use to a test: c-ares, which Envoy uses, answers `localhost` with 127.0.0.1 and
::1 whatever /etc/hosts says.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence
from typing import Any

_A, _AAAA = 1, 28
_ANSWER, _NO_SUCH_NAME = 0x8180, 0x8183  # response, recursion desired and available
_TTL_S = 1


class NameServer(asyncio.DatagramProtocol):
    """Answers A and AAAA questions for `name` (RFC 1035, 4); any other name does not exist."""

    def __init__(self, name: str, addresses: Sequence[str]) -> None:
        self.name = name
        self._addresses = [ipaddress.ip_address(address) for address in addresses]
        self._transport: asyncio.DatagramTransport | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))

    def stop(self) -> None:
        if self._transport is not None:
            self._transport.close()

    @property
    def port(self) -> int:
        assert self._transport is not None
        found: int = self._transport.get_extra_info("sockname")[1]
        return found

    def resolver_config(self) -> dict[str, Any]:
        """For a cluster's `typed_dns_resolver_config`."""
        kind = "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"
        server = {"socket_address": {"address": "127.0.0.1", "port_value": self.port}}
        return {
            "name": "envoy.network.dns_resolver.cares",
            "typed_config": {
                "@type": kind,
                "resolvers": [server],
                "dns_resolver_options": {"no_default_search_domain": True},
            },
        }

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]].decode())
            at += 1 + data[at]
        kind = int.from_bytes(data[at + 1 : at + 3], "big")
        question = data[12 : at + 5]
        known = ".".join(labels).lower() == self.name
        version = {_A: 4, _AAAA: 6}.get(kind)
        found = [a.packed for a in self._addresses if known and a.version == version]
        # 0xC00C points to the name in the question; class 1 is IN.
        fixed = b"\xc0\x0c" + kind.to_bytes(2, "big") + b"\x00\x01" + _TTL_S.to_bytes(4, "big")
        records = b"".join(fixed + len(packed).to_bytes(2, "big") + packed for packed in found)
        flags = _ANSWER if known else _NO_SUCH_NAME
        counts = b"".join(n.to_bytes(2, "big") for n in (flags, 1, len(found), 0, 0))
        assert self._transport is not None
        self._transport.sendto(data[:2] + counts + question + records, addr)
