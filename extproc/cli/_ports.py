"""Which ports does an Envoy configuration want, and are they free?

Envoy opens its ports with SO_REUSEPORT: a second one on the same port starts without a word and gets a share of the
connections. So this is asked before it starts.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping
from typing import Any


def taken(host: str, port: int) -> bool:
    """Whether another socket listens there. A port or an address that is not ours to open counts as free: whoever
    opens it then gets the better error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the remains of closed connections do not count
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def free_port(preferred: int, host: str = "127.0.0.1", *, avoid: frozenset[int] = frozenset()) -> int:
    """The preferred port if nobody listens there, else one that the system says is free; never one of `avoid`.

    `preferred` 0: any."""
    if preferred and preferred not in avoid and not taken(host, preferred):
        return preferred
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
            port = int(probe.getsockname()[1])
        if port not in avoid:
            return port


def wanted(document: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    """What is opened, on which host and port, by an envoy.yaml that was read; other kinds of address are left out."""
    listeners = (document.get("static_resources") or {}).get("listeners") or []
    for listener in listeners:
        yield from _address(f"listener {listener.get('name', '')}".strip(), listener.get("address"))
    yield from _address("admin", (document.get("admin") or {}).get("address"))


def _address(what: str, address: Any) -> Iterator[tuple[str, str, int]]:
    socket_address = (address or {}).get("socket_address") or {}
    port = socket_address.get("port_value")
    if isinstance(port, int) and port and socket_address.get("protocol", "TCP") == "TCP":
        yield what, str(socket_address.get("address", "0.0.0.0")), port
