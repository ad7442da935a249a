"""What does a server's /health show, and who is asked when?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Address, Endpoint
from extproc.telemetry.fetch import new_session
from extproc.telemetry.prober import EVERY_S, Probe, Prober, probe

from .conftest import ByteServer, Serve, hangs, http, sends, until

QUICK = ScrapeSettings(interval_s=0.02, timeout_s=0.2, stale_after_s=1.0)


async def ask(endpoint: Endpoint) -> Probe:
    async with new_session(QUICK, None) as session:
        return await probe(session, endpoint, QUICK, lambda: 7.0)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("200 OK", None),
        ("204 No Content", None),
        ("404 Not Found", None),
        ("401 Unauthorized", None),
        ("302 Found", None),
        ("503 Service Unavailable", "/health answers 503"),
        ("500 Internal Server Error", "/health answers 500"),
    ],
)
async def test_an_answer_below_500_is_good(serve: Serve, status: str, error: str | None) -> None:
    """vLLM answers 503 when its engine is dead; other servers may have no such page"""
    server = await serve(sends(http(b"", status=status)))
    assert await ask(server.endpoint) == Probe(7.0, error)
    assert server.requests[0].startswith(b"GET /health HTTP/1.1\r\n")


async def test_the_serving_port_is_asked_not_that_of_the_metrics(serve: Serve) -> None:
    server = await serve(sends(http(b"")))
    assert await ask(replace(server.endpoint, metrics_port=1)) == Probe(7.0)


async def test_the_name_goes_along(serve: Serve) -> None:
    server = await serve(sends(http(b"")))
    await ask(replace(server.endpoint, hostname="vllm.example"))
    assert f"Host: vllm.example:{server.port}\r\n".encode() in server.requests[0]


async def test_nobody_listens_and_a_lost_connection_are_certain_and_a_time_out_is_not(serve: Serve) -> None:
    """cases e15, e16"""
    hung, cut = await serve(hangs), await serve(sends(b"", then_close=True))
    nobody = Endpoint(Address.of("127.0.0.1", 1))
    assert await ask(nobody) == Probe(7.0, "/health: connection refused")
    assert await ask(cut.endpoint) == Probe(7.0, "/health: connection lost")
    assert await ask(hung.endpoint) == Probe(7.0, "/health: no answer", certain=False)


async def test_a_lost_connection_may_be_another_scheme_where_the_metrics_have_a_port_of_their_own(
    serve: Serve,
) -> None:
    cut = await serve(sends(b"", then_close=True))
    assert await ask(replace(cut.endpoint, metrics_port=1)) == Probe(7.0)


class Sink:
    def __init__(self, *servers: ByteServer) -> None:
        self.due = [server.endpoint for server in servers]
        self.told: list[tuple[Endpoint, Probe]] = []

    def to_probe(self) -> list[Endpoint]:
        return self.due

    def on_probe(self, endpoint: Endpoint, probe: Probe) -> None:
        self.told.append((endpoint, probe))


@pytest.fixture
async def run() -> AsyncIterator[Callable[[Sink], asyncio.Task[None]]]:
    """Runs a prober that does not wait long between its rounds."""
    tasks: list[asyncio.Task[None]] = []

    async def nap(asked_s: float) -> None:
        assert asked_s == EVERY_S
        await asyncio.sleep(0.005)

    def start(sink: Sink) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(Prober(QUICK, sink, sleep=nap).run()))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_only_who_is_due_is_asked_and_one_that_hangs_delays_no_other(
    serve: Serve, run: Callable[[Sink], asyncio.Task[None]]
) -> None:
    """case e16"""
    hung, good, idle = await serve(hangs), await serve(sends(http(b""))), await serve(sends(http(b"")))
    sink = Sink(hung, good)
    run(sink)
    await until(lambda: len(sink.told) >= 5)
    assert {endpoint for endpoint, _ in sink.told} == {good.endpoint}
    assert (hung.most_at_once, len(hung.requests), idle.requests) == (1, 1, [])
    sink.due = []
    count = len(good.requests)
    await asyncio.sleep(0.05)
    assert len(good.requests) <= count + 1


async def test_a_bug_in_the_sink_ends_it(serve: Serve, run: Callable[[Sink], asyncio.Task[None]]) -> None:
    class Broken(Sink):
        def on_probe(self, endpoint: Endpoint, probe: Probe) -> None:
            raise RuntimeError("a bug")

    with pytest.raises(ExceptionGroup):
        await run(Broken(await serve(sends(http(b"")))))
