"""Every fault switch does what it says, and healing brings the server back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from extproc.sim.faults import Faults
from extproc.sim.server import SimServer
from tests.sim.conftest import BRISK, eventually

ASK = {"prompt": "x" * 100, "max_tokens": 3}


@pytest.fixture
async def server() -> AsyncIterator[SimServer]:
    async with SimServer("a", BRISK) as running:
        yield running


async def status_of(http: aiohttp.ClientSession, server: SimServer, **more: object) -> int:
    async with http.post(f"{server.url}/v1/completions", json={**ASK, **more}) as response:
        await response.read()
        return response.status


async def stays_open(http: aiohttp.ClientSession, url: str, body: object = None) -> bool:
    """Whether nothing is answered for a while."""
    try:
        async with http.request("GET" if body is None else "POST", url, json=body, timeout=aiohttp.ClientTimeout(0.3)):
            return False
    except TimeoutError:
        return True


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_errors_are_answered_until_the_switch_is_off(
    http: aiohttp.ClientSession, server: SimServer, status: int
) -> None:
    server.set_faults(error_status=status, retry_after_s=7)
    async with http.post(f"{server.url}/v1/completions", json=ASK) as response:
        assert response.status == status
        assert response.headers.get("retry-after") == (None if status == 500 else "7")
        assert (await response.json())["error"]["code"] == status
    async with http.get(f"{server.url}/health") as response:
        assert response.status == 200
    server.set_faults(error_status=None)
    assert await status_of(http, server) == 200


async def test_a_share_of_errors_is_drawn_with_the_seed(http: aiohttp.ClientSession) -> None:
    drawn = []
    for _ in range(2):
        faults = Faults(error_status=500, error_ratio=0.5)
        async with SimServer("a", BRISK, faults=faults, seed=4) as server:
            drawn.append([await status_of(http, server) for _ in range(20)])
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {200, 500}


async def test_a_hanging_server_never_answers_and_never_queues(http: aiohttp.ClientSession, server: SimServer) -> None:
    server.set_faults(hang_ratio=1.0)
    assert await stays_open(http, f"{server.url}/v1/completions", ASK)
    assert server.engine.stats.prompt_tokens == 0
    await eventually(lambda: server.ledger.aborted == 1, "the client's leaving is seen")


async def test_a_stream_hangs_in_the_middle(http: aiohttp.ClientSession, server: SimServer) -> None:
    server.set_faults(hang_after_tokens=2)
    async with http.post(f"{server.url}/v1/completions", json={**ASK, "max_tokens": 50, "stream": True}) as response:
        events = [await response.content.readuntil(b"\n\n") for _ in range(2)]
        assert all(event.startswith(b"data: ") for event in events)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(response.content.read(1), 0.3)


async def test_a_connection_is_reset_before_the_answer(http: aiohttp.ClientSession, server: SimServer) -> None:
    server.set_faults(reset_ratio=1.0)
    with pytest.raises(aiohttp.ClientError):
        await status_of(http, server)
    await eventually(lambda: server.ledger.aborted >= 1, "the reset is counted")


async def test_a_connection_is_reset_in_the_middle_of_a_stream(http: aiohttp.ClientSession, server: SimServer) -> None:
    server.set_faults(reset_after_tokens=2)
    async with http.post(f"{server.url}/v1/completions", json={**ASK, "max_tokens": 50, "stream": True}) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    await eventually(lambda: server.engine.running == 0, "the engine has dropped the request")


async def test_a_slow_server_answers_later_but_answers(http: aiohttp.ClientSession, server: SimServer) -> None:
    server.set_faults(slow_factor=50.0)
    assert await status_of(http, server) == 200
    assert server.engine.stats.busy_s >= 3 * 50 * BRISK.base_step_s


@pytest.mark.parametrize(
    ("fault", "status", "check"),
    [
        ("error", 500, lambda text: "error" in text),
        ("garbage", 200, lambda text: "vllm:" not in text and text != ""),
        ("empty", 200, lambda text: text == ""),
        ("huge", 200, lambda text: len(text) > 2_000_000 and "vllm:num_requests_running" in text),
    ],
)
async def test_the_metrics_page_can_be_broken(
    http: aiohttp.ClientSession, server: SimServer, fault: str, status: int, check: object
) -> None:
    server.set_faults(metrics=fault, metrics_huge_mb=2)
    async with http.get(f"{server.url}/metrics") as response:
        assert response.status == status
        assert check((await response.read()).decode("latin-1"))  # type: ignore[operator]
    assert await status_of(http, server) == 200


async def test_the_metrics_page_can_hang(http: aiohttp.ClientSession, server: SimServer) -> None:
    server.set_faults(metrics="hang")
    assert await stays_open(http, f"{server.url}/metrics")
    assert await status_of(http, server) == 200


async def test_frozen_metrics_keep_their_last_values(http: aiohttp.ClientSession, server: SimServer) -> None:
    async def page() -> str:
        async with http.get(f"{server.url}/metrics") as response:
            return await response.text()

    await status_of(http, server)
    server.set_faults(metrics="frozen")
    before = await page()
    await status_of(http, server)
    assert await page() == before
    server.set_faults(metrics="ok")
    assert await page() != before


async def test_health_can_fail_or_hang_while_requests_are_served(
    http: aiohttp.ClientSession, server: SimServer
) -> None:
    server.set_faults(health="error")
    async with http.get(f"{server.url}/health") as response:
        assert response.status == 503
    server.set_faults(health="hang")
    assert await stays_open(http, f"{server.url}/health")
    assert await status_of(http, server) == 200


async def test_a_cold_server_answers_503_until_it_is_ready(http: aiohttp.ClientSession) -> None:
    async with SimServer("a", BRISK, faults=Faults(cold_start_s=3600.0)) as server:
        assert await status_of(http, server) == 503
        async with http.get(f"{server.url}/health") as response:
            assert response.status == 503
        server.set_faults(cold_start_s=0.0)
        assert await status_of(http, server) == 200


async def test_a_cold_server_can_keep_its_port_closed(http: aiohttp.ClientSession) -> None:
    async with SimServer("a", BRISK, faults=Faults(cold_start_s=0.5), cold_port_closed=True) as server:
        with pytest.raises(aiohttp.ClientConnectorError):
            await status_of(http, server)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 10
        while True:
            try:
                assert await status_of(http, server) in (200, 503)
                break
            except aiohttp.ClientConnectorError:
                assert loop.time() < deadline_s
                await asyncio.sleep(0.02)


async def test_faults_are_read_and_set_over_http_and_mistakes_are_named(
    http: aiohttp.ClientSession, server: SimServer
) -> None:
    async with http.post(f"{server.url}/sim/faults", json={"error_status": 503, "error_ratio": 0.25}) as response:
        assert response.status == 200
    async with http.get(f"{server.url}/sim/faults") as response:
        told = await response.json()
    assert (told["error_status"], told["error_ratio"], told["metrics"]) == (503, 0.25, "ok")
    mistakes = {
        '{"eror_status": 503}': "eror_status: no such fault",
        '{"error_ratio": 2}': "error_ratio: 2 is outside 0 to 1",
        '{"slow_factor": "x"}': "slow_factor: 'x' does not fit",
        '{"asleep": 1}': "asleep: 1 does not fit",
        '{"metrics": "dead"}': "metrics: 'dead' is none of ok, error",
        '{"error_status": 200}': "error_status: 200 is not an HTTP error",
        "[]": "a JSON object is required",
        "{": "",
    }
    for body, message in mistakes.items():
        async with http.post(f"{server.url}/sim/faults", data=body) as response:
            assert (body, response.status) == (body, 400)
            assert message in (await response.json())["error"]["message"]
    assert server.faults.error_status == 503


async def test_faults_outlive_a_restart(http: aiohttp.ClientSession) -> None:
    async with SimServer("a", BRISK) as server:
        server.set_faults(error_status=500)
        await server.kill()
        await server.start()
        assert await status_of(http, server) == 500
