"""A port's certificates: what is shown, to whom, and after the files change."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.config.settings import TlsSettings
from extproc.tls import Certificates, TlsFileError
from tests.security.conftest import Issued
from tests.support.certificates import Signed


class Mounted:
    """A Secret as Kubernetes mounts it: `tls.crt` and the others are symlinks into what `..data` links to, and a
    rotation swaps that link."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._versions = folder, 0
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (folder / name).symlink_to(f"..data/{name}")

    def put(self, signed: Signed, ca: Signed) -> None:
        self._versions += 1
        version = self._folder / f"..{self._versions}"
        version.mkdir()
        for name, source in (("tls.crt", signed.cert), ("tls.key", signed.key), ("ca.crt", ca.cert)):
            (version / name).write_bytes(source.read_bytes())
        fresh = self._folder / "..data_tmp"
        fresh.symlink_to(version.name)
        fresh.rename(self._folder / "..data")

    def settings(self, *, mutual: bool = False, min_version: str = "1.2") -> TlsSettings:
        files = {"cert_file": "tls.crt", "key_file": "tls.key"} | ({"client_ca_file": "ca.crt"} if mutual else {})
        return TlsSettings.model_validate(
            {name: str(self._folder / file) for name, file in files.items()} | {"min_version": min_version}
        )


@pytest.fixture
def mounted(tmp_path: Path, first: Issued) -> Mounted:
    made = Mounted(tmp_path)
    made.put(first.service, first.ca)
    return made


@asynccontextmanager
async def serving(certificates: Certificates) -> AsyncIterator[int]:
    """A server that greets; its port."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=certificates.context) as server:
        yield server.sockets[0].getsockname()[1]


async def shown(
    port: int, trusted: Signed, own: Signed | None = None, newest: ssl.TLSVersion | None = None
) -> tuple[str, str]:
    """The serial number of what the server shows, and the version that is spoken. Raises OSError."""
    context = ssl.create_default_context(cafile=trusted.cert)
    context.set_alpn_protocols(["h2"])
    if newest is not None:
        context.maximum_version = newest
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        if await reader.read() != b"hello":  # with TLS 1.3 a certificate is refused after the client's handshake
            raise ConnectionError("refused")
        tls = writer.get_extra_info("ssl_object")
        assert tls.selected_alpn_protocol() == "h2"
        return str(tls.getpeercert()["serialNumber"]), str(tls.version())
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass


async def refused(port: int, trusted: Signed, own: Signed | None = None, newest: ssl.TLSVersion | None = None) -> bool:
    try:
        await shown(port, trusted, own, newest)
    except OSError:
        return True
    return False


async def test_a_rotated_certificate_is_shown_from_the_next_connection_on(
    mounted: Mounted, first: Issued, second: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "extproc")
    async with serving(Certificates(mounted.settings(), "grpc.tls", alpn=["h2"])) as port:
        before = await shown(port, first.ca)
        assert before == await shown(port, first.ca)
        mounted.put(second.service, second.ca)
        after = await shown(port, second.ca)
        assert after[0] != before[0]
        assert await refused(port, first.ca)
    assert [record.getMessage() for record in caplog.records if record.name == "extproc.tls"] == [
        f"grpc.tls: {mounted.settings().cert_file} has changed and is in use"
    ]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_are_judged_by_the_ca_of_now(
    mounted: Mounted, first: Issued, second: Issued, version: ssl.TLSVersion
) -> None:
    async with serving(Certificates(mounted.settings(mutual=True), "grpc.tls", alpn=["h2"])) as port:
        assert await shown(port, first.ca, first.client, version)
        assert await refused(port, first.ca, None, version)
        assert await refused(port, first.ca, second.client, version)
        mounted.put(first.service, second.ca)
        assert await shown(port, first.ca, second.client, version)
        assert await refused(port, first.ca, first.client, version)


async def test_files_that_go_bad_leave_what_was_read_in_use_and_are_told_once(
    mounted: Mounted, first: Issued, second: Issued, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Certificates(mounted.settings(), "grpc.tls", alpn=["h2"])) as port:
        before = await shown(port, first.ca)
        mounted.put(Signed(second.service.cert, first.service.key), second.ca)  # the key is still the old one
        assert [await shown(port, first.ca) for _ in range(3)] == [before] * 3
        (told,) = [record.getMessage() for record in caplog.records if record.name == "extproc.tls"]
        assert "cannot use cert_file" in told
        assert told.endswith("the certificate that was read before stays in use")
        mounted.put(second.service, second.ca)
        assert await shown(port, second.ca) != before


@pytest.mark.parametrize(("least", "accepted"), [("1.2", "TLSv1.2"), ("1.3", None)])
async def test_old_versions_are_not_spoken(mounted: Mounted, first: Issued, least: str, accepted: str | None) -> None:
    certificates = Certificates(mounted.settings(min_version=least), "grpc.tls", alpn=["h2"])
    assert certificates.context.minimum_version is ssl.TLSVersion[f"TLSv{least.replace('.', '_')}"]
    async with serving(certificates) as port:
        assert (await shown(port, first.ca))[1] == "TLSv1.3"
        if accepted is None:
            with pytest.raises(OSError):
                await shown(port, first.ca, newest=ssl.TLSVersion.TLSv1_2)
        else:
            assert (await shown(port, first.ca, newest=ssl.TLSVersion.TLSv1_2))[1] == accepted


async def test_with_tls_1_3_no_session_is_resumed(mounted: Mounted, first: Issued) -> None:
    """It would be judged by the client CA of the time when it began."""
    context = ssl.create_default_context(cafile=first.ca.cert)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(first.client.cert, first.client.key)

    def connect(port: int, before: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=before) as tls,
        ):
            assert tls.recv(5) == b"hello"
            return tls.session, tls.session_reused

    async with serving(Certificates(mounted.settings(mutual=True), "grpc.tls", alpn=["h2"])) as port:
        session, _ = await asyncio.to_thread(connect, port, None)
        _, reused = await asyncio.to_thread(connect, port, session)
    assert not reused


def test_a_version_may_be_written_as_a_number() -> None:
    assert TlsSettings.model_validate({"cert_file": "c", "key_file": "k", "min_version": 1.3}).min_version == "1.3"


@pytest.fixture
def broken(mounted: Mounted, tmp_path: Path) -> TlsSettings:
    (tmp_path / "no.pem").write_text("not PEM")
    return mounted.settings()


@pytest.mark.parametrize(
    ("field", "file", "words"),
    [
        ("cert_file", "absent.pem", r"admin\.tls\.cert_file: cannot read .*absent\.pem: No such file"),
        ("key_file", "absent.pem", r"admin\.tls\.key_file: cannot read .*absent\.pem: No such file"),
        ("client_ca_file", "no.pem", r"admin\.tls\.client_ca_file: no PEM certificate in .*no\.pem"),
        ("cert_file", "no.pem", r"admin\.tls: cannot use cert_file .*no\.pem .* must be PEM"),
    ],
)
def test_a_file_that_cannot_be_used_at_the_start_is_named(
    broken: TlsSettings, tmp_path: Path, field: str, file: str, words: str
) -> None:
    settings = broken.model_copy(update={field: str(tmp_path / file)})
    with pytest.raises(TlsFileError, match=words):
        Certificates(settings, "admin.tls", alpn=["http/1.1"])
