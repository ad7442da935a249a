"""The loops: when they scrape, whom they tell, and that they end."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Address, Endpoint
from extproc.pool.sample import LoadSample
from extproc.telemetry.fetch import FailureKind, ScrapeFailure
from extproc.telemetry.poller import Poller

from .conftest import PAGE, TLS, Answer, Serve, hangs, http, sends, until

QUICK = ScrapeSettings(interval_s=0.02, timeout_s=2.0, stale_after_s=1.0, max_backoff_s=0.05)


class Heard:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.results: list[tuple[Endpoint, LoadSample | ScrapeFailure]] = []

    def on_sample(self, endpoint: Endpoint, sample: LoadSample) -> None:
        self.results.append((endpoint, sample))

    def on_failure(self, endpoint: Endpoint, failure: ScrapeFailure) -> None:
        self.results.append((endpoint, failure))

    def of(self, endpoint: Endpoint) -> list[LoadSample | ScrapeFailure]:
        return [result for known, result in self.results if known.address == endpoint.address]

    def samples_of(self, endpoint: Endpoint) -> int:
        return sum(isinstance(result, LoadSample) for result in self.of(endpoint))


class VirtualTime:
    """A clock that only sleeping moves; a sleeper past `until_s` waits for ever, so that a loop comes to rest."""

    def __init__(self, until_s: float) -> None:
        self.now_s = 0.0
        self.until_s = until_s
        self.naps: list[float] = []
        self.over = asyncio.Event()

    def clock(self) -> float:
        return self.now_s

    async def sleep(self, nap_s: float) -> None:
        self.naps.append(nap_s)
        if self.now_s + nap_s > self.until_s:
            self.over.set()
            await asyncio.Event().wait()
        self.now_s += nap_s
        await asyncio.sleep(0)


Start = Callable[[Poller], asyncio.Task[None]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Runs a poller; afterwards it must end by cancellation and leave no task behind."""
    before = asyncio.all_tasks()
    running: list[asyncio.Task[None]] = []

    def run(poller: Poller) -> asyncio.Task[None]:
        running.append(asyncio.create_task(poller.run(), name="poller"))
        return running[-1]

    yield run
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    left = {task for task in asyncio.all_tasks() - before if "scrape" in task.get_name() or task in running}
    assert not left


async def test_every_endpoint_is_asked_again_and_again_on_a_kept_connection(serve: Serve, start: Start) -> None:
    servers = [await serve(sends(http(PAGE))) for _ in range(3)]
    heard = Heard()
    poller = Poller(QUICK, heard)
    poller.set_endpoints([server.endpoint for server in servers])
    start(poller)
    await until(lambda: all(heard.samples_of(server.endpoint) >= 5 for server in servers))
    assert [server.connections for server in servers] == [1, 1, 1]


def slow(delay_s: float) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(delay_s)
        writer.write(http(PAGE))
        await writer.drain()

    return answer


async def test_a_hanging_endpoint_delays_no_other(serve: Serve, start: Start) -> None:
    """case d09, case e16"""
    hung, good = await serve(hangs), [await serve(sends(http(PAGE))) for _ in range(7)]
    heard = Heard()
    poller = Poller(QUICK.model_copy(update={"timeout_s": 60.0}), heard)
    poller.set_endpoints([hung.endpoint, *(server.endpoint for server in good)])
    start(poller)
    await until(lambda: all(heard.samples_of(server.endpoint) >= 5 for server in good))
    assert heard.of(hung.endpoint) == []
    assert hung.at_once == 1


async def test_scrapes_of_a_slow_endpoint_do_not_overlap(serve: Serve, start: Start) -> None:
    """case d09"""
    server, heard = await serve(slow(0.1)), Heard()  # five intervals
    poller = Poller(QUICK, heard)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await until(lambda: heard.samples_of(server.endpoint) >= 4)
    assert server.most_at_once == 1


async def test_an_endpoint_that_comes_back_is_heard_again(serve: Serve, start: Start) -> None:
    """case e16"""
    server, heard = await serve(sends(http(b"", status="503 Busy"))), Heard()
    poller = Poller(QUICK, heard)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await until(lambda: len(heard.results) >= 2)
    server.answer = sends(http(PAGE))
    await until(lambda: heard.samples_of(server.endpoint) >= 1)


