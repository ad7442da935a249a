"""The gRPC port: options, TLS, and an orderly end."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import grpc

from extproc.config.settings import GrpcSettings, TlsSettings
from extproc.endpoint import format_host, split_host_port

_MEBIBYTE = 1024 * 1024


class ListenError(Exception):
    """The port cannot be opened, or a TLS file cannot be read; the message names the setting and the cure."""


def options(max_body_bytes: int) -> list[tuple[str, int]]:
    """Channel arguments of the server.

    The message limit is the body limit and room for headers and attributes. Envoy's keepalive pings are welcome at any
    rate, with and without calls: grpc's default answers two pings within five minutes by closing the connection and
    all streams on it. A stream is held per running request, so their number is not bounded here.
    """
    message_bytes = max_body_bytes + _MEBIBYTE
    return [
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_concurrent_streams", 2**31 - 1),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.so_reuseport", 0),  # a second process on the port is an error, not a silent share of the traffic
    ]


def build(
    settings: GrpcSettings, max_body_bytes: int, services: Iterable[grpc.GenericRpcHandler]
) -> tuple[grpc.aio.Server, str]:
    """A server bound to its port, not yet started, and the address it is bound to (port 0: a free one).

    Raises:
        ListenError: as its docstring says.
    """
    server = grpc.aio.server(options=options(max_body_bytes))
    server.add_generic_rpc_handlers(tuple(services))
    host, port = split_host_port(settings.listen)
    try:
        target = format_host(host, port)
        if settings.tls is None:
            bound = server.add_insecure_port(target)
        else:
            bound = server.add_secure_port(target, _credentials(settings.tls))
    except RuntimeError as error:
        raise ListenError(f"grpc.listen: cannot open {settings.listen} ({error}); is another process there?") from error
    return server, format_host(host, bound)


def _credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    client_ca = _read("client_ca_file", tls.client_ca_file) if tls.client_ca_file else None
    return grpc.ssl_server_credentials(
        [(_read("key_file", tls.key_file), _read("cert_file", tls.cert_file))],
        root_certificates=client_ca,
        require_client_auth=client_ca is not None,
    )


def _read(field: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ListenError(f"grpc.tls.{field}: cannot read {path}: {error.strerror}") from error
