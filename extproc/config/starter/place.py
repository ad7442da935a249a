"""Where is something, by what a person types: a server, or a port to open?"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from extproc.endpoint import Address, format_host, split_host_port

_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_PATHS = ("", "/", "/v1", "/v1/")  # of a URL that names a server, and nothing else
_HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """A host (an IP address in its one spelling, or a DNS name) and a port. Build it with `server` or `listener`."""

    host: str
    port: int

    @property
    def text(self) -> str:
        return format_host(self.host, self.port)

    @property
    def is_name(self) -> bool:
        return _ip(self.host) is None

    @property
    def is_everywhere(self) -> bool:
        """All addresses of a machine: a place to listen, not one to be reached at."""
        ip = _ip(self.host)
        return ip is not None and ip.is_unspecified

    @property
    def is_here(self) -> bool:
        """On the machine from where it is looked at."""
        ip = _ip(self.host)
        return self.host == "localhost" if ip is None else ip.is_loopback

    @property
    def from_here(self) -> Place:
        """How a listener is reached from its own machine."""
        return Place("::1" if ":" in self.host else _HERE, self.port) if self.is_everywhere else self

    def clashes(self, other: Place) -> bool:
        """One and the same port: both cannot be opened, or one of them leads to the other."""
        if self.port != other.port:
            return False
        one, two = (_HERE if place.host == "localhost" else place.host for place in (self, other))
        everywhere = self.is_everywhere or other.is_everywhere
        return one == two or (everywhere and all(each.is_here or each.is_everywhere for each in (self, other)))


def server(text: str) -> Place:
    """A vLLM server: `host:port`, `[v6]:port`, or `http://host:port` with nothing of weight behind.

    Raises:
        ValueError: with what is wrong and what to write instead.
    """
    host_port = _without_scheme(text.strip())
    host, port = split_host_port(host_port)
    if "%" in host:
        raise ValueError(f'"{host_port}": an IPv6 zone id cannot be routed to by Envoy; leave out "%..."')
    if _ip(host) is None:
        return Place(_dns_name(host), port)
    place = Place(Address.of(host, port).ip, port)
    if place.is_everywhere:
        raise ValueError(
            f'"{host_port}" is where a server listens, not where it is reached; write its address,'
            f" as {Place(place.host, port).from_here.text} on this machine"
        )
    return place


def servers(texts: list[str]) -> tuple[Place, ...]:
    """Those of all texts, each with one or several, commas or blanks between. Raises ValueError, for the first that is
    wrong, for one that is named twice, and for none at all."""
    found: dict[tuple[str, int], str] = {}
    places = []
    for text in " ".join(texts).replace(",", " ").split():
        place = server(text)
        key = (_HERE if place.host == "localhost" else place.host, place.port)
        if key in found:
            same = "is given twice" if found[key] == place.text else f"and {found[key]} are one server"
            raise ValueError(f"{place.text} {same}; leave one out")
        found[key] = place.text
        places.append(place)
    if not places:
        raise ValueError("no server is given; write host:port, as 10.0.0.1:8000")
    return tuple(places)


def listener(text: str) -> Place:
    """A port to open: `ip:port`, `localhost:port`, or a port alone, which means all addresses.

    Raises:
        ValueError: with what is wrong and what to write instead.
    """
    stripped = text.strip()
    if stripped.removeprefix(":").isdigit():
        stripped = f"0.0.0.0:{stripped.removeprefix(':')}"
    host, port = split_host_port(stripped)
    if host == "localhost":
        host = _HERE
    if _ip(host) is None:
        raise ValueError(f'"{text}": "{host}" is no IP address of this machine to listen on; write one, or 0.0.0.0')
    return Place(Address.of(host, port).ip, port)


def _without_scheme(text: str) -> str:
    if "://" not in text:
        if "/" in text:
            raise ValueError(f'"{text}" has a path; write host:port')
        return text
    parts = urlsplit(text)
    if parts.scheme == "https":
        raise ValueError(
            f'"{text}": TLS towards the servers is not set up here; write their plain HTTP port as host:port, or add a'
            " transport_socket to cluster vllm of the file afterwards"
        )
    if parts.scheme != "http" or parts.path not in _PATHS or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError(f'"{text}" is no server; write host:port')
    if not parts.netloc.rpartition(":")[2].isdigit():
        raise ValueError(f'"{text}" has no port; write {parts.netloc.rstrip(":")}:80 if it is 80')
    return parts.netloc


def _dns_name(host: str) -> str:
    labels = host.removesuffix(".").split(".")
    if labels[-1].isdigit():
        raise ValueError(f'"{host}" is no IP address; four numbers from 0 to 255 with dots between')
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f'"{host}" is neither an IP address nor a DNS name')
    return host.lower()


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
