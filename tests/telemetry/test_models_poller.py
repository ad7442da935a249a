"""The questions for models: when they are asked, how, and what a failure is."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from extproc.config.settings import ModelsSettings, ScrapeSettings
from extproc.endpoint import Endpoint
from extproc.telemetry.fetch import FailureKind, ScrapeFailure
from extproc.telemetry.models import MAX_BYTES, ModelsPoller

from .conftest import Serve, hangs, http, sends, until

SCRAPE = ScrapeSettings(timeout_s=2.0)
NEVER_AGAIN = ModelsSettings(interval_s=1000)


def listing(*names: str) -> bytes:
    return b'{"object": "list", "data": [%s]}' % b", ".join(b'{"id": "%s"}' % name.encode() for name in names)


class Heard:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.models: list[frozenset[str]] = []
        self.failures: list[ScrapeFailure] = []

    def on_models(self, endpoint: Endpoint, models: frozenset[str], at_s: float) -> None:
        self.models.append(models)

    def on_no_models(self, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        self.failures.append(failure)


Start = Callable[[ModelsPoller], None]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Runs a poller; afterwards it must end by cancellation and leave no task behind."""
    before = asyncio.all_tasks()
    running: list[asyncio.Task[None]] = []
    yield lambda poller: running.append(asyncio.create_task(poller.run(), name="models poller"))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert not {task for task in asyncio.all_tasks() - before if task.get_name().startswith("models")}


def polling(start: Start, heard: Heard, *endpoints: Endpoint, settings: ModelsSettings = NEVER_AGAIN) -> ModelsPoller:
    poller = ModelsPoller(settings, SCRAPE, heard, rng=random.Random(1))
    poller.set_endpoints(endpoints)
    start(poller)
    return poller


async def test_a_new_endpoint_is_asked_at_once_on_its_serving_port(serve: Serve, start: Start) -> None:
    server, heard = await serve(sends(http(listing("a", "b")))), Heard()
    elsewhere = Endpoint(server.endpoint.address, metrics_port=9)
    polling(start, heard, elsewhere)
    await until(lambda: heard.models == [{"a", "b"}])
    assert server.requests[0].startswith(b"GET /v1/models HTTP/1.1\r\n")


async def test_it_is_asked_again_after_the_interval_and_news_are_told(serve: Serve, start: Start) -> None:
    server, heard = await serve(sends(http(listing("a")))), Heard()
    polling(start, heard, server.endpoint, settings=ModelsSettings(interval_s=0.02))
    await until(lambda: len(heard.models) >= 3)
    server.answer = sends(http(listing("a", "adapter")))
    await until(lambda: heard.models[-1] == {"a", "adapter"})
    assert server.connections == 1


async def test_a_server_that_starts_is_known_long_before_the_next_interval(serve: Serve, start: Start) -> None:
    server, heard = await serve(sends(http(b"", status="503 Starting"))), Heard()
    polling(start, heard, server.endpoint)
    await until(lambda: len(heard.failures) == 1)
    server.answer = sends(http(listing("a")))
    await until(lambda: heard.models == [{"a"}])


@pytest.mark.parametrize(
    ("page", "kind", "status"),
    [
        (http(b"{}", status="404 Not Found"), FailureKind.HTTP_STATUS, 404),
        (http(b"<html>"), FailureKind.BROKEN, 200),
        (http(b'{"data": []}'), FailureKind.BROKEN, 200),
        (http(b" " * (MAX_BYTES + 1)), FailureKind.BROKEN, 200),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", FailureKind.BROKEN, None),
        (b"nonsense\r\n\r\n", FailureKind.BROKEN, None),
    ],
)
async def test_whatever_a_server_answers_is_a_value(
    serve: Serve, start: Start, page: bytes, kind: FailureKind, status: int | None
) -> None:
    server, heard = await serve(sends(page, then_close=True)), Heard()
    polling(start, heard, server.endpoint)
    await until(lambda: len(heard.failures) >= 1)
    assert (heard.failures[0].kind, heard.failures[0].status) == (kind, status)
    assert not heard.models


async def test_a_server_that_wants_a_key_is_told_of_once_with_the_setting(
    serve: Serve, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    server, heard = await serve(sends(http(b"{}", status="401 Unauthorized"))), Heard()
    polling(start, heard, server.endpoint, settings=ModelsSettings(interval_s=0.02))
    await until(lambda: len(heard.failures) >= 4)
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 1
    assert "models.bearer_token_file" in messages[0]


@pytest.mark.parametrize(("own", "sent"), [(True, b"models-key"), (False, b"scrape-key")])
async def test_the_token_is_that_of_models_or_else_that_of_the_scrapes(
    serve: Serve, start: Start, tmp_path: Path, own: bool, sent: bytes
) -> None:
    (tmp_path / "models").write_text("models-key")
    (tmp_path / "scrape").write_text("scrape-key")
    server, heard = await serve(sends(http(listing("a")))), Heard()
    settings = ModelsSettings(interval_s=1000, bearer_token_file=str(tmp_path / "models") if own else None)
    scrape = SCRAPE.model_copy(update={"bearer_token_file": str(tmp_path / "scrape")})
    poller = ModelsPoller(settings, scrape, heard)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await until(lambda: len(heard.models) == 1)
    assert b"Authorization: Bearer " + sent in server.requests[0]


async def test_one_endpoint_can_be_asked_again_out_of_turn(serve: Serve, start: Start) -> None:
    servers, heard = [await serve(sends(http(listing("a")))) for _ in range(2)], Heard()
    poller = polling(start, heard, *(server.endpoint for server in servers))
    await until(lambda: len(heard.models) == 2)
    servers[1].answer = sends(http(listing("b")))
    poller.ask_again(servers[1].endpoint.address)
    await until(lambda: heard.models[2:] == [{"b"}])
    assert [len(server.requests) for server in servers] == [1, 2]


async def test_a_refresh_returns_with_what_all_serve_now(serve: Serve, start: Start) -> None:
    servers, heard = [await serve(sends(http(listing("a")))) for _ in range(3)], Heard()
    poller = polling(start, heard, *(server.endpoint for server in servers))
    await until(lambda: len(heard.models) == 3)
    for server in servers:
        server.answer = sends(http(listing("new")))
    await asyncio.gather(*(poller.refresh(5) for _ in range(20)))
    assert heard.models[3:] == [{"new"}] * 3, "twenty who wait at once cost one question each"


async def test_a_refresh_does_not_wait_for_a_server_that_hangs(serve: Serve, start: Start) -> None:
    hung, good, heard = await serve(hangs), await serve(sends(http(listing("a")))), Heard()
    poller = polling(start, heard, hung.endpoint, good.endpoint)
    await until(lambda: len(heard.models) == 1 and hung.at_once == 1)
    before_s = time.monotonic()
    await poller.refresh(0.1)
    assert time.monotonic() - before_s < 1.5
    await until(lambda: len(heard.models) == 2)


async def test_a_refresh_ends_when_its_endpoint_is_taken_out_and_when_nothing_runs(serve: Serve, start: Start) -> None:
    hung, heard = await serve(hangs), Heard()
    poller = ModelsPoller(NEVER_AGAIN, SCRAPE, heard)
    await poller.refresh(60)
    poller.set_endpoints([hung.endpoint])
    start(poller)
    await until(lambda: hung.at_once == 1)
    waiting = asyncio.create_task(poller.refresh(60))
    await asyncio.sleep(0)
    poller.set_endpoints([])
    await asyncio.wait_for(waiting, 5)
    assert not heard.failures