async def test_scrapes_are_an_interval_apart_with_jitter(serve: Serve, start: Start) -> None:
    server, heard, time = await serve(sends(http(PAGE))), Heard(), VirtualTime(until_s=100)
    poller = Poller(ScrapeSettings(interval_s=1.0), heard, time.clock, random.Random(1), sleep=time.sleep)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await asyncio.wait_for(time.over.wait(), 10)
    assert 0 <= time.naps[0] <= 0.2
    assert all(0.9 <= nap <= 1.1 for nap in time.naps[1:])
    assert len(set(time.naps)) == len(time.naps)
    taken = [result.taken_at_s for _, result in heard.results if isinstance(result, LoadSample)]
    assert len(taken) == len(time.naps) - 1
    assert taken == sorted(taken)


async def test_a_failing_endpoint_is_asked_ever_more_rarely_up_to_the_limit(start: Start) -> None:
    heard, time = Heard(), VirtualTime(until_s=200)
    settings = ScrapeSettings(interval_s=1.0, max_backoff_s=8.0, bearer_token_file="/nonexistent")
    poller = Poller(settings, heard, time.clock, random.Random(1), sleep=time.sleep)
    poller.set_endpoints([Endpoint(Address.of("127.0.0.1", 9))])
    start(poller)
    await asyncio.wait_for(time.over.wait(), 10)
    for nap, longest in zip(time.naps[1:], [2, 4, 8, *[8] * 1000], strict=False):
        assert longest / 2 <= nap <= longest
    assert all(isinstance(result, ScrapeFailure) and result.kind is FailureKind.TOKEN for _, result in heard.results)


async def test_a_success_ends_the_backoff(serve: Serve, start: Start) -> None:
    server, heard, time = await serve(sends(http(b"", status="500 Oops"))), Heard(), VirtualTime(until_s=60)

    async def answer(writer: asyncio.StreamWriter) -> None:
        failing = len(server.requests) <= 4
        await sends(http(b"", status="500 Oops") if failing else http(PAGE))(writer)

    server.answer = answer
    settings = ScrapeSettings(interval_s=1.0, max_backoff_s=8.0)
    poller = Poller(settings, heard, time.clock, random.Random(1), sleep=time.sleep)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await asyncio.wait_for(time.over.wait(), 10)
    assert time.naps[4] >= 4
    assert all(nap <= 1.1 for nap in time.naps[5:])


async def test_endpoints_come_and_go_while_it_runs(serve: Serve, start: Start) -> None:
    """case b06"""
    first, second = await serve(sends(http(PAGE))), await serve(sends(http(PAGE)))
    heard = Heard()
    poller = Poller(QUICK, heard)
    start(poller)
    poller.set_endpoints([first.endpoint])
    await until(lambda: heard.samples_of(first.endpoint) >= 1)
    poller.set_endpoints([second.endpoint])
    told = len(heard.of(first.endpoint))
    await until(lambda: heard.samples_of(second.endpoint) >= 3)
    assert len(heard.of(first.endpoint)) == told
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert f"scrape {second.endpoint.address}" in names
    assert f"scrape {first.endpoint.address}" not in names


async def test_an_endpoint_taken_out_during_its_scrape_is_never_heard_of_again(serve: Serve, start: Start) -> None:
    """case f02"""
    server, heard = await serve(hangs), Heard()
    poller = Poller(QUICK.model_copy(update={"timeout_s": 60.0}), heard)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await until(lambda: server.at_once == 1)
    poller.set_endpoints([])
    await until(lambda: server.at_once == 0)
    assert heard.results == []


async def test_an_endpoint_taken_out_and_put_in_again_at_once_is_polled(serve: Serve, start: Start) -> None:
    server, heard = await serve(sends(http(PAGE))), Heard()
    poller = Poller(QUICK, heard)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await until(lambda: heard.samples_of(server.endpoint) >= 1)
    poller.set_endpoints([])
    poller.set_endpoints([server.endpoint])
    told = heard.samples_of(server.endpoint)
    await until(lambda: heard.samples_of(server.endpoint) >= told + 3)
    assert server.most_at_once == 1


