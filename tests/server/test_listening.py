"""The gRPC port: what opens it, what keeps it from opening, and who may hold a connection to it."""

from __future__ import annotations

import socket
from pathlib import Path

import grpc
import pytest

from extproc.config.settings import GrpcSettings, TlsSettings
from extproc.server import listener
from tests.support import certificates, raw_http2
from tests.support.certificates import Signed
from tests.support.ext_proc_client import BUFFERED, PROCESS, Service, body, destination, headers
from tests.support.fleet import in_flight, sampled_router
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return certificates.authority(tmp_path_factory.mktemp("ca"), "ca")


@pytest.fixture(scope="module")
def server_cert(ca: Signed, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return certificates.signed_by(ca, tmp_path_factory.mktemp("server"), "server")


@pytest.fixture(scope="module")
def client_cert(ca: Signed, tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return certificates.signed_by(ca, tmp_path_factory.mktemp("client"), "client")


def over_tls(server: Signed, client_ca: Signed | None = None) -> Service:
    tls = TlsSettings(
        cert_file=str(server.cert), key_file=str(server.key), client_ca_file=str(client_ca.cert) if client_ca else None
    )
    return Service(sampled_router(1), GrpcSettings(listen="127.0.0.1:0", tls=tls))


def credentials(ca: Signed, own: Signed | None = None) -> grpc.ChannelCredentials:
    chain = (own.key.read_bytes(), own.cert.read_bytes()) if own else (None, None)
    return grpc.ssl_channel_credentials(ca.cert.read_bytes(), *chain)


async def picked(service: Service, using: grpc.ChannelCredentials | None) -> bool:
    """Whether a client with these credentials gets a pick; false: its connection is refused."""
    async with service.client(using) as client:
        stream = client.stream()
        try:
            reply = await stream.ask(body(b"{}", first_with_mode=BUFFERED))
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE  # noqa: PT017
            return False
        if reply is None:
            assert await stream.code() == "UNAVAILABLE"
            return False
        return bool(destination(reply))


async def test_with_tls_only_a_client_that_speaks_it_is_served(ca: Signed, server_cert: Signed) -> None:
    """case a20: the other way round it is status 14"""
    async with over_tls(server_cert).serve() as service:
        assert await picked(service, credentials(ca))
        assert not await picked(service, None)


async def test_with_a_client_ca_only_its_clients_are_served(
    ca: Signed, server_cert: Signed, client_cert: Signed, tmp_path: Path
) -> None:
    stranger = certificates.signed_by(certificates.authority(tmp_path, "other"), tmp_path, "stranger")
    async with over_tls(server_cert, client_ca=ca).serve() as service:
        assert await picked(service, credentials(ca, client_cert))
        assert not await picked(service, credentials(ca))
        assert not await picked(service, credentials(ca, stranger))


def build(settings: GrpcSettings) -> None:
    listener.build(settings, 1 << 20, ())


async def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(listener.ListenError, match=r"grpc\.listen: cannot open .* is another process there\?") as e:
            build(GrpcSettings(listen=address))
        assert address in str(e.value)


async def test_a_second_service_on_the_port_is_refused_not_given_a_share() -> None:
    async with Service(sampled_router(1)).serve() as service:
        with pytest.raises(listener.ListenError, match=r"grpc\.listen"):
            build(GrpcSettings(listen=service.target))


@pytest.mark.parametrize("field", ["cert_file", "key_file", "client_ca_file"])
async def test_a_tls_file_that_is_not_there_is_named(
    field: str, ca: Signed, server_cert: Signed, tmp_path: Path
) -> None:
    files = {"cert_file": server_cert.cert, "key_file": server_cert.key, "client_ca_file": ca.cert}
    files[field] = tmp_path / "absent.pem"
    tls = TlsSettings(**{name: str(path) for name, path in files.items()})
    with pytest.raises(listener.ListenError, match=rf"grpc\.tls\.{field}: cannot read .*absent\.pem"):
        build(GrpcSettings(listen="127.0.0.1:0", tls=tls))


async def test_a_key_of_another_certificate_is_told_as_that(server_cert: Signed, client_cert: Signed) -> None:
    tls = TlsSettings(cert_file=str(server_cert.cert), key_file=str(client_cert.key))
    with pytest.raises(listener.ListenError, match=r"cert_file .*server\.pem with key_file .*client\.key .*MISMATCH"):
        build(GrpcSettings(listen="127.0.0.1:0", tls=tls))


async def test_a_client_ca_that_holds_no_certificate_is_told_as_that(server_cert: Signed, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not PEM")
    tls = TlsSettings(
        cert_file=str(server_cert.cert), key_file=str(server_cert.key), client_ca_file=str(tmp_path / "ca.pem")
    )
    with pytest.raises(listener.ListenError, match=r"grpc\.tls\.client_ca_file: no PEM certificate in .*ca\.pem"):
        build(GrpcSettings(listen="127.0.0.1:0", tls=tls))


@pytest.mark.parametrize("silent_stream", [False, True])
async def test_pings_at_any_rate_are_answered_and_end_no_connection(silent_stream: bool) -> None:
    """case g02: servers of grpc end the connection, and all its streams, at the third ping within five minutes"""
    async with Service(sampled_router(1)).serve() as service, raw_http2.connect(service.target) as connection:
        if silent_stream:
            connection.open_grpc_stream(PROCESS, headers(BUFFERED).SerializeToString())
        for number in range(1, 21):
            connection.ping(number)
            await connection.until_pong(number)
        assert service.processor.open_streams == int(silent_stream)


async def test_a_peer_that_died_without_a_word_loses_its_streams_and_charges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine is gone: no reset, no end. Without pings its charges would stay until the system gives it up."""
    monkeypatch.setattr(listener, "PING_AFTER_S", 0.5)
    monkeypatch.setattr(listener, "PING_TIMEOUT_S", 0.1)
    async with Service(sampled_router(1)).serve() as service, raw_http2.connect(service.target) as connection:
        connection.open_grpc_stream(PROCESS, body(b"{}", first_with_mode=BUFFERED).SerializeToString())
        await eventually(lambda: in_flight(service.router) == [1], "the request is charged")
        for number in range(1, 4):
            connection.ping(number)
            await connection.until_pong(number)  # answers the server's own pings too, the last time
        await eventually(lambda: in_flight(service.router) == [0], "the silent peer is given up")
        assert service.processor.open_streams == 0
