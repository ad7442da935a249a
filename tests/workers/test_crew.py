"""The supervisor and workers that fail it, and the reverse."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Any

import orjson
import pytest

from extproc.admin.status_workers import with_workers
from extproc.cli._worker import name_lines
from extproc.config.settings import Settings
from extproc.server.listener import ListenError
from extproc.workers import crew, restarts
from extproc.workers.crew import CrewError
from extproc.workers.link import VERSION, Frames, Kind, frame
from extproc.workers.worker import Worker, WorkerError

FREE = {"grpc": {"listen": "127.0.0.1:0"}, "admin": {"listen": "127.0.0.1:0"}}


def settings(**other: Any) -> Settings:
    pools = {"vllm": {"endpoints": [{"address": "127.0.0.1:1"}]}}
    return Settings.model_validate({**FREE, "workers": 2, "pools": pools, **other})


def ends_at_once(status: int) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", f"raise SystemExit({status})")


async def test_workers_that_end_at_once_again_and_again_are_given_up_and_the_service_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restarts, "FIRST_S", 0.001)
    monkeypatch.setattr(restarts, "LONGEST_S", 0.01)
    app = crew.app_of(settings(), None, ends_at_once(3), {})
    with caplog.at_level(logging.WARNING), pytest.raises(ExceptionGroup) as raised:
        await asyncio.wait_for(app.run(asyncio.Event()), 60)
    assert raised.group_contains(CrewError)
    given_up = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(given_up) == 2
    assert "ended with status 3, again and again soon after its start: it is not started any more" in caplog.text
    assert caplog.text.count("it is started again") == 2 * (restarts.IN_A_ROW - 1)


def test_ports_that_there_are_not_are_told() -> None:
    app = crew.app_of(settings(workers=8, grpc={"listen": "127.0.0.1:65500"}), None, ends_at_once(0), {})
    with pytest.raises(ListenError, match="the last of 8 would listen on port 65570; there is none"):
        app.front.open()


def test_a_worker_that_was_given_up_stands_in_the_status_before_all_else() -> None:
    status = {"warnings": ["other"], "warned": [{"level": "note", "text": "other"}]}
    shown = with_workers(status, [{"number": 1, "state": "given up", "restarts": 6}, {"number": 0, "state": "ready"}])
    assert shown["warnings"][0].startswith("worker 1 ended soon after its start, 6 times")
    assert shown["warnings"][1:] == ["other"]
    assert shown["warned"][0]["level"] == "critical"
    assert with_workers(status, None) == status | {"workers": None}


# A worker's end


async def run_worker(*frames: bytes, then_close: bool = False) -> tuple[WorkerError, list[tuple[Kind, bytes]]]:
    """What it fails with when this is all that it hears, and what it says."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with ours:
        ours.sendall(b"".join(frames))
        if then_close:
            ours.shutdown(socket.SHUT_WR)
        with pytest.raises(WorkerError) as raised:
            await asyncio.wait_for(Worker().run(theirs, asyncio.Event(), lambda first: None), 30)
        ours.settimeout(10)
        said = b""
        while chunk := ours.recv(65536):
            said += chunk
    return raised.value, Frames().feed(said)


async def test_a_worker_of_another_version_refuses_and_says_why() -> None:
    """Files that were upgraded under a service that runs."""
    start = {"version": "0.0.1/1", "number": 0, "settings": settings(workers=1).model_dump_json()}
    error, said = await run_worker(frame(Kind.START, orjson.dumps(start)))
    assert "the service was upgraded while it runs; restart it" in str(error)
    assert said == [(Kind.HELLO, orjson.dumps({"error": str(error)}))]


async def test_a_worker_says_which_port_it_cannot_open() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        own = settings(workers=1, grpc={"listen": taken})
        start = {"version": VERSION, "number": 0, "settings": own.model_dump_json()}
        error, said = await run_worker(frame(Kind.START, orjson.dumps(start)))
    assert f"grpc.listen: cannot open {taken}" in str(error)
    assert said == [(Kind.HELLO, orjson.dumps({"error": str(error)}))]


async def test_a_worker_whose_supervisor_is_gone_before_its_first_word_ends() -> None:
    error, said = await run_worker(then_close=True)
    assert "the supervisor has gone" in str(error)
    assert said == []


# Log lines


@pytest.mark.parametrize("as_text", [True, False])
def test_each_line_of_a_workers_log_tells_which_it_is(as_text: bool) -> None:
    before = logging.getLogRecordFactory()
    try:
        name_lines(3, as_text=as_text)
        record = logging.getLogger("extproc.x").makeRecord("extproc.x", logging.INFO, "f", 1, "text", (), None)
    finally:
        logging.setLogRecordFactory(before)
    assert record.name == ("worker 3: extproc.x" if as_text else "extproc.x")
    assert getattr(record, "worker", None) == (None if as_text else 3)
