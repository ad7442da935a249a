"""What came of asking one server for its metrics page, once?

A page or a reason why not, as values: whatever a server or the network does ends in a `LoadSample` or a
`ScrapeFailure`. Other exceptions are our own faults and are raised.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import aiohttp
from yarl import URL

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Endpoint, format_host
from extproc.pool.sample import LoadSample
from extproc.telemetry.vllm_page import PageReader

# A page is read in steps of this size with a turn of the event loop between them. A step took under 1 ms on vLLM's own
# pages and up to 18 ms on the costliest bytes we could think of (docs/decisions/own-metrics-line-parser.md).
STEP_BYTES = 16 * 1024


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
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `scrape` has one deadline over everything
        headers={"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"},
    )


async def scrape(
    session: aiohttp.ClientSession, endpoint: Endpoint, settings: ScrapeSettings, clock: Callable[[], float]
) -> LoadSample | ScrapeFailure:
    """One GET, within `settings.timeout_s` from connect to the last byte."""
    at_s = clock()
    headers: dict[str, str] = {}
    if settings.bearer_token_file is not None:
        try:
            headers["Authorization"] = f"Bearer {_read_token(settings.bearer_token_file)}"
        except (OSError, ValueError) as error:
            return ScrapeFailure(FailureKind.TOKEN, f"scrape.bearer_token_file: {error}", at_s)
    if endpoint.hostname is not None:
        headers["Host"] = format_host(endpoint.hostname, endpoint.metrics_port or endpoint.address.port)
    url = URL(f"{settings.scheme}://{endpoint.metrics_host_port}{settings.path}", encoded=True)
    try:
        async with (
            asyncio.timeout(settings.timeout_s),
            session.get(url, headers=headers, allow_redirects=False, server_hostname=endpoint.hostname) as response,
        ):
            if response.status != 200:
                response.close()
                where = response.headers.get("Location")
                redirect = f" to {where[:200]!r}; redirects are not followed" if where else ""
                detail = f"{url}: status {response.status}{redirect}"
                return ScrapeFailure(FailureKind.HTTP_STATUS, detail, at_s, status=response.status)
            return await _read_page(response, at_s, settings.max_bytes)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:  # TimeoutError: of ours, or of the network's
        kind = _kind(error)
        reason = f"no whole page within {settings.timeout_s:g} s" if kind is FailureKind.TIMEOUT else _text(error)
        return ScrapeFailure(kind, f"{url}: {reason}", at_s)


async def _read_page(response: aiohttp.ClientResponse, at_s: float, max_bytes: int) -> LoadSample:
    reader, left = PageReader(), max_bytes
    async for piece in response.content.iter_any():
        for start in range(0, min(len(piece), left), STEP_BYTES):
            if start:
                await asyncio.sleep(0)
            reader.feed(piece[start : min(start + STEP_BYTES, left)])
        if len(piece) > left:
            response.close()  # the connection too: what is still to come is not wanted
            return reader.finish(at_s, truncated=True)
        left -= len(piece)
    return reader.finish(at_s)


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
    return f"{type(error).__name__}: {error}"[:300].rstrip(": ")
