"""The admin port as it is opened: who may act, from where, and who may hold its connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from extproc.admin import http, port
from extproc.admin.drains import DrainDesk
from extproc.admin.guard import Guard
from extproc.config.settings import AdminSettings
from extproc.endpoint import Address, Endpoint
from extproc.pool.deadline import Bounds
from tests.support.fleet import pool, router
from tests.support.waiting import eventually

ONE, TWO = "127.0.0.2", "127.0.0.3"  # servers, and the addresses that they ask from


@asynccontextmanager
async def opened(listen: str = "127.0.0.1:0", protect: str = "actions", **environment: str) -> AsyncIterator[str]:
    """One in front of two servers; 127.0.0.1:port."""
    servers = pool(0)
    servers.set_endpoints([Endpoint(Address.of(host, 8000)) for host in (ONE, TWO)])
    fleet = router(servers)
    desk = DrainDesk(fleet, Bounds(), clock=lambda: 1.0)

    def fails(_: object) -> Any:
        raise RuntimeError("a bug")

    answers = http.Answers(ready=lambda: True, status=dict, explain=fails, decisions=lambda _: [], drains=desk)
    settings = AdminSettings.model_validate({"listen": listen, "protect": protect})
    guard = Guard.of(settings, environment)
    app = http.application(CollectorRegistry(), answers, max_body_bytes=10_000, guard=guard)
    made = await port.open_port(settings, app)
    try:
        yield f"127.0.0.1:{made.address.rpartition(':')[2]}"
    finally:
        await made.close()


async def ask(
    address: str, method: str, path: str, *, source: str = "127.0.0.1", **options: Any
) -> tuple[int, str | None]:
    """The status, and of an error its words. `source`: the address that the question comes from."""
    connector = aiohttp.TCPConnector(local_addr=(source, 0))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(method, f"http://{address}{path}", **options) as answer,
    ):
        told = await answer.json()
        return answer.status, told.get("error") if isinstance(told, dict) else None


def drain(host: str, query: str = "") -> str:
    return f"/v1/endpoints/{host}:8000/drain{query}"


async def phase(address: str, host: str) -> str | None:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{drain(host)}") as answer:
        found: str | None = (await answer.json())["phase"]
        return found


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_a_server_may_drain_itself_and_no_other(listen: str) -> None:
    """The hook of a pod needs no token: where its connection comes from says who asks."""
    async with opened(listen) as address:
        assert await phase(address, ONE) is None
        for refused in (
            ask(address, "POST", drain(ONE, "?by=self"), source=TWO),
            ask(address, "POST", drain(ONE), source=ONE),
            ask(address, "POST", drain(ONE, "?by=operator&by=self"), source=ONE),
            ask(address, "DELETE", drain(ONE, "?by=self"), source=ONE),
            ask(address, "POST", "/explain?by=self", source=ONE, json={}),
        ):
            status, words = await refused
            assert status == 403
            assert words is not None
            assert "admin.token_file" in words
        assert await phase(address, ONE) is None
        assert (await ask(address, "POST", drain(ONE, "?by=self"), source=ONE))[0] == 200
        assert [await phase(address, host) for host in (ONE, TWO)] == ["draining", None]


async def test_it_may_see_how_its_own_drain_stands_where_others_see_nothing() -> None:
    async with opened("0.0.0.0:0", "all", EXTPROC_ADMIN_TOKEN="t0ken") as address:
        assert (await ask(address, "POST", drain(ONE, "?by=self"), source=ONE))[0] == 200
        assert (await ask(address, "GET", drain(ONE), source=ONE))[0] == 200
        assert (await ask(address, "GET", drain(ONE), source=TWO))[0] == 401
        assert (await ask(address, "GET", "/v1/drains", source=ONE))[0] == 401


async def test_whoever_has_the_token_may_drain_any_from_anywhere() -> None:
    async with opened("0.0.0.0:0", EXTPROC_ADMIN_TOKEN="t0ken") as address:
        right, wrong = ({"Authorization": f"Bearer {token}"} for token in ("t0ken", "token"))
        assert (await ask(address, "POST", drain(ONE), source=TWO))[0] == 401
        assert (await ask(address, "POST", drain(ONE), source=TWO, headers=wrong))[0] == 403
        assert await phase(address, ONE) is None
        assert (await ask(address, "POST", drain(ONE), source=TWO, headers=right))[0] == 200
        assert await phase(address, ONE) == "draining"
        assert (await ask(address, "DELETE", drain(ONE), source=TWO, headers=right))[0] == 200


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example:9003"}])
async def test_a_page_in_a_browser_on_this_machine_drains_nobody(headers: dict[str, str]) -> None:
    async with opened() as address:
        status, _ = await ask(address, "POST", drain(ONE), headers=headers)
        assert status == 403
        assert await phase(address, ONE) is None
        assert (await ask(address, "POST", drain(ONE)))[0] == 200


async def test_no_answer_lets_a_page_of_another_origin_read_it() -> None:
    async with opened() as address, aiohttp.ClientSession() as session:
        async with session.get(f"http://{address}/status", headers={"Origin": "http://evil.example"}) as answer:
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        async with session.options(
            f"http://{address}{drain(ONE)}", headers={"Origin": "http://evil.example"}
        ) as answer:
            assert answer.status == 403


async def test_a_bug_is_an_answer_without_its_text() -> None:
    async with opened() as address:
        assert await ask(address, "POST", "/explain", json={}) == (500, "internal error; see the log of the service")


@asynccontextmanager
async def dialled(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, number = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("said", [b"", b"GET /status HTTP/1.1\r\nHost: localhost\r\nX-Slow: "], ids=["nothing", "half"])
async def test_who_never_ends_a_request_is_let_go(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow loris."""
    monkeypatch.setattr(port, "IDLE_S", 0.3)
    async with opened() as address, dialled(address) as (reader, writer):
        writer.write(said)
        assert (await ask(address, "GET", "/v1/drains"))[0] == 200
        assert await asyncio.wait_for(reader.read(), 20) == b""


async def test_a_body_that_never_ends_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "REQUEST_S", 0.3)
    async with opened() as address, dialled(address) as (reader, writer):
        writer.write(b"POST /explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: 100\r\nConnection: close\r\n\r\n{")
        assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 408")


async def test_more_connections_than_can_be_held_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port, "MOST_CONNECTIONS", 3)
    async with opened() as address:
        async with dialled(address), dialled(address), dialled(address) as (last, writer):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await asyncio.wait_for(last.readline(), 20)).startswith(b"HTTP/1.1 200")
            async with dialled(address) as (reader, _):
                assert await asyncio.wait_for(reader.read(), 20) == b""

        async def room() -> bool:
            try:
                return (await ask(address, "GET", "/v1/drains"))[0] == 200
            except aiohttp.ClientError:
                return False

        await eventually(room, "there is room again")


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["long header", "long path", "two lengths", "TLS"],
)
async def test_what_is_no_request_is_a_400_and_the_port_lives(said: bytes) -> None:
    async with opened() as address:
        async with dialled(address) as (reader, writer):
            writer.write(said)
            assert (await asyncio.wait_for(reader.readline(), 20)).split()[1] == b"400"
        assert (await ask(address, "GET", "/v1/drains"))[0] == 200
