"""The questions to peers and for versions: what counts as an answer, and how often they are asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from extproc.config.settings import AdminSettings, ScrapeSettings
from extproc.endpoint import Endpoint
from extproc.telemetry.loops import EndpointLoops
from extproc.telemetry.peers import PeerCounts, PeerPoller, counts_of
from extproc.telemetry.versions import VersionPoller, version_of

from .conftest import Serve, http, sends, until


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"id": "a", "pools": {"p": 3, "q": 0.0}}', PeerCounts("a", {"p": 3.0, "q": 0.0})),
        (b'{"id": "a", "pools": {}, "more": 1}', PeerCounts("a", {})),
        *((body, None) for body in (b"", b"[]", b"null", b'"x"', b"{", b"\xff", b'{"id": "a"}', b'{"pools": {}}')),
        *((b'{"id": %s, "pools": {}}' % each, None) for each in (b"1", b'""', b"null")),
        *((b'{"id": "a", "pools": %s}' % each, None) for each in (b"[]", b'{"p": -1}', b'{"p": "x"}', b'{"p": null}')),
        (b'{"id": "a", "pools": {"p": "nan"}}', None),
    ],
)
def test_only_what_a_process_of_ours_says_is_believed(body: bytes, found: PeerCounts | None) -> None:
    assert counts_of(body) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"version": "0.11.0"}', "0.11.0"),
        *((body, None) for body in (b"", b"{}", b"[]", b'{"version": 3}', b'{"version": ""}', b'{"version": "a\\n"}')),
        (b'{"version": "%s"}' % (b"1" * 101), None),
    ],
)
def test_only_a_short_word_is_a_version(body: bytes, found: str | None) -> None:
    assert version_of(body) == found


class Heard:
    """A sink of both that keeps what it is told."""

    def __init__(self) -> None:
        self.counts: list[PeerCounts] = []
        self.reasons: list[str] = []
        self.versions: list[str | None] = []

    def on_counts(self, endpoint: Endpoint, counts: PeerCounts) -> None:
        self.counts.append(counts)

    def on_no_counts(self, endpoint: Endpoint, reason: str) -> None:
        self.reasons.append(reason)

    def on_version(self, endpoint: Endpoint, version: str | None) -> None:
        self.versions.append(version)


class Naps:
    """Sleeps no longer than a test can wait, and keeps how long it was asked for."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        await asyncio.sleep(0.001)


Start = Callable[[EndpointLoops, Endpoint], None]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[asyncio.Task[None]] = []

    def begin(poller: EndpointLoops, endpoint: Endpoint) -> None:
        poller.set_endpoints([endpoint])
        running.append(asyncio.create_task(poller.run()))

    yield begin
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_a_peer_is_asked_again_and_again_and_what_is_no_answer_is_told_with_its_reason(
    serve: Serve, start: Start
) -> None:
    server, heard, naps = await serve(sends(http(b'{"id": "a", "pools": {"p": 1}}'))), Heard(), Naps()
    start(PeerPoller(heard, 0.5, time.monotonic, own=AdminSettings(), sleep=naps), server.endpoint)
    await until(lambda: len(heard.counts) >= 3)
    assert heard.counts[0] == PeerCounts("a", {"p": 1.0})
    assert set(naps.asked) == {0.5}
    assert server.requests[0].startswith(b"GET /autoscale/v1/offered HTTP/1.1\r\n")
    server.answer = sends(http(b"<html>"))
    await until(lambda: any("no counts of a process of extproc" in each for each in heard.reasons))
    server.answer = sends(http(b"", status="404 Not Found"))
    await until(lambda: any("status 404" in each for each in heard.reasons))


async def test_a_server_is_asked_for_its_version_soon_while_it_is_not_there_and_rarely_once_it_has_answered(
    serve: Serve, start: Start
) -> None:
    server, heard, naps = await serve(sends(b"", then_close=True)), Heard(), Naps()
    start(VersionPoller(ScrapeSettings(), heard, time.monotonic, sleep=naps), server.endpoint)
    await until(lambda: len(naps.asked) >= 2)
    assert not heard.versions
    assert max(naps.asked) == 2.0
    server.answer = sends(http(b'{"version": "0.11.0"}'))
    await until(lambda: "0.11.0" in heard.versions)
    assert naps.asked[-1] == 60.0
    server.answer = sends(http(b"", status="404 Not Found"))
    await until(lambda: heard.versions[-1] is None)
