"""`extproc explain`, against a service's admin port."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry

from extproc.admin import explain, http
from extproc.cli._ports import free_port
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from tests.cli.command import Command
from tests.support.fleet import observe_all, pool

BODY = json.dumps({"model": "m", "user": "u", "messages": [{"role": "user", "content": "word " * 200}]})


@pytest.fixture
async def service() -> AsyncIterator[tuple[Router, str]]:
    """A router over two servers behind an admin port, and its URL."""
    router = Router([PoolPlan(pool(2), PROFILES["cache-aware"], 2, session_headers=("x-session-id",))], rng=Random(1))
    observe_all(router, 0.0)
    answers = http.Answers(
        ready=lambda: True,
        status=dict,
        explain=lambda request: explain.explanation(router, request, 0.0),
        decisions=lambda limit: explain.decisions(router, limit, 0.0),
    )
    async with TestServer(http.application(CollectorRegistry(), answers, max_body_bytes=20_000)) as server:
        yield router, f"http://127.0.0.1:{server.port}"


async def ran(*arguments: str) -> tuple[int, str]:
    async with Command("explain", *arguments) as command:
        return await command.exit_code(), command.output


@pytest.fixture
def body(tmp_path: Path) -> str:
    file = tmp_path / "body.json"
    file.write_text(BODY)
    return str(file)


async def test_it_prints_the_servers_and_the_sentence(service: tuple[Router, str], body: str) -> None:
    code, output = await ran(body, "--admin", service[1])
    assert code == 0
    assert "pool vllm, profile cache-aware, decided by first token" in output
    assert "chat, model m, about 252 prompt tokens in 3 full blocks, a session key" in output
    assert "10.0.0.1:8000" in output
    assert "10.0.0.2:8000" in output
    assert "holds 0 of 252 tokens, 0.031 s expected; 1 more within 0.036 s count as equal" in output


async def test_json_is_what_the_service_answered(service: tuple[Router, str], body: str) -> None:
    code, output = await ran(body, "--admin", service[1], "--json", "--pool", "vllm")
    assert code == 0
    answer = json.loads(output)
    assert answer["request"]["session_key"] is True
    assert {each["address"] for each in answer["endpoints"]} == {"10.0.0.1:8000", "10.0.0.2:8000"}


async def test_headers_and_path_are_the_requests(service: tuple[Router, str], tmp_path: Path) -> None:
    """A body that is no JSON is no mistake: servers get such too."""
    file = tmp_path / "body"
    file.write_bytes(b"\x00no json")
    code, output = await ran(
        str(file), "--admin", service[1], "--path", "/v1/completions", "--header", "X-Session-Id: 7"
    )
    assert code == 0
    assert "completions, no model named, no prompt (unparsable), a session key" in output
    assert "no prompt (unparsable): the ring's choice for the session's key" in output


async def test_it_ends_with_1_when_nobody_can_be_picked(service: tuple[Router, str], body: str) -> None:
    service[0].pools[0].set_endpoints([])
    code, output = await ran(body, "--admin", service[1])
    assert code == 1
    assert "the pool has no endpoints" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pool", "other"], 'refused the question (404): no pool "other"; there are: vllm'),
        (["--header", "nonsense"], "write NAME:VALUE"),
    ],
)
async def test_a_question_that_cannot_be_answered_ends_with_2_and_says_why(
    service: tuple[Router, str], body: str, arguments: list[str], message: str
) -> None:
    code, output = await ran(body, "--admin", service[1], *arguments)
    assert code == 2
    assert message in output


async def test_a_body_that_is_too_large_is_told(service: tuple[Router, str], tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"x" * 20_001)
    code, output = await ran(str(file), "--admin", service[1])
    assert code == 2
    assert "the body is larger than max_body_bytes, 20,000" in output


async def test_a_service_that_is_not_there_is_told_with_the_cure(body: str) -> None:
    code, output = await ran(body, "--admin", f"127.0.0.1:{free_port(0)}")
    assert code == 2
    assert "no service at http://127.0.0.1:" in output
    assert "Connection refused" in output
    assert "--admin" in output


async def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    code, output = await ran(str(tmp_path / "none.json"))
    assert code == 2
    assert "none.json: No such file or directory" in output


async def test_something_else_on_that_port_is_told(body: str) -> None:
    async def hello(_: web.Request) -> web.Response:
        return web.Response(text="<html>")

    app = web.Application()
    app.router.add_post("/explain", hello)
    async with TestServer(app) as server:
        code, output = await ran(body, "--admin", f"http://127.0.0.1:{server.port}")
    assert code == 2
    assert "is not this service's admin port" in output


async def test_the_body_can_come_from_standard_input(service: tuple[Router, str]) -> None:
    code = "import io, sys; sys.stdin = io.TextIOWrapper(io.BytesIO(b'{}'));from extproc.cli import main; main()"
    async with Command("explain", "-", "--admin", service[1], code=code) as command:
        assert await command.exit_code() == 0
    assert "no prompt (empty)" in command.output