async def test_the_same_set_again_disturbs_no_loop_and_news_of_an_endpoint_reach_the_sink(
    serve: Serve, start: Start
) -> None:
    server, heard = await serve(sends(http(PAGE))), Heard()
    poller = Poller(QUICK, heard)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await until(lambda: heard.samples_of(server.endpoint) >= 1)
    name = f"scrape {server.endpoint.address}"
    before = {task for task in asyncio.all_tasks() if task.get_name() == name}
    drained = replace(server.endpoint, drained=True)
    poller.set_endpoints([drained])
    await until(lambda: heard.results[-1][0] == drained)
    assert {task for task in asyncio.all_tasks() if task.get_name() == name} == before


async def test_another_metrics_port_is_asked_from_now_on(serve: Serve, start: Start) -> None:
    old, new = await serve(sends(http(PAGE))), await serve(sends(http(PAGE)))
    heard = Heard()
    poller = Poller(QUICK, heard)
    poller.set_endpoints([old.endpoint])
    start(poller)
    await until(lambda: len(old.requests) >= 1)
    poller.set_endpoints([replace(old.endpoint, metrics_port=new.port)])
    await until(lambda: len(new.requests) >= 2)


async def test_a_cancelled_poller_closes_its_connections(serve: Serve, start: Start) -> None:
    idle, busy = await serve(sends(http(PAGE))), await serve(hangs)
    heard = Heard()
    poller = Poller(QUICK, heard)
    poller.set_endpoints([idle.endpoint, busy.endpoint])
    task = start(poller)
    await until(lambda: heard.samples_of(idle.endpoint) >= 1 and busy.at_once == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not idle._tasks and not busy._tasks)


async def test_a_fault_of_our_own_takes_the_task_group_down(serve: Serve) -> None:
    class Faulty(Heard):
        def on_sample(self, endpoint: Endpoint, sample: LoadSample) -> None:
            raise KeyError("a bug")

    server = await serve(sends(http(PAGE)))
    poller = Poller(QUICK, Faulty())
    poller.set_endpoints([server.endpoint])
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(poller.run(), 5)
    assert caught.group_contains(KeyError)


async def test_a_page_without_load_is_a_sample_and_not_a_failure(serve: Serve, start: Start) -> None:
    """case d07"""
    server, heard = await serve(sends(http(b"process_cpu_seconds_total 1\n"))), Heard()
    poller = Poller(QUICK, heard)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await until(lambda: heard.samples_of(server.endpoint) >= 1)
    result = heard.of(server.endpoint)[0]
    assert isinstance(result, LoadSample)
    assert not result.usable


async def test_the_log_tells_changes_only(serve: Serve, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """case d07, case d10"""
    caplog.set_level(logging.INFO, "extproc.telemetry.poller")
    server, heard = await serve(sends(http(PAGE))), Heard()
    poller = Poller(QUICK, heard)
    poller.set_endpoints([server.endpoint])
    start(poller)

    async def three_more() -> None:
        told = len(heard.results)
        await until(lambda: len(heard.results) >= told + 3)

    await three_more()
    server.answer = sends(http(b"", status="404 Not Found"))
    await three_more()
    server.answer = sends(http(b"process_cpu_seconds_total 1\n"))
    await three_more()
    server.answer = sends(http(b"vllm:num_requests_running 1\n"))
    await three_more()
    messages = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert [message[:36] for message in messages] == [
        "metrics are read",
        "no metrics (http_status): http://127",
        "the metrics page tells nothing about",
        "the metrics page has no usable KV ca",  # case d01
    ]


@pytest.mark.parametrize("options", [{"ca_file": "/nonexistent.pem", "scheme": "https"}])
def test_a_ca_file_that_cannot_be_used_is_told_before_anything_runs(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"scrape\.ca_file"):
        Poller(ScrapeSettings(**options), Heard())


async def test_tls_endpoints_are_polled(serve: Serve, start: Start) -> None:
    server, heard = await serve(sends(http(PAGE)), tls=True), Heard()
    settings = QUICK.model_copy(update={"scheme": "https", "ca_file": str(TLS / "ca.pem")})
    poller = Poller(settings, heard)
    poller.set_endpoints([server.endpoint])
    start(poller)
    await until(lambda: heard.samples_of(server.endpoint) >= 2)
    assert server.connections == 1


async def test_a_poller_runs_once_at_a_time(start: Start) -> None:
    poller = Poller(QUICK, Heard())
    start(poller)
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="runs already"):
        await poller.run()
