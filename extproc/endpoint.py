"""What is a vLLM server, to us? An address that Envoy knows, and what its operator says of it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Self

from xxhash import xxh3_64_intdigest


def format_host(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str, *, lowest_port: int = 1) -> tuple[str, int]:
    """Read `host:port`, `[v6]:port` (IP or DNS name). `lowest_port` 0 also allows "any free port", for listening.

    Raises:
        ValueError: no port, a port outside the range, an empty host, an IPv6 address without brackets.
    """
    host, colon, port_text = text.strip().rpartition(":")
    if not colon or not port_text or port_text.endswith("]"):
        raise ValueError(f'"{text}" has no port; write host:port')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f'"{text}": put an IPv6 address in brackets, as in [fd00::10]:8000')
    if not host:
        raise ValueError(f'"{text}" has no host; write host:port')
    if not (port_text.isascii() and port_text.isdigit()) or not lowest_port <= int(port_text) <= 65535:
        raise ValueError(f'"{text}": the port must be a number from {lowest_port} to 65535')
    return host, int(port_text)


def _canonical(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """The spelling of inet_ntop, which is Envoy's: it looks a pick up among its hosts as text.

    Python's differs for addresses that hold an IPv4 one: `::ffff:a00:1` before 3.13, where Envoy has
    `::ffff:10.0.0.1`; and `::a00:1` in all versions, where Envoy has `::10.0.0.1`.
    """
    number = int(ip)
    if ip.version == 6 and (0xFFFF < number < 1 << 32 or number >> 32 == 0xFFFF):
        return f"::{'ffff:' if number >> 32 else ''}{ipaddress.IPv4Address(number & 0xFFFFFFFF)}"
    return str(ip)


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """An IP address and a port: the identity of an endpoint, as Envoy writes it.

    Build it with `Address.of` or `Address.parse`, which bring the IP into its one canonical spelling.
    """

    ip: str
    port: int
    text: str = field(init=False, compare=False, repr=False)
    number: int = field(init=False, compare=False, repr=False)  # 64 bits by which it is known in every process

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", format_host(self.ip, self.port))
        object.__setattr__(self, "number", xxh3_64_intdigest(self.text.encode()))

    @classmethod
    def of(cls, ip: str, port: int) -> Self:
        """Raises ValueError for a name, for an IPv6 zone id (Envoy has none) and for a port out of range."""
        bare = ip[1:-1] if ip.startswith("[") and ip.endswith("]") else ip
        if "%" in bare:
            raise ValueError(f'"{ip}": an IPv6 zone id cannot be routed to by Envoy; leave out "%..."')
        if not 1 <= port <= 65535:
            raise ValueError(f"port {port} must be from 1 to 65535")
        return cls(_canonical(ipaddress.ip_address(bare)), port)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `1.2.3.4:8000` or `[fd00::10]:8000`; ValueError as in `of` and `split_host_port`."""
        return cls.of(*split_host_port(text))

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One vLLM server as configured or discovered.

    `address` is what Envoy connects to. `hostname` is the DNS name it was resolved from, None for a literal IP.
    """

    address: Address
    hostname: str | None = None
    weight: float = 1.0  # share of traffic relative to its pool mates; 1 is normal
    models: tuple[str, ...] = ()  # the names it serves, as the operator says; empty: he does not say
    metrics_port: int | None = None  # None: the serving port
    drained: bool = False  # the operator wants no new requests here
    # Which server it is, beyond its address: a pod's uid. Another one at the same address is another server.
    uid: str | None = None
    leaving: bool = False  # its platform is taking it down: it finishes what it has, and gets no more

    def __post_init__(self) -> None:
        if not (0 < self.weight < float("inf")):
            raise ValueError(f"weight {self.weight} must be greater than 0")
        if self.metrics_port is not None and not 1 <= self.metrics_port <= 65535:
            raise ValueError(f"metrics_port {self.metrics_port} must be from 1 to 65535")

    @property
    def metrics_host_port(self) -> str:
        return format_host(self.address.ip, self.metrics_port or self.address.port)
