"""What do lines of the log look like, whatever is logged, and does each command write them so?"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from extproc.cli._logs import TEXT, JsonFormatter
from extproc.cli.main import app
from tests.cli.command import Command

LONG_S = 60.0
OWN = {"grpc": {"listen": "127.0.0.1:0"}, "admin": {"listen": "127.0.0.1:0"}, "shutdown_notice_s": 0}
SERVERS = {"pools": {"vllm": {"endpoints": [{"address": "127.0.0.1:1"}]}}}
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")


def record(message: str, *arguments: Any, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("extproc.x", logging.WARNING, __file__, 1, message, arguments, None)
    made.__dict__.update(more)
    return made


def written(message: str, *arguments: Any, **more: Any) -> Any:
    line = JsonFormatter().format(record(message, *arguments, **more))
    assert "\n" not in line
    assert line.isascii()
    return json.loads(line)


def test_a_record_is_an_object_with_its_time_level_logger_and_message() -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 123_456, UTC)
    assert written("pool %s: %d endpoints", "vllm", 3, created=at.timestamp()) == {
        "time": "2026-03-01T12:00:00.123+00:00",
        "level": "warning",
        "logger": "extproc.x",
        "message": "pool vllm: 3 endpoints",
    }


@pytest.mark.parametrize("text", ["two\nlines\r\n", "\u2028 and \x00", "Größe", "\ud800 alone", '"}', "50 %"])
def test_whatever_a_message_holds_it_is_one_line_and_comes_back_whole(text: str) -> None:
    assert written("got %s", text)["message"] == f"got {text}"
    assert written(text)["message"] == text


def test_what_the_caller_adds_stands_in_fields_as_far_as_json_can_hold_it() -> None:
    endless: list[Any] = []
    endless.append(endless)
    found = written(
        "x", pool="vllm", took_s=0.5, none=None, ratio=float("nan"), at={"a": {1}}, path=Path("/x"), deep=endless
    )
    fields = found["fields"]
    assert (fields["pool"], fields["took_s"], fields["none"], fields["ratio"]) == ("vllm", 0.5, None, "nan")
    assert (fields["at"], fields["path"]) == ({"a": [1]}, "/x")
    assert json.dumps(fields["deep"]).count("[") < 20


def test_an_exception_stands_beside_its_message() -> None:
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        found = written("failed", exc_info=sys.exc_info())
    assert found["message"] == "failed"
    assert found["exception"].startswith("Traceback")
    assert found["exception"].endswith("RuntimeError: boom")


def test_a_message_that_cannot_be_formatted_is_told_all_the_same() -> None:
    found = written("%d servers", "three")
    assert "%d servers ('three',)" in found["message"]
    assert "cannot be formatted" in found["message"]


def test_the_text_is_what_it_was() -> None:
    line = logging.Formatter(TEXT).format(record("pool %s", "vllm"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING extproc\.x: pool vllm", line)


@pytest.mark.parametrize("command", ["serve", "up", "scale", "vllm-sim"])
def test_every_long_running_command_offers_both_and_refuses_a_third(command: str) -> None:
    (option,) = (each for each in get_command(app).commands[command].params if each.name == "log_format")  # type: ignore[attr-defined]
    assert option.opts == ["--log-format"]
    refused = CliRunner().invoke(app, [command, "x", "--log-format", "yaml"], env={"NO_COLOR": "1", "TERM": "dumb"})
    assert refused.exit_code == 2
    assert "'yaml' is not one of 'text', 'json'" in " ".join(refused.output.replace("│", " ").split())


async def test_serve_writes_nothing_but_json_from_start_to_end(tmp_path: Path) -> None:
    file = tmp_path / "extproc.yaml"
    file.write_text(json.dumps(OWN | SERVERS))
    async with Command("serve", "--config", str(file), "--log-format", "json", "--no-reload") as command:
        await command.says("admin on http", LONG_S)
        command.signal(signal.SIGTERM)
        assert await command.exit_code(LONG_S) == 0
    lines = [json.loads(line) for line in command.output.splitlines()]
    messages = [line["message"] for line in lines]
    assert any(message.startswith("gRPC on 127.0.0.1:") for message in messages)
    assert messages[-1] == "stopped"
    for line in lines:
        assert RFC_3339.fullmatch(line["time"])
        assert line["level"] in ("info", "warning")
        assert line["logger"].startswith("extproc.")


async def test_the_error_that_ends_a_process_is_json_too_of_a_thread_and_of_a_warning() -> None:
    code = (
        "import threading, warnings\n"
        "from extproc.cli._logs import setup_logging\n"
        "from extproc.cli._options import LogFormat\n"
        "setup_logging('info', LogFormat.JSON)\n"
        "warnings.warn('old')\n"
        "thread = threading.Thread(target=lambda: 1 / 0, name='divides')\n"
        "thread.start(); thread.join()\n"
        "raise RuntimeError('boom')\n"
    )
    async with Command(code=code) as command:
        assert await command.exit_code(LONG_S) == 1
    warned, thread, ended = [json.loads(line) for line in command.output.splitlines()]
    assert (warned["level"], warned["logger"]) == ("warning", "py.warnings")
    assert "UserWarning: old" in warned["message"]
    assert (thread["level"], thread["message"]) == ("critical", "thread divides ended by an error")
    assert thread["exception"].endswith("ZeroDivisionError: division by zero")
    assert (ended["level"], ended["message"]) == ("critical", "ended by an error")
    assert ended["exception"].endswith("RuntimeError: boom")
