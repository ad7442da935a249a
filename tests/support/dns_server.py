"""A DNS server on loopback that says what the test has written into it, over UDP and TCP on one port."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from extproc.endpoint import Address
from extproc.rpc.server import accept_no_more


class DnsServer:
    """`records` by (name, type): the TTL and the values. A name of none is NXDOMAIN."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], tuple[int, list[str]]] = {}
        self.silent: set[str] = set()  # names that get no answer
        self.broken: set[str] = set()  # names that get SERVFAIL
        self.truncated: set[str] = set()  # names whose answers do not fit into UDP
        self.asked: Counter[tuple[str, str]] = Counter()
        self.over_tcp: Counter[tuple[str, str]] = Counter()
        self.address = Address.of("127.0.0.1", 1)  # once it runs

    def set(self, name: str, kind: str, *values: str, ttl_s: int = 60) -> None:
        """No values: the name has no records of this type any more."""
        if values:
            self.records[name, kind] = (ttl_s, list(values))
        else:
            self.records.pop((name, kind), None)

    def answer(self, raw: bytes, *, tcp: bool) -> bytes | None:
        """None: silence."""
        query = dns.message.from_wire(raw)
        (question,) = query.question
        name, kind = question.name.to_text(omit_final_dot=True), dns.rdatatype.to_text(question.rdtype)
        (self.over_tcp if tcp else self.asked)[name, kind] += 1
        if name in self.silent:
            return None
        response = dns.message.make_response(query)
        if name in self.broken:
            response.set_rcode(dns.rcode.SERVFAIL)
        elif (name, kind) in self.records:
            if name in self.truncated and not tcp:
                response.flags |= dns.flags.TC
            else:
                ttl_s, values = self.records[name, kind]
                response.answer.append(dns.rrset.from_text(question.name, ttl_s, "IN", kind, *values))
        elif not any(known == name for known, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response.to_wire()


class _Udp(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        answer = self._server.answer(data, tcp=False)
        if answer is not None:
            self._transport.sendto(answer, addr)


@asynccontextmanager
async def dns_server() -> AsyncIterator[DnsServer]:
    server = DnsServer()

    async def serve_tcp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            answer = server.answer(await reader.readexactly(length), tcp=True)
            if answer is not None:
                writer.write(struct.pack("!H", len(answer)) + answer)
        except asyncio.IncompleteReadError:  # the client thought better of it
            pass
        finally:
            writer.close()
        await writer.wait_closed()

    tcp = await asyncio.start_server(serve_tcp, "127.0.0.1", 0)
    port = tcp.sockets[0].getsockname()[1]
    udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Udp(server), local_addr=("127.0.0.1", port)
    )
    server.address = Address.of("127.0.0.1", port)
    try:
        yield server
    finally:
        udp.close()
        await accept_no_more(tcp)
        await tcp.wait_closed()
