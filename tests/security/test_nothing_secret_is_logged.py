"""No word of a client's, no token and no key comes into the log or onto a page, at any level, whatever goes wrong.

One word stands in all of them: in bodies, headers, paths, sessions, metadata of gRPC, the texts of exceptions, the
admin token, the tokens and the keys of metrics pages. It is looked for in all that was logged, as text and as JSON, by
us and by every library, and on all pages.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from extproc.bug_log import log_bug, log_of_loop
from extproc.config.settings import Settings
from tests.app.test_application import Running, settings, started
from tests.support.ext_proc_client import BUFFERED, DUPLEX, LOGS, NONE, body, destination, headers
from tests.support.metrics_server import MetricsServer
from tests.support.waiting import eventually
from tests.support.whole_log import WholeLog, whole_log

CANARY = "c4n4ry"
SPOKEN = {
    ":method": "POST",
    ":path": f"/v1/chat/completions?api_key={CANARY}",
    "authorization": f"Bearer {CANARY}",
    "cookie": f"session={CANARY}",
    "x-session-id": CANARY,
    "content-type": "application/json",
}
GOOD = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": f"my secret is {CANARY}" * 50}], "user": CANARY}
).encode()
BAD = {
    "cut": GOOD[:-30],
    "no JSON": CANARY.encode(),
    "deep": b'{"a":' * 3000 + CANARY.encode(),
    "no UTF-8": b'{"prompt": "' + CANARY.encode() + b'\xff"}',
    "no number": b'{"max_tokens": "' + CANARY.encode() + b'", "prompt": "' + CANARY.encode() + b'"}',
    "a number of 5,000 digits": b'{"prompt": "' + CANARY.encode() + b'", "max_tokens": ' + b"9" * 5000 + b"}",
    "too long": b'{"prompt": "' + CANARY.encode() + b"x" * (1 << 20) + b'"}',
}


@pytest.fixture
def log() -> Iterator[WholeLog]:
    with whole_log() as made:
        yield made


@pytest.fixture
async def running(log: WholeLog, tmp_path: Path) -> AsyncIterator[Running]:
    (tmp_path / "token").write_text(CANARY)
    asyncio.get_running_loop().set_debug(True)
    async with MetricsServer().serve() as vllm:
        of: Settings = settings(
            {"vllm": [vllm.address, "127.0.0.1:1"]},
            admin={"listen": "127.0.0.1:0", "token_file": str(tmp_path / "token")},
            scrape={"interval_s": 0.05, "timeout_s": 2, "stale_after_s": 1, "max_backoff_s": 0.1}
            | {"bearer_token_file": str(tmp_path / "token"), "path": f"/metrics?key={CANARY}"},
            scheduling={"profile": "cache-aware"},
            max_body_bytes=1 << 20,
        )
        async with started(of) as made:
            await eventually(made.serving, "it is ready")
            yield made


async def pages(of: Running) -> str:
    """All that can be read."""
    found = [await of.get(page) for page in ("/", "/status", "/status.json", "/decisions?limit=1000", "/metrics")]
    found.append(await of.get("/v1/drains"))
    assert {status for status, _ in found} == {200}
    return "\n".join(text for _, text in found)


async def picks(of: Running) -> int:
    return int((await of.status())["requests"]["picks"].get("vllm", 0))


METADATA = (("authorization", f"Bearer {CANARY}"), ("x-extproc-profile", "session"))


async def test_not_of_a_request_that_is_picked(running: Running, log: WholeLog) -> None:
    client = running.client
    first = client.stream(METADATA)
    assert destination(await first.ask(body(GOOD, first_with_mode=BUFFERED)))
    second = client.stream(METADATA)
    await second.ask(headers(BUFFERED, fields=SPOKEN))
    assert destination(await second.ask(body(GOOD)))
    third = client.stream(METADATA)
    await third.send(headers(DUPLEX, fields=SPOKEN), body(GOOD[:100], end=False))
    assert destination(await third.ask(body(GOOD[100:])))
    fourth = client.stream(METADATA)
    assert destination(await fourth.ask(headers(NONE, fields=SPOKEN)))
    assert await picks(running) == 4
    for stream in (first, second):
        await stream.end()
    for stream in (third, fourth):
        stream.call.cancel()
    assert CANARY not in await pages(running) + log.text


@pytest.mark.parametrize("kind", [*BAD, "gzip"])
async def test_not_of_a_body_that_cannot_be_read(running: Running, log: WholeLog, kind: str) -> None:
    content = BAD.get(kind, gzip.compress(GOOD)[:-9])
    fields = SPOKEN | ({"content-encoding": "gzip"} if kind == "gzip" else {})
    stream = running.client.stream(METADATA)
    await stream.send(headers(DUPLEX, fields=fields))
    assert await stream.ask(body(content)) is not None
    stream.call.cancel()
    assert CANARY not in await pages(running) + log.text


async def test_not_of_what_is_no_message(running: Running, log: WholeLog) -> None:
    stream = running.client.stream(METADATA)
    await stream.send(b"\x12\xff" + CANARY.encode())
    assert await stream.code() == "INTERNAL"
    logs = running.client.channel.stream_unary(LOGS)(metadata=METADATA)
    await logs.write(b"\x12\xff" + CANARY.encode())
    await eventually(lambda: "undecodable" in json.dumps(running.app.status()["access_log"]), "it is counted")
    logs.cancel()
    unknown = running.client.channel.unary_unary(f"/{CANARY}/{CANARY}")
    with pytest.raises(grpc.aio.AioRpcError):
        await unknown(CANARY.encode())
    assert CANARY not in await pages(running) + log.text


@pytest.mark.parametrize(
    "said",
    [
        f"POST /v1/completions?key={CANARY} HTTP/1.1\r\nHost: x\r\nAuthorization: {CANARY}\r\n\r\n{CANARY}".encode(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + CANARY.encode() * 10,
    ],
)
async def test_not_of_what_is_no_grpc(running: Running, log: WholeLog, said: bytes) -> None:
    host, _, number = running.app.grpc_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    writer.write(said)
    await reader.read()
    writer.close()
    assert "breaks the protocol" in log.text
    assert CANARY not in log.text


class OurFaultError(Exception):
    """As if a bug of ours had read a client's words."""


