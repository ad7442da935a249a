"""Which certificate does a listening port show, now and after its files change?

Certificates are renewed in place while the service runs: cert-manager swaps the symlink that a Secret is mounted by,
others write the files anew. So the files are looked at (three `stat`s) with each handshake, and read when they differ;
connections that are open stay as they are. Files that cannot be used, or are half changed, leave what was read before
in use: that is logged once, and tried again with the next handshake.

The outer context never changes: its server-name callback, which OpenSSL calls in every handshake whether or not the
client names a server, puts the present one in its place. No tickets are given out, so that with TLS 1.3 no session is
resumed and each connection is judged by the client CA of now. With 1.2 OpenSSL keeps sessions itself, for two hours,
and Python cannot tell it not to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from extproc.config.settings import TlsSettings

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0  # a client that takes longer is let go
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

_Identity = tuple[tuple[int, int, int, int], ...]  # of the files, as far as `stat` tells


class TlsFileError(Exception):
    """A file of the settings cannot be used. The text names the setting, the file and the cure."""

    def __init__(self, section: str, field: str, message: str, *, unreadable: bool = False) -> None:
        """`field`: the one setting that it is about, "" for several."""
        super().__init__(f"{section}.{field}: {message}" if field else f"{section}: {message}")
        self.field = field
        self.message = message
        self.unreadable = unreadable


class Certificates:
    """Those of one port."""

    def __init__(self, settings: TlsSettings, section: str, *, alpn: Sequence[str], demand: bool = True) -> None:
        """`section`: where the settings stand, as `grpc.tls`. `demand`: with a client CA, a client without a
        certificate does not come in; else it does, and whoever serves it must look. One with a certificate of another
        CA never does.

        Raises TlsFileError.
        """
        self._settings = settings
        self._section = section
        self._alpn = list(alpn)
        self._demand = demand
        self._failed: str | None = None  # why the files cannot be used now
        self._identity = self._look()
        self._present = self._load()
        self.context = self._load()
        self.context.sni_callback = self._show_present

    def _show_present(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        self._follow()
        connection.context = self._present

    def _follow(self) -> None:
        """Read the files if they have changed."""
        identity = self._look()
        if identity == self._identity:
            return
        try:
            self._present = self._load()
        except TlsFileError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.error("%s; the certificate that was read before stays in use", error)
            return
        self._identity, self._failed = identity, None
        log.info("%s: %s has changed and is in use", self._section, self._settings.cert_file)

    def _look(self) -> _Identity:
        found = []
        for path in (self._settings.cert_file, self._settings.key_file, self._settings.client_ca_file):
            if path is not None:
                with contextlib.suppress(OSError):
                    at = os.stat(path)  # noqa: PTH116  (a third of the time)
                    found.append((at.st_dev, at.st_ino, at.st_mtime_ns, at.st_size))
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        """Tell which of the files cannot be used, and why."""
        settings, section = self._settings, self._section
        _read(section, "key_file", settings.key_file), _read(section, "cert_file", settings.cert_file)
        client_ca = _read(section, "client_ca_file", settings.client_ca_file) if settings.client_ca_file else None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = _VERSIONS[settings.min_version]
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        context.set_alpn_protocols(self._alpn)
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file, password=lambda: b"")  # else it asks
        except ssl.SSLError as error:
            message = (
                f"cannot use cert_file {settings.cert_file} with key_file {settings.key_file}"
                f" ({error.reason or error}); both must be PEM, the key without a password, and belong together"
            )
            raise TlsFileError(section, "", message) from error
        except OSError as error:  # gone since it was read
            raise TlsFileError(section, "", f"cannot read its files: {error.strerror}", unreadable=True) from error
        if client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED if self._demand else ssl.CERT_OPTIONAL
            try:
                context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
            except ssl.SSLError as error:
                message = f"no PEM certificate in {settings.client_ca_file} ({error.reason or error})"
                raise TlsFileError(section, "client_ca_file", message) from error
        return context


def words(settings: TlsSettings | None) -> str:
    """Which of the three it is, for the log."""
    return "plaintext" if settings is None else "mutual TLS" if settings.client_ca_file else "TLS"


def _read(section: str, field: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsFileError(section, field, f"cannot read {path}: {error.strerror}", unreadable=True) from error
