"""`extproc scale`, as an operator runs it."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from extproc.cli._ports import free_port
from extproc.cli.main import app
from tests.cli.command import Command
from tests.cli.fake_pool import POOL, FakePool
from tests.support.waiting import eventually

_LONG_S = 90.0  # a machine that is busy


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[FakePool]:
    async with FakePool(tmp_path) as fake:
        yield fake


def _scale(pool: FakePool, *arguments: str, admin: tuple[str, ...] = ()) -> Command:
    admins = [part for url in admin or (pool.url,) for part in ("--admin", url)]
    state = ("--state", str(pool.folder / "state"))
    return Command("scale", POOL, "--exec", str(pool.script), "--every", "0.1", *state, *admins, *arguments)


async def test_servers_come_and_go_as_recommended_and_each_step_is_told(pool: FakePool) -> None:
    pool.desired = 2
    async with _scale(pool) as command:
        await command.says("127.0.0.1:8002 serves", _LONG_S)
        pool.desired, pool.in_flight["127.0.0.1:8001"] = 1, 3
        pool.in_flight["127.0.0.1:8002"] = 2
        await command.says("waits: 127.0.0.1:8002 drains: 2 requests are in flight", _LONG_S)
        assert pool.servers == ["127.0.0.1:8001", "127.0.0.1:8002"]
        pool.in_flight.clear()
        await command.says("stopped 127.0.0.1:8002", _LONG_S)
        command.signal(signal.SIGTERM)
        assert await command.exit_code(_LONG_S) == 0
    told = [line.partition(" vllm: ")[2] for line in command.output.splitlines()]
    happened = [line for line in told if line.startswith(("starts", "drains", "stops", "ends"))]
    assert happened[:3] == [
        "starts a server (1 of 2): 2 by the numbers",
        "starts a server (2 of 2): 2 by the numbers",
        "drains 127.0.0.1:8002 (fewest tokens in flight): 1 by the numbers",
    ]
    assert happened[3].startswith("stops 127.0.0.1:8002, ")
    assert happened[4] == "ends; nothing is under way"
    assert pool.calls == ["start vllm 2", "start vllm 2", "stop 127.0.0.1:8002 vllm 1"]


async def test_a_second_one_is_refused_and_may_look(pool: FakePool) -> None:
    pool.add("127.0.0.1:8000")
    async with _scale(pool) as first:
        await first.says("carries out by:", _LONG_S)
        async with _scale(pool) as second:
            assert await second.exit_code(_LONG_S) == 4
        assert "another extproc scale (process " in second.output
        assert "acts on pool vllm" in second.output
        pool.problem = ""
        dry = ("scale", POOL, "--dry-run", "--once", "--admin", pool.url, "--state", str(pool.folder / "state"))
        async with Command(*dry) as looks:
            assert await looks.exit_code(_LONG_S) == 0
        assert "vllm: would wait: 1 servers, as recommended" in looks.output


async def test_once_does_what_can_be_done_now_and_what_is_left_is_taken_up(pool: FakePool) -> None:
    pool.add("127.0.0.1:8000")
    pool.add("127.0.0.1:8001")
    pool.cold_start_s = 0.0
    pool.in_flight = {"127.0.0.1:8000": 2, "127.0.0.1:8001": 1}
    async with _scale(pool, "--once") as command:
        assert await command.exit_code(_LONG_S) == 0
    assert pool.phases == {"127.0.0.1:8001": "draining"}
    pool.in_flight.clear()
    async with _scale(pool, "--once", "--log-format", "json") as command:
        assert await command.exit_code(_LONG_S) == 0
    rows = [json.loads(line) for line in command.output.splitlines()]
    assert [row["fields"]["event"] for row in rows] == ["begins", "stop", "stopped", "wait"]
    assert "under way: 127.0.0.1:8001 goes on draining" in rows[0]["message"]
    assert rows[1]["fields"]["endpoint"] == "127.0.0.1:8001"
    assert pool.servers == ["127.0.0.1:8000"]


async def test_a_command_that_fails_is_told_and_not_run_in_a_tight_loop(pool: FakePool) -> None:
    (pool.folder / "broken").touch()
    async with _scale(pool) as command:
        await command.says("the next one is in", _LONG_S)
        command.signal(signal.SIGINT)
        assert await command.exit_code(_LONG_S) == 0
    assert "start: no machine is free" in command.output
    assert "the start command failed: exit status 7; no server is counted on; the next try is in 10 s" in command.output
    assert len(pool.calls) == 1


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_waits_for_the_command_that_runs(pool: FakePool, sent: signal.Signals) -> None:
    (pool.folder / "slow").write_text("1")
    async with _scale(pool) as command:
        await eventually((pool.folder / "began").exists, "the command runs", timeout_s=_LONG_S)
        command.signal(sent)
        assert await command.exit_code(_LONG_S) == 0
    assert "started 127.0.0.1:8001" in command.output
    assert "ends; still to come: 127.0.0.1:8001" in command.output


async def test_one_that_was_killed_in_the_middle_starts_no_second_server(pool: FakePool) -> None:
    (pool.folder / "slow").write_text("1")
    async with _scale(pool) as command:
        await eventually((pool.folder / "began").exists, "the command runs", timeout_s=_LONG_S)
        command.signal(signal.SIGKILL)
        await command.exit_code(_LONG_S)
    async with _scale(pool) as command:
        await command.says("serves,", _LONG_S)
    assert pool.servers == ["127.0.0.1:8001"]
    assert pool.calls == ["start vllm 1"]


async def test_without_a_recommendation_nothing_is_done_and_why_is_told(pool: FakePool) -> None:
    pool.problem = "the load of its servers was last known 400 s ago"
    async with _scale(pool, "--once") as command:
        assert await command.exit_code(_LONG_S) == 5
    nothing = "does nothing: the service recommends nothing now: the load of its servers was last known 400 s ago"
    assert nothing in command.output
    async with _scale(pool, "--once", admin=(f"http://127.0.0.1:{free_port(0)}",)) as command:
        assert await command.exit_code(_LONG_S) == 5
    assert "does nothing: no service at http://127.0.0.1:" in command.output
    assert pool.calls == []


async def test_a_look_without_a_recommendation_ends_with_the_same_exit_status(pool: FakePool) -> None:
    pool.problem = "the load of its servers was last known 400 s ago"
    away = f"http://127.0.0.1:{free_port(0)}"
    for admin, words in ((pool.url, "the service recommends nothing now"), (away, f"no service at {away}")):
        async with Command("scale", POOL, "--dry-run", "--once", "--admin", admin) as looks:
            assert await looks.exit_code(_LONG_S) == 5
        assert f"does nothing: {words}" in looks.output


async def test_a_server_is_stopped_only_when_every_process_of_the_service_has_drained_it(
    pool: FakePool, tmp_path: Path
) -> None:
    async with FakePool(tmp_path) as other:
        for each in ("127.0.0.1:8000", "127.0.0.1:8001"):
            pool.add(each)
        pool.in_flight = {"127.0.0.1:8001": 2}
        other.in_flight = {"127.0.0.1:8000": 1}
        pool.cold_start_s = other.cold_start_s = 0.0
        async with _scale(pool, admin=(pool.url, other.url)) as command:
            await command.says("127.0.0.1:8000 drains: 1 requests are in flight", _LONG_S)
            assert pool.phases == {"127.0.0.1:8000": "drained"}
            assert other.phases == {"127.0.0.1:8000": "draining"}
            assert len(pool.servers) == 2
            other.in_flight.clear()
            await command.says("stopped 127.0.0.1:8000", _LONG_S)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give --exec CMD, or --dry-run"),
        (("--exec", "true", "--dry-run"), "give --exec CMD, or --dry-run"),
        (("--exec", ""), "the command is empty"),
        (("--exec", "no-such-command-at-all"), "there is no such command"),
        (("--exec", "{folder}/fleet.txt"), "it is not executable"),
        (("--exec", "a 'b"), "No closing quotation"),
    ],
)
def test_what_is_mistyped_is_told_at_once(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "fleet.txt").touch(0o644)
    given = [each.format(folder=tmp_path) for each in arguments]
    ended = CliRunner().invoke(app, ["scale", POOL, *given, "--state", str(tmp_path)], env={"COLUMNS": "200"})
    assert ended.exit_code == 2
    assert words in " ".join(ended.output.replace("│", " ").split())


async def test_a_pool_that_never_gets_recommendations_is_told_at_once(pool: FakePool) -> None:
    async with Command("scale", "vlm", "--dry-run", "--admin", pool.url) as command:
        assert await command.exit_code(_LONG_S) == 1
    assert command.output == 'extproc scale: no pool "vlm" gets recommendations\n'
