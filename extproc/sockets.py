"""On which sockets does a port of ours listen?"""

from __future__ import annotations

import contextlib
import socket


def bound(host: str, port: int, *, backlog: int) -> list[socket.socket]:
    """Listening sockets on all addresses of a host. `::` takes IPv4 too.

    Not SO_REUSEPORT: a second process on the port is an error, not a silent share of the traffic.

    Raises OSError.
    """
    with contextlib.ExitStack() as undo:
        sockets: list[socket.socket] = []
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            one = undo.enter_context(socket.socket(family, kind, protocol))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host != "::"))
            taken = sockets[0].getsockname()[1] if sockets else port
            one.bind((address[0], taken, *address[2:]))
            one.listen(backlog)
            one.setblocking(False)
            sockets.append(one)
        undo.pop_all()
    return sockets
