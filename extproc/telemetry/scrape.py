"""What does one server's metrics page say now, if it can be had?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Endpoint, format_host
from extproc.pool.sample import LoadSample
from extproc.telemetry.fetch import Page, ScrapeFailure, fetch
from extproc.telemetry.vllm_page import PageReader

# A page is read in steps of this size with a turn of the event loop between them. A step took under 1 ms on vLLM's own
# pages and up to 18 ms on the costliest bytes we could think of (docs/decisions/own-metrics-line-parser.md).
STEP_BYTES = 16 * 1024


async def scrape(
    session: aiohttp.ClientSession, endpoint: Endpoint, settings: ScrapeSettings, clock: Callable[[], float]
) -> LoadSample | ScrapeFailure:
    """One GET; see `fetch`."""

    async def read(response: aiohttp.ClientResponse, at_s: float) -> LoadSample:
        return await _read_page(response, at_s, settings.max_bytes)

    host = None
    if endpoint.hostname is not None:
        host = format_host(endpoint.hostname, endpoint.metrics_port or endpoint.address.port)
    page = Page(
        endpoint.metrics_host_port,
        settings.path,
        "text/plain;version=0.0.4",
        host,
        endpoint.hostname,
        settings.bearer_token_file,
        "scrape.bearer_token_file",
    )
    return await fetch(session, page, settings, clock, read)


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
