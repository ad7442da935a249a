"""Words of peers in the log: they begin no line of their own, and do not speak to the terminal."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.cli._logs import TEXT, JsonFormatter, TextFormatter
from extproc.rpc.server import accept_no_more
from tests.app.test_application import settings, started
from tests.support.ext_proc_client import BUFFERED, body, headers
from tests.support.waiting import eventually
from tests.support.whole_log import whole_log

EVIL = "x\n2026-01-01 00:00:00,000 INFO    extproc.app: all is well\x1b[2J\x1b]0;owned\x07\r\u2028\u202e\x00"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ +[\w.]+: ")


def formatted(message: str) -> tuple[str, str]:
    record = logging.LogRecord("extproc", logging.WARNING, "", 0, "a peer says %s", (message,), None)
    return TextFormatter(TEXT).format(record), JsonFormatter().format(record)


@given(st.text())
def test_whatever_is_logged_is_one_printable_line(message: str) -> None:
    text, line = formatted(message)
    assert text.isprintable()
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == f"a peer says {message}"


def test_what_is_printable_is_written_as_it_is() -> None:
    assert formatted("größer 语 10:8000 'x' \\n")[0].endswith(" a peer says größer 语 10:8000 'x' \\n")


def test_a_traceback_still_has_its_lines() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord(
            "extproc", logging.ERROR, "", 0, "a bug", (), (ValueError, error, error.__traceback__)
        )
    assert "\nTraceback (most recent call last):\n" in TextFormatter(TEXT).format(record)


@asynccontextmanager
async def hostile_server() -> AsyncIterator[str]:
    """Its metrics page is anything but one; host:port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {EVIL}\n\r\n\r\n".encode())
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:  # also where the client has gone, or the test is over: what stays open is another test's warning
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        await accept_no_more(server)


@pytest.mark.parametrize("name", ["pool", "profile"])
async def test_names_that_others_choose_and_answers_of_servers_stay_within_their_line(name: str) -> None:
    with whole_log() as log:
        async with hostile_server() as address, started(settings({"vllm": [address]})) as running:
            await eventually(lambda: "no metrics" in log.text, "the server's answer is told")
            # Bytes that a header of gRPC can hold: an Envoy's route, with what a client could have put there.
            stream = running.client.stream(((f"x-extproc-{name}", "evil [2J \\n INFO all is well"),))
            await stream.send(headers(BUFFERED))
            await stream.ask(body(b"{}"))
            stream.call.cancel()
            await eventually(lambda: "all is well" in log.text, "the name is told")
    for line in log.text.splitlines():
        assert line.startswith(("{", "  ", "Traceback", "builtins.", "after")) or LINE.match(line)
        assert line.isprintable()
