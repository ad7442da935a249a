"""`extproc demo --autoscale`: its parts, and that nothing is left behind. All of it, with its checks, is
`make demo-autoscale CHECK=1`, which takes three minutes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from extproc.autoscale.profile import Profile
from extproc.cli import _demo_autoscale_config, _demo_autoscale_fleet
from extproc.cli._demo_autoscale_chart import chart, columns, spark
from extproc.cli._demo_autoscale_config import MAX_REPLICAS, POOL
from extproc.cli._demo_autoscale_fleet import SPEC, TTFT_P99_S, make_profile, profile_path
from extproc.cli._demo_autoscale_load import Load, Sent
from extproc.cli._demo_autoscale_watch import Look, p99_s
from extproc.cli._demo_config import Ports
from extproc.cli.main import app
from extproc.config.check import check
from extproc.config.load import load
from tests.cli.command import Command

PORTS = Ports(data=18080, envoy_admin=19901, grpc=19002, admin=19003, servers=(18001, 18002, 18003))


@pytest.mark.envoy
@pytest.mark.slow
async def test_ctrl_c_while_servers_start_ends_everything_and_leaves_nothing(tmp_path: Path) -> None:
    async with Command("demo", "--autoscale", "--check", env={**os.environ, "TMPDIR": str(tmp_path)}) as command:
        await command.says("now it must come to serve", timeout_s=60.0)
        command.signal(signal.SIGINT)
        assert await command.exit_code(timeout_s=60.0) == 130
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - nothing waits here
    assert not [each for each in _command_lines() if str(tmp_path) in each]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--seconds", "10"), "the script of --autoscale has its own length"), (("--servers", "5"), "the fleet of")],
)
def test_what_the_script_does_not_heed_is_refused(arguments: tuple[str, ...], words: str) -> None:
    ended = CliRunner().invoke(app, ["demo", "--autoscale", *arguments], env={"COLUMNS": "200"})
    assert ended.exit_code == 2
    assert words in ended.output


def test_its_configuration_has_no_problem(tmp_path: Path) -> None:
    _demo_autoscale_fleet.write_script(tmp_path, PORTS.servers)
    file = tmp_path / "envoy.yaml"
    _demo_autoscale_config.write(file, PORTS, tmp_path)
    loaded = load(file)
    assert list(check(loaded)) == []
    assert loaded.settings is not None
    autoscale = loaded.settings.pools[POOL].autoscale
    assert autoscale is not None
    assert autoscale.max_replicas == MAX_REPLICAS


def test_the_profile_is_of_the_servers_and_requests_that_the_demo_has() -> None:
    profile = Profile.model_validate_json(profile_path().read_bytes())
    assert profile.ttft_p99_target_s == TTFT_P99_S
    assert profile.server.kv_tokens == SPEC.usable_blocks * SPEC.block_size_tokens
    assert profile.server.max_model_len == SPEC.max_model_len


def test_the_load_test_of_these_servers_gives_the_profile() -> None:
    profile = Profile.model_validate_json(profile_path().read_bytes())
    again = make_profile(profile.made_at)
    assert again.knee_per_s == pytest.approx(profile.knee_per_s, rel=0.03)  # it is found to 2 %
    assert (again.server, again.lengths) == (profile.server, profile.lengths)


def test_the_fleets_command_knows_who_runs(tmp_path: Path) -> None:
    script = _demo_autoscale_fleet.write_script(tmp_path, PORTS.servers)
    # The servers themselves are slow to start, and not what this is about.
    text = script.read_text()
    line = next(each for each in text.splitlines() if "nohup" in each)
    script.write_text(text.replace(line, line.partition("nohup")[0] + "sleep 1000 >/dev/null 2>&1 </dev/null &"))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([script, *arguments], capture_output=True, text=True, check=False, timeout=30)

    try:
        assert (tmp_path / "servers.yaml").read_text() == "[]\n"
        assert [run("start").stdout for _ in range(3)] == [f"127.0.0.1:{port}\n" for port in PORTS.servers]
        full = run("start")
        assert (full.returncode, full.stderr) == (1, "no port is left\n")
        assert run("stop", "127.0.0.1:18002").returncode == 0
        assert (tmp_path / "servers.yaml").read_text() == "- 127.0.0.1:18001\n- 127.0.0.1:18003\n"
        assert run("stop", "127.0.0.1:18002").returncode == 0  # gone already
        assert run("start").stdout == "127.0.0.1:18002\n"
        assert run("what").returncode == 2
    finally:
        _demo_autoscale_fleet.kill_all(tmp_path)


def test_the_chart_shows_who_is_there_who_comes_and_who_goes() -> None:
    looks = [_look(2.0 * i, 1.0 + i, *fleet) for i, fleet in enumerate([(2, 0, 0, 2), (2, 1, 0, 3), (3, 0, 1, 3)])]
    rows = chart(looks, 40, most=4, target_s=1.0, column_s=2.0).plain.splitlines()
    assert [row[-3:] for row in rows[:4]] == ["··╳", "·▒█", "███", "███"]
    assert rows[0].startswith("3 desired")
    assert rows[4].startswith("3.0 requests/s sent")
    assert [row[-3:] for row in rows[4:]] == ["▃▆█", "▃▃▃"]


def test_a_chart_with_nothing_to_show_is_empty() -> None:
    assert "?" in chart([], 40, most=2, target_s=1.0, column_s=2.0).plain
    assert columns([], 3, 2.0) == [None] * 3
    assert (spark(None, 1.0), spark(0.0, 1.0), spark(9.0, 1.0), spark(1.0, 0.0)) == (" ", "▁", "█", "▁")


def test_what_still_waits_for_its_first_token_counts_with_its_time_so_far() -> None:
    answered = Sent(1, 90.0, first_s=99.5, ended_s=None)
    waiting = Sent(2, 88.0)
    failed = Sent(3, 80.0, ended_s=81.0)
    old = Sent(4, 30.0, first_s=31.0)
    assert p99_s([old, failed, waiting, answered], 100.0) == 12.0
    assert p99_s([old, failed], 100.0) is None


async def test_the_rate_follows_its_curve() -> None:
    load = Load("http://127.0.0.1:1")
    try:
        load.towards(4.0, 10.0)
        since = load._curve[0]
        assert [load._rate(since + each) for each in (0.0, 5.0, 10.0, 99.0)] == [0.0, 2.0, 4.0, 4.0]
    finally:
        await load.close()


def _look(at_s: float, rate: float, ready: int, starting: int, draining: int, desired: int) -> Look:
    return Look(at_s, rate, desired, ready, starting, draining, 0.0, 0.5, 0.5)


def _command_lines() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found
