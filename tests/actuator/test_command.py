"""How does the operator's command end, whatever it does?"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from extproc.actuator.command import Commands, Ended


def _run(script: str, *arguments: str, timeout_s: float = 20.0) -> tuple[Ended, list[str]]:
    told: list[str] = []
    commands = Commands(
        ["sh", "-c", script, "fleet.sh"], timeout_s, lambda action, line: told.append(f"{action}: {line}")
    )
    return commands.run(arguments[0], arguments[1:], {"EXTPROC_POOL": "vllm"}), told


def _stats() -> list[str]:
    """Of every process."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found.append(file.read_text())
    return found


def test_its_last_line_is_the_new_servers_address() -> None:
    ended, told = _run("echo making; echo on its way >&2; echo 10.0.0.7:8000; echo", "start")
    assert (ended.problem, ended.status, ended.endpoint) == (None, 0, "10.0.0.7:8000")
    assert sorted(told) == ["start: 10.0.0.7:8000", "start: making", "start: on its way"]


@pytest.mark.parametrize("script", ["true", "echo made instance i-0123", "echo 10.0.0.7"])
def test_without_an_address_in_it_there_is_none(script: str) -> None:
    ended, _ = _run(script, "start")
    assert (ended.problem, ended.endpoint) == (None, None)


def test_it_is_told_what_to_do_by_arguments_and_environment() -> None:
    ended, told = _run('echo "$1 $2 $EXTPROC_POOL"', "stop", "10.0.0.7:8000")
    assert ended.problem is None
    assert told == ["stop: stop 10.0.0.7:8000 vllm"]


def test_how_it_failed_is_told() -> None:
    assert _run("exit 3", "start")[0].problem == "exit status 3"
    assert _run("kill -KILL $$", "start")[0].problem == "it was ended by SIGKILL"
    missing = Commands(["/no/such/command"], 1.0, lambda *_: None).run("start", (), {})
    assert missing.problem == "cannot run /no/such/command: No such file or directory"


def test_one_that_takes_too_long_is_ended_with_all_that_it_runs() -> None:
    ended, told = _run("echo $$; sleep 1000 & wait", "start", timeout_s=0.3)
    assert ended.timed_out
    assert ended.problem == "it was ended after 0.3 s (--timeout)"
    group = int(told[0].removeprefix("start: "))
    states = [stat.rpartition(")")[2].split() for stat in _stats()]
    assert not [each for each in states if int(each[2]) == group and each[0] not in "ZX"]


def test_a_server_that_it_leaves_running_is_not_waited_for_though_it_holds_the_output(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    ended, _ = _run(f"sleep 1000 & echo $! >{pid}; echo 10.0.0.7:8000", "start")
    try:
        assert ended.endpoint == "10.0.0.7:8000"
        assert ended.left_open
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_server_that_writes_elsewhere_is_no_reason_to_warn(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    ended, _ = _run(f"sleep 1000 >/dev/null 2>&1 & echo $! >{pid}", "start")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert not ended.left_open


def test_one_that_writes_without_end_is_ended_by_the_time_out() -> None:
    ended, told = _run("exec yes", "start", timeout_s=0.3)
    assert ended.timed_out
    assert len(told) == 1001
    assert told[-1].endswith(" more lines)")


def test_much_output_neither_blocks_it_nor_fills_the_memory() -> None:
    ended, told = _run("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo 10.0.0.7:8000", "start")
    assert ended.endpoint == "10.0.0.7:8000"
    assert max(map(len, told)) <= 2000 + len("start: ")
