"""What does each server say of itself just now, when a configuration for it is about to be written?

A server that does not answer is told, and no reason not to write: it may be started later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import aiohttp

from extproc.config.settings import ScrapeSettings
from extproc.config.starter.place import Place
from extproc.discovery.listed import of_family, system_resolver
from extproc.endpoint import Address, Endpoint
from extproc.pool.sample import LoadSample
from extproc.telemetry.fetch import FailureKind, Page, ScrapeFailure, fetch, new_session, whole
from extproc.telemetry.model_list import read_models
from extproc.telemetry.models import MAX_BYTES, PATH
from extproc.telemetry.scrape import scrape

TIMEOUT_S = 3.0
_RESOLVE_S = 3.0
_WORDS = {
    FailureKind.REFUSED: "nothing listens there",
    FailureKind.TIMEOUT: f"no answer within {TIMEOUT_S:g} s",
    FailureKind.UNREACHABLE: "cannot be reached from here",
    FailureKind.BROKEN: "something listens there that does not speak HTTP as vLLM does",
}


@dataclass(frozen=True, slots=True)
class Found:
    """What one server said."""

    server: Place
    models: tuple[str, ...] = ()  # sorted; empty: it did not tell
    load: LoadSample | None = None  # None: no metrics page of a vLLM
    answers: bool = False  # to one of both questions, whatever the answer
    why_no_models: str | None = None  # for a person
    why_no_load: str | None = None

    @property
    def is_vllm(self) -> bool:
        return bool(self.models) and self.load is not None

    @property
    def in_words(self) -> str:
        if not self.answers:
            return f"no answer: {self.why_no_load or self.why_no_models}"
        parts = [", ".join(self.models) if self.models else f"models unknown: {self.why_no_models}"]
        if self.load is None:
            parts.append(f"load unknown: {self.why_no_load}")
        else:
            parts.append(
                f"{_count(self.load.running)} running, {_count(self.load.waiting)} waiting,"
                f" KV cache {_percent(self.load.kv_usage_ratio)}"
            )
        return "; ".join(parts)


async def probe(servers: Sequence[Place], api_key_file: str | None) -> list[Found]:
    """Ask all at once; in their order. Never raises for what they do."""
    settings = ScrapeSettings(timeout_s=TIMEOUT_S)
    async with new_session(settings, None) as session:
        return list(await asyncio.gather(*(_probe(session, each, settings, api_key_file) for each in servers)))


async def _probe(
    session: aiohttp.ClientSession, server: Place, settings: ScrapeSettings, api_key_file: str | None
) -> Found:
    try:
        endpoint = await _endpoint(server)
    except OSError as error:  # TimeoutError is one
        why = "no answer from DNS" if isinstance(error, TimeoutError) else f"the name is not known ({error.strerror})"
        return Found(server, why_no_models=why, why_no_load=why)
    page = Page.served(endpoint, PATH, "application/json", api_key_file, "--api-key-file")
    models, load = await asyncio.gather(
        fetch(session, page, settings, time.monotonic, _read_models),
        scrape(session, endpoint, settings, time.monotonic),
    )
    found = Found(server, answers=not all(_silent(each) for each in (models, load)))
    if isinstance(models, tuple):
        found = replace(found, models=models)
    else:
        found = replace(found, why_no_models=_words(models, PATH))
    if isinstance(load, LoadSample) and load.usable:
        return replace(found, load=load)
    why = _words(load if isinstance(load, ScrapeFailure) else None, settings.path)
    return replace(found, why_no_load=why)


async def _endpoint(server: Place) -> Endpoint:
    """Raises OSError: the name is not known, or nobody says so in time."""
    if not server.is_name:
        return Endpoint(Address.of(server.host, server.port))
    async with asyncio.timeout(_RESOLVE_S):
        addresses = await system_resolver(server.host)
    usable = [*of_family(addresses, "v4_preferred")]
    if not usable:
        raise OSError("the name has no usable address")
    return Endpoint(Address.of(usable[0], server.port), hostname=server.host)


async def _read_models(response: aiohttp.ClientResponse, _at_s: float) -> tuple[str, ...] | None:
    models = read_models(await whole(response, MAX_BYTES) or b"")
    return None if models is None else tuple(sorted(models))


def _silent(answer: object) -> bool:
    """Nothing that speaks HTTP is there, as far as can be seen."""
    return isinstance(answer, ScrapeFailure) and answer.kind is not FailureKind.HTTP_STATUS


def _words(failure: ScrapeFailure | None, path: str) -> str:
    if failure is None:
        return f"{path} is not vLLM's"
    if failure.status in (401, 403):
        return f"{path} wants an API key (status {failure.status}): give --api-key-file"
    if failure.kind is FailureKind.HTTP_STATUS:
        return f"{path} answers {failure.status}"
    if failure.kind is FailureKind.TOKEN:
        return failure.detail
    return _WORDS.get(failure.kind, failure.detail)


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else f"{ratio:.0%}"
