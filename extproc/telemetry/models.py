"""Which models does each server serve, asked again and again?

One loop an endpoint (see `loops`), on its serving port. A new endpoint is asked at once; then lies `models.interval_s`
+-10 % between two questions, after a failure less at first (`_RETRY_S`, doubling): a server that starts should be known
soon. `ask_again` and `refresh` ask out of turn, when there is reason to think that an answer has changed.

A failure is told like an answer: what a server said before is believed for a while (see `Pool.models_failed`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from typing import Protocol

import aiohttp

from extproc.config.settings import ModelsSettings, ScrapeSettings
from extproc.endpoint import Address, Endpoint
from extproc.telemetry.fetch import FailureKind, Page, ScrapeFailure, fetch, whole
from extproc.telemetry.loops import EndpointLoops, Identity
from extproc.telemetry.model_list import read_models

log = logging.getLogger(__name__)

PATH = "/v1/models"
MAX_BYTES = 2 * 1024 * 1024  # vLLM writes about 500 bytes for each name
_JITTER = 0.1  # of the interval, to either side
_RETRY_S = 0.5  # after the first failure
_LEAST_S = 0.1  # between two questions, whoever has reason to ask
_REFUSALS = (401, 403)


class ModelsSink(Protocol):
    """Told every result, on the event loop."""

    def on_models(self, endpoint: Endpoint, models: frozenset[str], at_s: float) -> None:
        """The server's own list; `at_s`: when it was asked, monotonic."""

    def on_no_models(self, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        """No answer, or none that can be used."""


class ModelsPoller(EndpointLoops):
    """Scheme, CA and time-out are those of the scrapes; so is the token, unless `models` names one.

    Raises ValueError for a `ca_file` that cannot be used.
    """

    task_name = "models"

    def __init__(
        self,
        settings: ModelsSettings,
        scrape: ScrapeSettings,
        sink: ModelsSink,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(scrape)
        self._interval_s = settings.interval_s
        self._sink = sink
        self._clock = clock
        self._rng = rng or random.Random()
        own = settings.bearer_token_file
        self._token = (own, "models.bearer_token_file")
        if own is None:
            self._token = (scrape.bearer_token_file, "scrape.bearer_token_file")
        self._wake: dict[Identity, asyncio.Event] = {}
        self._waiting: dict[Identity, list[asyncio.Future[None]]] = {}

    def ask_again(self, address: Address) -> None:
        """Ask this endpoint soon: it may serve something else by now."""
        for identity, wake in self._wake.items():
            if identity[0] == address.text:
                wake.set()

    async def refresh(self, within_s: float) -> None:
        """Ask all; returns when each has answered or failed, or after `within_s`."""
        answers = []
        for identity, wake in self._wake.items():
            answers.append(asyncio.get_running_loop().create_future())
            self._waiting.setdefault(identity, []).append(answers[-1])
            wake.set()
        if answers:
            await asyncio.wait(answers, timeout=within_s)

    async def _loop(self, session: aiohttp.ClientSession, identity: Identity) -> None:
        wake = self._wake[identity] = asyncio.Event()
        waiting: list[asyncio.Future[None]] = []
        failures, state = 0, ""
        try:
            while True:
                wake.clear()
                waiting = self._waiting.pop(identity, [])
                endpoint, at_s = self._endpoints[identity], self._clock()
                result = await self._ask(session, endpoint)
                endpoint = self._endpoints[identity]
                if isinstance(result, ScrapeFailure):
                    failures += 1
                    self._sink.on_no_models(endpoint, result)
                else:
                    failures = 0
                    self._sink.on_models(endpoint, result, at_s)
                state = _log_change(endpoint, state, result)
                _answer(waiting)
                await self._nap(wake, failures)
        finally:
            _answer([*waiting, *self._waiting.pop(identity, [])])
            if self._wake.get(identity) is wake:  # else another loop has begun for it
                del self._wake[identity]

    async def _ask(self, session: aiohttp.ClientSession, endpoint: Endpoint) -> frozenset[str] | ScrapeFailure:
        async def read(response: aiohttp.ClientResponse, at_s: float) -> frozenset[str] | ScrapeFailure:
            page = await whole(response, MAX_BYTES)
            models = None if page is None else read_models(page)
            if models is None:
                return ScrapeFailure(FailureKind.BROKEN, f"{response.url}: no list of models", at_s, status=200)
            return models

        page = Page.served(endpoint, PATH, "application/json", *self._token)
        return await fetch(session, page, self._settings, self._clock, read)

    async def _nap(self, wake: asyncio.Event, failures: int) -> None:
        pause_s = self._interval_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        if failures:
            pause_s = min(pause_s, _RETRY_S * 2.0 ** min(failures - 1, 30) * self._rng.uniform(0.5, 1))
        least_s = min(pause_s, _LEAST_S)
        await asyncio.sleep(least_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s - least_s):
                await wake.wait()


def _answer(waiting: list[asyncio.Future[None]]) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(None)


def _log_change(endpoint: Endpoint, before: str, result: frozenset[str] | ScrapeFailure) -> str:
    """One line when what we get turns into something else; that nobody answers at all, the scrapes tell already."""
    if not isinstance(result, ScrapeFailure):
        now, level, text = "ok", logging.INFO, "its models are known"
    elif result.status in _REFUSALS:
        now, level = "refused", logging.WARNING
        text = f"its models are not known ({result.detail}); if it wants a key, set models.bearer_token_file"
    elif result.kind in (FailureKind.HTTP_STATUS, FailureKind.BROKEN, FailureKind.TOKEN):
        now, level, text = str(result.kind), logging.INFO, f"its models are not known: {result.detail}"
    else:
        return before
    if now != before:
        log.log(level, "endpoint %s: %s", endpoint.address, text)
    return now
