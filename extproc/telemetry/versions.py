"""Which version of vLLM does each server run, asked now and then?

One loop an endpoint (see `loops`), on its serving port. A server that is not up yet is asked again soon; one that does
not tell is left alone for as long as one that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import aiohttp
import orjson

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Endpoint
from extproc.telemetry.fetch import FailureKind, Page, ScrapeFailure, fetch, whole
from extproc.telemetry.loops import EndpointLoops, Identity

PATH = "/version"
EVERY_S = 60.0
RETRY_S = 2.0
_MOST_BYTES = 4096
_MOST_CHARS = 100


class VersionSink(Protocol):
    """Called on the event loop."""

    def on_version(self, endpoint: Endpoint, version: str | None) -> None:
        """None: it answered, and did not tell."""


class VersionPoller(EndpointLoops):
    """Scheme, CA, time-out and token are those of the scrapes. Raises ValueError for a `ca_file` that cannot be
    used."""

    task_name = "version"

    def __init__(
        self,
        scrape: ScrapeSettings,
        sink: VersionSink,
        clock: Callable[[], float],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(scrape)
        self._sink = sink
        self._clock = clock
        self._sleep = sleep

    async def _loop(self, session: aiohttp.ClientSession, identity: Identity) -> None:
        while True:
            endpoint = self._endpoints[identity]
            found = await self._ask(session, endpoint)
            answered = not isinstance(found, ScrapeFailure) or found.kind is FailureKind.HTTP_STATUS
            if answered:
                self._sink.on_version(endpoint, None if isinstance(found, ScrapeFailure) else found)
            await self._sleep(EVERY_S if answered else RETRY_S)

    async def _ask(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> str | ScrapeFailure | None:
        async def read(response: aiohttp.ClientResponse, _at_s: float) -> str | None:
            return version_of(await whole(response, _MOST_BYTES) or b"")

        token = self._settings.bearer_token_file
        page = Page.served(endpoint, PATH, "application/json", token, "scrape.bearer_token_file")
        return await fetch(session, page, self._settings, self._clock, read)


def version_of(body: bytes) -> str | None:
    """None: it does not tell."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    version = told.get("version") if isinstance(told, dict) else None
    return version if isinstance(version, str) and version.isprintable() and 0 < len(version) <= _MOST_CHARS else None
