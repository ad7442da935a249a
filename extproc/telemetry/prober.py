"""Does a server that is out, or new, say that it is well?

Asked is `GET /health` of the serving port. vLLM answers 200 while its engine lives and 503 when it is dead, and needs
no key for it. An answer below 500 is good: a server without that page is there all the same, and its metrics page says
the rest. A time-out or a lost way is no certain sign: it may be busy.

One loop for all: every `EVERY_S` whoever is to be asked is, each in a task of its own, which ends within `TIMEOUT_S`.
A server is asked again only when that task has ended, so one that hangs delays no other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import aiohttp

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Address, Endpoint
from extproc.telemetry.fetch import FailureKind, Page, ScrapeFailure, fetch, new_session, tls_context

EVERY_S = 0.5
TIMEOUT_S = 2.0  # vLLM answers from its API server alone, without waiting for the engine
PATH = "/health"


@dataclass(frozen=True, slots=True)
class Probe:
    """What one probe showed."""

    sent_at_s: float  # monotonic clock
    error: str | None = None  # for a person; None: it passed
    certain: bool = True  # the server said so, or nobody listens


class ProbeSink(Protocol):
    """Called on the event loop."""

    def to_probe(self) -> Iterable[Endpoint]:
        """Whom to ask now."""

    def on_probe(self, endpoint: Endpoint, probe: Probe) -> None:
        """What came of it."""


class Prober:
    """Raises ValueError for a `ca_file` that cannot be used."""

    def __init__(
        self,
        settings: ScrapeSettings,
        sink: ProbeSink,
        clock: Callable[[], float] = time.monotonic,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings.model_copy(update={"timeout_s": TIMEOUT_S})
        self._sink = sink
        self._clock = clock
        self._sleep = sleep
        self._tls = tls_context(settings)
        self._asked: set[Address] = set()  # probes under way

    async def run(self) -> None:
        """Probe until cancelled.

        Raises:
            ExceptionGroup: the sink raised.
        """
        async with new_session(self._settings, self._tls) as session, asyncio.TaskGroup() as group:
            while True:
                for endpoint in self._sink.to_probe():
                    if endpoint.address not in self._asked:
                        self._asked.add(endpoint.address)
                        group.create_task(self._ask(session, endpoint), name=f"probe {endpoint.address}")
                await self._sleep(EVERY_S)

    async def _ask(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> None:
        try:
            self._sink.on_probe(endpoint, await probe(session, endpoint, self._settings, self._clock))
        finally:
            self._asked.discard(endpoint.address)


async def probe(
    session: aiohttp.ClientSession, endpoint: Endpoint, settings: ScrapeSettings, clock: Callable[[], float]
) -> Probe:
    """Ask one server once, within `settings.timeout_s`."""
    sent_at_s = clock()
    page = Page.served(endpoint, PATH, "*/*")
    result = await fetch(session, page, settings, clock, _good)
    if not isinstance(result, ScrapeFailure):
        return Probe(sent_at_s)
    if result.status is not None:
        return Probe(sent_at_s, f"{PATH} answers {result.status}" if result.status >= 500 else None)
    if result.kind is FailureKind.REFUSED:
        return Probe(sent_at_s, f"{PATH}: connection refused")
    if result.kind in (FailureKind.BROKEN, FailureKind.TLS):
        if endpoint.metrics_port not in (None, endpoint.address.port):
            return Probe(sent_at_s)  # `scheme` is that of the metrics port: this one may speak another
        return Probe(sent_at_s, f"{PATH}: connection lost")
    return Probe(sent_at_s, f"{PATH}: no answer", certain=False)


async def _good(_response: aiohttp.ClientResponse, _at_s: float) -> bool:
    return True
