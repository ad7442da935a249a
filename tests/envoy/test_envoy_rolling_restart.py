"""Two processes of the service behind one Envoy: what do clients notice when they restart in turn, or one dies?"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support import envoy_config
from tests.support.envoy_stack import BODY, Json, Stack, Subprocess, eventually
from tests.support.envoy_upstream import Held, answer

SHAPES = pytest.mark.parametrize("shape", envoy_config.SHAPES)

# Envoy's health checks of the service are 0.5 s apart here, and it takes two to hold one for dead.
NOTICE_S, GRACE_S = 3.0, 2.0
WORKERS, STREAMS = 8, 8
MORE = 10  # requests of each worker that show how things are
PAUSE_S = 0.02  # between two requests of a worker
LONG = aiohttp.ClientTimeout(total=300)  # streams outlast all restarts
WHOLE = b"data: first\n\ndata: [DONE]\n\n"


class Pair:
    """A stack with two processes of the service, `services`, that Envoy balances over."""

    def __init__(self, stack: Stack, second: Subprocess) -> None:
        self.stack = stack
        self.services = (stack.process, second)

    async def until_both_are_used(self) -> None:
        for service in self.services:
            await service.until_answers()

            async def knows(service: Subprocess = service) -> bool:
                status = await service.status()
                return status["ready"] and all(e["state"] == "ready" for e in status["pools"]["vllm"]["endpoints"])

            await eventually(knows, "the service knows all its servers")
        await eventually(lambda: self.stack.healthy("extproc", hosts=2), "Envoy holds both for healthy")


async def start_pair(
    start: Any, shape: str, folder: Path, stack: contextlib.AsyncExitStack, *, response: str = "auto"
) -> Pair:
    grpc, admin = envoy_config.free_port(), envoy_config.free_port()

    def two(config: Json) -> None:
        block = envoy_config.settings_of(config)
        block |= {"shutdown_notice_s": NOTICE_S, "shutdown_grace_s": GRACE_S, "exchange": {"response": response}}
        (group,) = envoy_config.cluster(config, "extproc")["load_assignment"]["endpoints"]
        other = copy.deepcopy(group["lb_endpoints"][0])
        other["endpoint"]["address"]["socket_address"]["port_value"] = grpc
        group["lb_endpoints"].append(other)

    made: Stack = await start(shape=shape, service="process", change=two, await_used=False, await_ready=False)
    config = copy.deepcopy(made.config)
    block = envoy_config.settings_of(config)
    block["grpc"]["listen"], block["admin"]["listen"] = f"127.0.0.1:{grpc}", f"127.0.0.1:{admin}"
    second = Subprocess(envoy_config.write(config, folder / "second.yaml"), f"127.0.0.1:{admin}")
    stack.push_async_callback(second.stop)
    await second.start()
    pair = Pair(made, second)
    await pair.until_both_are_used()
    return pair


@pytest.fixture
async def ending() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack


class Load:
    """Short requests, one after the other from each of some workers, and streams that are held open meanwhile."""

    def __init__(self, stack: Stack) -> None:
        self.statuses: Counter[int] = Counter()
        self.held = Held(head_first=True)
        self._stack = stack
        self._ended = [0] * WORKERS  # requests of each
        self._tasks: list[asyncio.Task[None]] = []
        self._streams: list[asyncio.Task[bytes]] = []
        for upstream in stack.upstreams:
            upstream.respond = self._respond

    async def begin(self) -> None:
        self._tasks = [asyncio.create_task(self._work(worker)) for worker in range(WORKERS)]
        await self.open_streams(STREAMS)

    async def open_streams(self, count: int) -> None:
        self._streams += [asyncio.create_task(self._stream()) for _ in range(count)]
        await eventually(lambda: self.held.waiting == len(self._streams), "the streams run")

    async def some_more(self) -> None:
        """Wait until it has shown how things are now: all that is under way has ended, and more from each worker."""
        wanted = [ended + MORE for ended in self._ended]
        await eventually(
            lambda: all(ended >= least for ended, least in zip(self._ended, wanted, strict=True)),
            "requests of each worker are answered",
        )

    async def end(self) -> list[bytes]:
        """What the streams brought, each to its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.held.release()
        return await asyncio.gather(*self._streams)

    async def _respond(self, request: Any, body: bytes) -> Any:
        return await (self.held if request.path.startswith("/v1/chat") else answer)(request, body)

    async def _work(self, worker: int) -> None:
        while True:
            try:
                self.statuses[(await self._stack.request(path="/v1/embeddings")).status] += 1
            except aiohttp.ClientError:
                self.statuses[0] += 1
            self._ended[worker] += 1
            await asyncio.sleep(PAUSE_S)

    async def _stream(self) -> bytes:
        url = self._stack.url + "/v1/chat/completions"
        async with self._stack.client.post(url, data=BODY, timeout=LONG) as response:
            assert response.status == 200
            return await response.content.read()


