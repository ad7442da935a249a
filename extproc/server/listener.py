"""The gRPC port: its sockets, TLS, and the server behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extproc.config.settings import GrpcSettings
from extproc.endpoint import format_host, split_host_port
from extproc.rpc.call import Handler
from extproc.rpc.server import BACKLOG, Server
from extproc.sockets import bound
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
        sockets = bound(host, port, backlog=BACKLOG)
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
