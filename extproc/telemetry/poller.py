"""How is each server doing, asked again and again?

One loop an endpoint (see `loops`): scrape, hand the result to the sink, wait. A loop starts its next scrape only when
the last one has ended. Between scrapes of a healthy endpoint lies `interval_s` +-10 %, start to start, so that many
endpoints (and many of us) spread out. After n failures in a row it is `interval_s * 2**n`, at most `max_backoff_s`,
times a random factor of 0.5 to 1.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import aiohttp

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Endpoint
from extproc.pool.sample import LoadSample
from extproc.telemetry.fetch import ScrapeFailure
from extproc.telemetry.loops import EndpointLoops, Identity
from extproc.telemetry.scrape import scrape

log = logging.getLogger(__name__)

_JITTER = 0.1  # of the interval, to either side
_MIN_PAUSE = 0.1  # of the interval, after a scrape that took longer than it
_FIRST_WITHIN = 0.2  # of the interval: a new endpoint is asked soon, and a whole fleet is not asked at one instant


class Sink(Protocol):
    """Told every result, on the event loop. Results of an endpoint come in order; none comes after it was taken out."""

    def on_sample(self, endpoint: Endpoint, sample: LoadSample) -> None:
        """A 200 page. It may tell nothing about load: see `sample.usable`."""

    def on_failure(self, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        """No page."""


class Poller(EndpointLoops):
    """Raises ValueError for a `ca_file` that cannot be used."""

    task_name = "scrape"

    def __init__(
        self,
        settings: ScrapeSettings,
        sink: Sink,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(settings)
        self._sink = sink
        self._clock = clock
        self._rng = rng or random.Random()
        self._sleep = sleep

    def _identity(self, endpoint: Endpoint) -> Identity:
        return endpoint.address.text, (endpoint.metrics_host_port, endpoint.hostname)

    async def _loop(self, session: aiohttp.ClientSession, identity: Identity) -> None:
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
