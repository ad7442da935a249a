"""The gRPC port: options, TLS, and an orderly end."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path

import grpc

from extproc.config.settings import GrpcSettings, TlsSettings
from extproc.endpoint import format_host, split_host_port

_MEBIBYTE = 1024 * 1024


class ListenError(Exception):
    """No start: a port cannot be opened, a file cannot be used. The message names the setting and the cure."""


def options(max_body_bytes: int) -> list[tuple[str, int]]:
    """Channel arguments of the server.

    The message limit is the body limit and room for headers and attributes. Envoy's keepalive pings are welcome at any
    rate, with and without calls: grpc's default answers two pings within five minutes by closing the connection and
    all streams on it. A stream is held per running request, so their number is not bounded here. We ping too: an Envoy
    whose machine died says nothing, and its streams would hold their charges for two hours, grpc's default.
    """
    message_bytes = max_body_bytes + _MEBIBYTE
    return [
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_send_message_length", message_bytes),
        ("grpc.max_concurrent_streams", 2**31 - 1),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.ping_timeout_ms", 20_000),  # the one that newer grpc goes by; its default is 60 s
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),  # no bound: an open stream is silent while its answer is generated
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
    host, port = split_host_port(settings.listen, lowest_port=0)
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
    key, chain = _read("key_file", tls.key_file), _read("cert_file", tls.cert_file)
    client_ca = _read("client_ca_file", tls.client_ca_file) if tls.client_ca_file else None
    _check(tls, client_ca)
    return grpc.ssl_server_credentials(
        [(key, chain)],
        root_certificates=client_ca,
        require_client_auth=client_ca is not None,
    )


def _check(tls: TlsSettings, client_ca: bytes | None) -> None:
    """Find what is wrong with the files: grpc would only say that it cannot bind the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: b"")  # else it asks on the terminal
    except ssl.SSLError as error:
        raise ListenError(
            f"grpc.tls: cannot use cert_file {tls.cert_file} with key_file {tls.key_file} ({error.reason or error});"
            " both must be PEM, the key without a password, and belong together"
        ) from error
    try:
        if client_ca is not None:
            context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise ListenError(
            f"grpc.tls.client_ca_file: no PEM certificate in {tls.client_ca_file} ({error.reason or error})"
        ) from error


def _read(field: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ListenError(f"grpc.tls.{field}: cannot read {path}: {error.strerror}") from error