async def answers(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status


async def restart(pair: Pair, service: Subprocess, admin: str) -> None:
    """SIGTERM, and what must then be seen in order; then another process in its place."""
    process = service.process
    assert process is not None

    async def picks_made() -> int:
        made: int = (await service.status())["requests"]["picks"].get("vllm", 0)
        return made

    await eventually(picks_made, "Envoy asks it")
    picks, told_s = await picks_made(), time.monotonic()
    process.send_signal(signal.SIGTERM)

    async def not_ready() -> bool:
        return await answers(f"http://{admin}/readyz") == 503

    await eventually(not_ready, "it says that it is not ready", timeout_s=NOTICE_S)
    assert await answers(f"http://{admin}/healthz") == 200  # whoever kills what is not alive must not kill it now

    async def picked_since() -> bool:
        return await picks_made() > picks

    await eventually(picked_since, "it still picks for who has not noticed yet", timeout_s=NOTICE_S)
    assert await asyncio.wait_for(process.wait(), NOTICE_S + GRACE_S + 5.0) == 0
    assert time.monotonic() - told_s >= NOTICE_S
    await service.start()
    await pair.until_both_are_used()


@SHAPES
@pytest.mark.newest_only
async def test_a_rolling_restart_is_not_noticed_by_clients(
    start: Any, shape: str, tmp_path: Path, ending: contextlib.AsyncExitStack
) -> None:
    """case f03: no request fails, no stream is cut, and open streams delay the end of a process by the grace at most.

    In C one of the two receives no access log and stays in its streams: it must leave them, not break them.
    """
    pair = await start_pair(start, shape, tmp_path, ending)
    load = Load(pair.stack)
    await load.begin()
    await load.some_more()
    for service in pair.services:
        await restart(pair, service, service._admin)
        await load.open_streams(2)
        await load.some_more()
    streams = await load.end()
    assert set(load.statuses) == {200}, load.statuses
    assert streams == [WHOLE] * (STREAMS + 4)
    for service in pair.services:
        assert (await service.status())["requests"]["picks"]["vllm"] > 0


@SHAPES
@pytest.mark.newest_only
async def test_one_of_two_killed_under_load(
    start: Any, shape: str, tmp_path: Path, ending: contextlib.AsyncExitStack
) -> None:
    """SIGKILL. No stream is cut. In A and B no request fails; in C those whose body was under way to it do: at most one
    a worker then, and three until outlier detection has taken it out. There neither may hold streams of responses, also
    the one that does not receive the access log."""
    pair = await start_pair(start, shape, tmp_path, ending, response="close")
    load = Load(pair.stack)
    await load.begin()
    await load.some_more()
    await pair.services[1].kill()
    await eventually(lambda: pair.stack.healthy("extproc", hosts=1), "Envoy noticed")
    await load.some_more()  # the failure that ejects it may have reached Envoy and not yet the client
    failed = load.statuses.total() - load.statuses[200]
    assert failed == 0 or (shape == "C" and failed == load.statuses[500] <= WORKERS + 3), load.statuses
    await load.some_more()
    assert load.statuses.total() - load.statuses[200] == failed
    await pair.services[1].start()
    await pair.until_both_are_used()
    await load.some_more()
    streams = await load.end()
    assert load.statuses.total() - load.statuses[200] == failed
    assert streams == [WHOLE] * STREAMS
