"""How many requests have come to the other processes of this service, asked again and again?

One loop a process (see `loops`), on its admin port. The page that is asked for is in `admin.autoscale_pages`. It is
asked as our own admin port is to be asked: all are set up alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import aiohttp
import orjson

from extproc.config.settings import AdminSettings, ScrapeSettings
from extproc.endpoint import Endpoint
from extproc.telemetry.fetch import FailureKind, Page, ScrapeFailure, fetch, whole
from extproc.telemetry.loops import EndpointLoops, Identity

PATH = "/autoscale/v1/offered"
TIMEOUT_S = 2.0
_MOST_BYTES = 1024 * 1024
_WORDS = {FailureKind.REFUSED: "connection refused", FailureKind.TIMEOUT: f"no answer within {TIMEOUT_S:g} s"}


@dataclass(frozen=True, slots=True)
class PeerCounts:
    """What a process says."""

    process: str  # which one it is; another one after a restart
    requests: Mapping[str, float]  # since its start, by pool


class PeerSink(Protocol):
    """Told every result, on the event loop."""

    def on_counts(self, endpoint: Endpoint, counts: PeerCounts) -> None:
        """What it said."""

    def on_no_counts(self, endpoint: Endpoint, reason: str) -> None:
        """No answer, or none that can be used."""


class PeerPoller(EndpointLoops):
    task_name = "peer"

    def __init__(
        self,
        sink: PeerSink,
        every_s: float,
        clock: Callable[[], float],
        *,
        own: AdminSettings,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`own`: our own admin port. Raises ValueError: its `peer_ca_file` cannot be used."""
        try:
            super().__init__(
                ScrapeSettings(
                    timeout_s=TIMEOUT_S, scheme="http" if own.tls is None else "https", ca_file=own.peer_ca_file
                )
            )
        except ValueError as error:
            raise ValueError(str(error).replace("scrape.ca_file", "admin.peer_ca_file")) from error
        self._own = own
        self._sink = sink
        self._every_s = every_s
        self._clock = clock
        self._sleep = sleep

    def _identity(self, endpoint: Endpoint) -> Identity:
        return endpoint.address.text, (endpoint.address.text, None)

    async def _loop(self, session: aiohttp.ClientSession, identity: Identity) -> None:
        while True:
            found = await self._ask(session, self._endpoints[identity])
            endpoint = self._endpoints[identity]
            if isinstance(found, ScrapeFailure):
                self._sink.on_no_counts(endpoint, _WORDS.get(found.kind, found.detail))
            else:
                self._sink.on_counts(endpoint, found)
            await self._sleep(self._every_s)

    async def _ask(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> PeerCounts | ScrapeFailure:
        async def read(response: aiohttp.ClientResponse, at_s: float) -> PeerCounts | ScrapeFailure:
            counts = counts_of(await whole(response, _MOST_BYTES) or b"")
            if counts is None:
                return ScrapeFailure(FailureKind.BROKEN, f"{response.url}: no counts of a process of extproc", at_s)
            return counts

        own = self._own
        if self._tls is not None and own.tls is not None:
            try:
                # Anew each time: it is renewed in place. It is asked for where clients must have certificates.
                self._tls.load_cert_chain(own.tls.cert_file, own.tls.key_file, password=lambda: b"")
            except OSError as error:
                return ScrapeFailure(FailureKind.TLS, f"admin.tls: {error.strerror or error}", self._clock())
        page = Page.served(endpoint, PATH, "application/json", own.token_file, "admin.token_file")
        return await fetch(session, page, self._settings, self._clock, read)


def counts_of(body: bytes) -> PeerCounts | None:
    """None: it is not what a process of ours says."""
    try:
        told = orjson.loads(body)
        process, pools = told["id"], told["pools"]
        requests = {str(name): float(count) for name, count in pools.items()}
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError, AttributeError):
        return None
    if not isinstance(process, str) or not process or not all(isfinite(n) and n >= 0.0 for n in requests.values()):
        return None
    return PeerCounts(process, requests)
