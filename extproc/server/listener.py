"""The gRPC port: its sockets, TLS, and the server behind it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Mapping

from extproc.config.settings import GrpcSettings
from extproc.endpoint import format_host, split_host_port
from extproc.rpc.call import Handler
from extproc.rpc.server import BACKLOG, Server
from extproc.tls import Certificates, TlsFileError

# The streams of an Envoy whose machine died hold their charges for so long.
PING_AFTER_S = 60.0
PING_TIMEOUT_S = 20.0
_MEBIBYTE = 1024 * 1024


class ListenError(Exception):
    """No start: a port cannot be opened, a file cannot be used. The message names the setting and the cure."""


def build(settings: GrpcSettings, max_body_bytes: int, services: Iterable[Mapping[str, Handler]]) -> tuple[Server, str]:
    """A server bound to its port, not yet started, and the address it is bound to (port 0: a free one).

    The message limit is the body limit and room for headers and attributes.

    Raises:
        ListenError: as its docstring says.
    """
    try:
        tls = None if settings.tls is None else Certificates(settings.tls, "grpc.tls", alpn=["h2"]).context
    except TlsFileError as error:
        raise ListenError(str(error)) from error
    host, port = split_host_port(settings.listen, lowest_port=0)
    try:
        sockets = _bound(host, port)
    except OSError as error:
        raise ListenError(
            f"grpc.listen: cannot open {settings.listen} ({error.strerror}); is another process there?"
        ) from error
    handlers = {path: handler for service in services for path, handler in service.items()}
    server = Server(
        handlers,
        sockets,
        max_message_bytes=max_body_bytes + _MEBIBYTE,
        tls=tls,
        ping_after_s=PING_AFTER_S,
        ping_timeout_s=PING_TIMEOUT_S,
    )
    return server, format_host(host, sockets[0].getsockname()[1])


def _bound(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on all addresses of a host. `::` takes IPv4 too.

    Not SO_REUSEPORT: a second process on the port is an error, not a silent share of the traffic.
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
            one.listen(BACKLOG)
            one.setblocking(False)
            sockets.append(one)
        undo.pop_all()
    return sockets