async def test_not_of_a_bug_of_ours(running: Running, log: WholeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> Any:
        try:
            int(GOOD)
        except ValueError as error:
            raise OurFaultError(f"cannot read {GOOD!r}") from error

    monkeypatch.setattr(running.app.router, "route", bug)
    monkeypatch.setattr(running.app.router, "explain", bug)
    stream = running.client.stream(METADATA)
    await stream.send(headers(DUPLEX, fields=SPOKEN), body(GOOD))
    assert await stream.code() == "INTERNAL"
    status, told = await explained(running, GOOD)
    assert (status, told) == (500, {"error": "internal error; see the log of the service"})
    for words in ("bug in the request path", "bug in an admin page", "OurFaultError", "builtins.ValueError", "in bug"):
        assert words.replace("in bug", ".bug") in log.text
    assert CANARY not in log.text


async def explained(of: Running, content: bytes, **headers_: str) -> tuple[int, Any]:
    given = {"Content-Type": "application/json", "Authorization": f"Bearer {CANARY}", "X-Session-Id": CANARY}
    url = f"http://{of.app.admin_address}/explain?path=/v1/chat/completions%3Fkey={CANARY}"
    async with of.http.post(url, data=io.BytesIO(content), headers=given | headers_) as answer:
        return answer.status, await answer.json()


async def test_not_of_a_question(running: Running, log: WholeLog) -> None:
    for content in (GOOD, *BAD.values()):
        status, told = await explained(running, content)
        assert status == (413 if len(content) > 1 << 20 else 200)
        assert CANARY not in json.dumps(told)
    assert CANARY not in await pages(running) + log.text


async def test_not_of_the_admin_port_s_own_secrets(running: Running, log: WholeLog) -> None:
    status, told = await explained(running, GOOD, Authorization=f"Bearer x{CANARY}")
    assert (status, CANARY in json.dumps(told)) == (403, False)
    status, _ = await explained(running, b"{}", Authorization="Basic " + base64.b64encode(CANARY.encode()).decode())
    assert status == 403
    host, _, number = running.app.admin_address.rpartition(":")
    for said in (f"{CANARY} /{CANARY} HTTP/9\r\n\r\n", f"GET /?{CANARY} HTTP/1.1\r\n{CANARY}\r\n\r\n"):
        reader, writer = await asyncio.open_connection(host, int(number))
        writer.write(said.encode())
        await reader.read()
        writer.close()
    assert (await running.get(f"/{CANARY}?{CANARY}"))[0] == 404
    assert CANARY not in log.text


async def test_not_of_what_servers_are_asked_with(running: Running, log: WholeLog) -> None:
    """One of the two servers refuses connections, which is logged; its page has a key in its URL."""
    await eventually(lambda: "no metrics (refused)" in log.text, "a failure is logged")
    assert CANARY not in await pages(running) + log.text


def test_what_fails_on_the_event_loop_is_logged_without_its_text(log: WholeLog) -> None:
    log_of_loop(None, {"message": "Exception in callback", "exception": ValueError(CANARY), "handle": CANARY})
    log_of_loop(None, {"message": "something else"})
    assert "Exception in callback" in log.text
    assert "builtins.ValueError" in log.text
    assert "something else" in log.text
    assert CANARY not in log.text


def test_a_bug_is_found_by_the_lines_it_passed_and_by_its_causes(log: WholeLog) -> None:
    try:
        try:
            json.loads(CANARY)
        except ValueError as error:
            raise KeyError(CANARY) from error
    except KeyError as error:
        log_bug(logging.getLogger("extproc"), "a bug", error)
    assert "builtins.KeyError" in log.text
    assert "json.decoder.JSONDecodeError" in log.text
    assert "test_nothing_secret_is_logged.py" in log.text
    assert CANARY not in log.text
    log_bug(logging.getLogger("extproc"), "a bug", AttributeError("'X' object has no attribute 'y'"))
    assert "has no attribute 'y'" in log.text  # of names in the code
