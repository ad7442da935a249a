"""How is each server doing, asked again and again?

One loop an endpoint: scrape, hand the result to the sink, wait. The loops share nothing but the HTTP session, so a
server that hangs delays no other; a loop starts its next scrape only when the last one has ended. Between scrapes of a
healthy endpoint lies `interval_s` +-10 %, start to start, so that many endpoints (and many of us) spread out. After n
failures in a row it is `interval_s * 2**n`, at most `max_backoff_s`, times a random factor of 0.5 to 1.

Loops end by cancellation. What a server or the network does never ends one; any other exception, of the sink too, goes
up through `run` and takes its TaskGroup down.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import aiohttp

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Endpoint
from extproc.pool.sample import LoadSample
from extproc.telemetry.scrape import ScrapeFailure, new_session, scrape, tls_context

log = logging.getLogger(__name__)

_JITTER = 0.1  # of the interval, to either side
_MIN_PAUSE = 0.1  # of the interval, after a scrape that took longer than it
_FIRST_WITHIN = 0.2  # of the interval: a new endpoint is asked soon, and a whole fleet is not asked at one instant

_Target = tuple[str, str | None]  # where a scrape goes: metrics host:port, name for TLS and Host


class Sink(Protocol):
    """Told every result, on the event loop. Results of an endpoint come in order; none comes after it was taken out."""

    def on_sample(self, endpoint: Endpoint, sample: LoadSample) -> None:
        """A 200 page. It may tell nothing about load: see `sample.usable`."""

    def on_failure(self, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        """No page."""


class Poller:
    """Raises ValueError for a `ca_file` that cannot be used."""

    def __init__(
        self,
        settings: ScrapeSettings,
        sink: Sink,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._clock = clock
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._tls = tls_context(settings)
        self._endpoints: dict[tuple[str, _Target], Endpoint] = {}
        self._loops: dict[tuple[str, _Target], asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._running = False

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """From now on poll exactly these. May be called before `run`, and again at any time, from the event loop.

        A loop goes on undisturbed while its endpoint keeps address and metrics target; other changes (weight, drained)
        reach the sink with the next result.
        """
        self._endpoints = {_identity(endpoint): endpoint for endpoint in endpoints}
        for identity in self._loops.keys() - self._endpoints.keys():
            self._loops[identity].cancel()  # at once, not in run's next turn: the sink hears no more of it
        self._changed.set()

    async def run(self) -> None:
        """Poll until cancelled. Run it once, as a task of the application's TaskGroup.

        Raises:
            ExceptionGroup: a loop met an exception that no server and no network causes.
        """
        if self._running:
            raise RuntimeError("this poller runs already")
        self._running = True
        try:
            async with new_session(self._settings, self._tls) as session, asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    self._start_and_forget(group, session)
                    await self._changed.wait()
        finally:
            self._loops.clear()
            self._running = False

    def _start_and_forget(self, group: asyncio.TaskGroup, session: aiohttp.ClientSession) -> None:
        for identity in self._loops.keys() - self._endpoints.keys():
            del self._loops[identity]
        for identity in self._endpoints:
            loop = self._loops.get(identity)
            if loop is None or loop.cancelling():  # taken out and put in again before we woke
                name = f"scrape {identity[0]}"
                self._loops[identity] = group.create_task(self._poll(session, identity), name=name)

    async def _poll(self, session: aiohttp.ClientSession, identity: tuple[str, _Target]) -> None:
        failures, state = 0, ""
        await self._sleep(self._rng.uniform(0, _FIRST_WITHIN * self._settings.interval_s))
        while True:
            started_s = self._clock()
            result = await scrape(session, self._endpoints[identity], self._settings, self._clock)
            endpoint = self._endpoints[identity]
            if isinstance(result, ScrapeFailure):
                failures += 1
                self._sink.on_failure(endpoint, result)
            else:
                failures = 0
                self._sink.on_sample(endpoint, result)
            state = _log_change(endpoint, state, result)
            await self._sleep(self._pause_s(failures, self._clock() - started_s))

    def _pause_s(self, failures: int, took_s: float) -> float:
        interval_s = self._settings.interval_s
        if failures:
            longest_s = max(self._settings.max_backoff_s, interval_s)
            return min(longest_s, interval_s * 2.0 ** min(failures, 30)) * self._rng.uniform(0.5, 1)
        return max(_MIN_PAUSE * interval_s, interval_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER) - took_s)


def _identity(endpoint: Endpoint) -> tuple[str, _Target]:
    return endpoint.address.text, (endpoint.metrics_host_port, endpoint.hostname)


def _log_change(endpoint: Endpoint, before: str, result: LoadSample | ScrapeFailure) -> str:
    """One line when what we get from an endpoint turns into something else; returns what it is now."""
    if isinstance(result, ScrapeFailure):
        now, level, text = str(result.kind), logging.WARNING, f"no metrics ({result.kind}): {result.detail}"
    elif not result.usable:
        cut = "; the page is longer than scrape.max_bytes" if result.truncated else ""
        now, level = "unusable", logging.WARNING
        text = f"the metrics page tells nothing about load: no usable vllm series{cut}"
    elif result.kv_usage_ratio is None:
        now, level, text = "no kv", logging.WARNING, "the metrics page has no usable KV cache usage"
    else:
        now, level, text = "ok", logging.INFO, "metrics are read"
    if now != before:
        log.log(level, "endpoint %s: %s", endpoint.address, text)
    return now
