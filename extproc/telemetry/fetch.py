"""What came of asking one server for one page, once?

What the page says or a reason why not, as values: whatever a server or the network does ends in one of them. Other
exceptions are our own faults and are raised.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import aiohttp
from yarl import URL

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Endpoint, format_host

T = TypeVar("T")


class FailureKind(StrEnum):
    REFUSED = "refused"  # nothing listens there: the only kind that shows the server is not running
    TIMEOUT = "timeout"  # no whole page in time; a busy server can be this slow and still serve
    UNREACHABLE = "unreachable"  # no route, host down, address family not supported
    TLS = "tls"  # handshake or certificate
    HTTP_STATUS = "http_status"  # an answer other than 200; a redirect is one
    BROKEN = "broken"  # connection lost before the page ended, or no HTTP, or an encoding we cannot undo
    TOKEN = "token"  # bearer_token_file cannot be used; nothing was sent


@dataclass(frozen=True, slots=True)
class ScrapeFailure:
    kind: FailureKind
    detail: str  # for a person
    at_s: float  # monotonic clock, when the scrape was sent
    status: int | None = None  # with HTTP_STATUS


def tls_context(settings: ScrapeSettings) -> ssl.SSLContext | None:
    """What `scheme`, `ca_file` and `verify` ask for; None for plain HTTP.

    Raises:
        ValueError: `ca_file` cannot be read or holds no certificate.
    """
    if settings.scheme != "https":
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f'scrape.ca_file: cannot use "{settings.ca_file}": {error}; name a PEM file') from error
    if not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def new_session(settings: ScrapeSettings, tls: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """One for all endpoints. Ignores proxy variables of the environment: a proxy cannot reach pod addresses."""
    connector = aiohttp.TCPConnector(
        limit=0,  # a hung server holds its own connection and nobody else's
        ssl=True if tls is None else tls,
        keepalive_timeout=max(15.0, 3 * settings.interval_s),
    )
    return aiohttp.ClientSession(
        connector=connector,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `fetch` has one deadline over everything
        headers={"Accept-Encoding": "identity", "User-Agent": "extproc"},
    )


@dataclass(frozen=True, slots=True)
class Page:
    """Which page of which server."""

    host_port: str  # where to connect to
    path: str
    accept: str
    host: str | None = None  # the Host header, None: `host_port`
    hostname: str | None = None  # the name in its certificate; None: its IP
    token_file: str | None = field(default=None, repr=False)  # sent as a bearer token
    token_setting: str = ""  # the setting that names the file, for a person

    @classmethod
    def served(
        cls, endpoint: Endpoint, path: str, accept: str, token_file: str | None = None, token_setting: str = ""
    ) -> Page:
        """One of its serving port."""
        host = None if endpoint.hostname is None else format_host(endpoint.hostname, endpoint.address.port)
        return cls(endpoint.address.text, path, accept, host, endpoint.hostname, token_file, token_setting)


async def fetch(
    session: aiohttp.ClientSession,
    page: Page,
    settings: ScrapeSettings,
    clock: Callable[[], float],
    read: Callable[[aiohttp.ClientResponse, float], Awaitable[T]],
) -> T | ScrapeFailure:
    """One GET, within `settings.timeout_s` from connect to the last byte. `read` is given a 200 and its time."""
    at_s = clock()
    headers = {"Accept": page.accept}
    if page.token_file is not None:
        try:
            headers["Authorization"] = f"Bearer {_read_token(page.token_file)}"
        except (OSError, ValueError) as error:
            return ScrapeFailure(FailureKind.TOKEN, f"{page.token_setting}: {error}", at_s)
    if page.host is not None:
        headers["Host"] = page.host
    url = URL(f"{settings.scheme}://{page.host_port}{page.path}", encoded=True)
    shown = url.with_query(None)  # there may be a key in the query
    try:
        async with (
            asyncio.timeout(settings.timeout_s),
            session.get(url, headers=headers, allow_redirects=False, server_hostname=page.hostname) as response,
        ):
            if response.status != 200:
                response.close()
                where = response.headers.get("Location")
                redirect = f" to {where[:200]!r}; redirects are not followed" if where else ""
                detail = f"{shown}: status {response.status}{redirect}"
                return ScrapeFailure(FailureKind.HTTP_STATUS, detail, at_s, status=response.status)
            return await read(response, at_s)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:  # TimeoutError: of ours, or of the network's
        kind = _kind(error)
        reason = f"no whole page within {settings.timeout_s:g} s" if kind is FailureKind.TIMEOUT else _text(error)
        return ScrapeFailure(kind, f"{shown}: {reason}", at_s)


async def whole(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """The body; None: it is longer than that."""
    pieces, left = [], max_bytes
    async for piece in response.content.iter_any():
        left -= len(piece)
        if left < 0:
            response.close()
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _read_token(path: str) -> str:
    """A few bytes from a mounted file, anew for each scrape: tokens are rotated in place."""
    token = Path(path).read_text("utf-8", "replace").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(f'"{path}" must hold one token, without spaces or line breaks in it')
    return token


def _kind(error: Exception) -> FailureKind:
    if isinstance(error, TimeoutError):
        return FailureKind.TIMEOUT
    if isinstance(error, ssl.SSLError | aiohttp.ClientSSLError):
        return FailureKind.TLS
    if isinstance(error, aiohttp.ClientConnectorError):
        return FailureKind.REFUSED if error.errno == errno.ECONNREFUSED else FailureKind.UNREACHABLE
    return FailureKind.BROKEN


def _text(error: Exception) -> str:
    # Its own text has the URL, with the query.
    text = f"{error.status}, {error.message}" if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return f"{type(error).__name__}: {text}"[:300].rstrip(": ")
