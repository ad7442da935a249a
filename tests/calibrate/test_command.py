"""`extproc calibrate` as a user meets it: what it prints, the files it writes, what it says of mistakes."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from io import StringIO
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner, Result

from extproc.autoscale.profile import Profile, Server, StepRow
from extproc.calibrate.bracket import Try
from extproc.calibrate.fleet import Fleet
from extproc.calibrate.kept import load
from extproc.calibrate.lengths import Fixed, Independent
from extproc.calibrate.step import Now
from extproc.cli import calibrate as command
from extproc.cli._calibrate_view import Picture, Plain
from extproc.cli.main import app
from extproc.sim.server import SimServer
from tests.calibrate import clock
from tests.calibrate.worlds import SPEC
from tests.support.envoy_config import free_port

LENGTHS = ["--prompt-tokens", "uniform:20:180", "--output-tokens", "uniform:4:12"]
QUICK = [
    *("--ttft-p99", "150ms", "--start-rate", "20", "--tolerance", "0.5", "--confidence", "0.5", "--step-time", "500ms"),
    *("--warm-up", "500ms", "--step-requests", "200"),
]


@pytest.fixture
def calibrate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Result]:
    """Runs the command beside a simulated server, on the virtual clock. `url` stands for the server's."""
    port = free_port()

    async def beside(work: Coroutine[Any, Any, Any]) -> Any:
        async with SimServer("a", SPEC, port=port):
            return await work

    monkeypatch.setattr(command, "_loop", lambda work: clock.run(beside(work)))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        given = [f"127.0.0.1:{port}" if each == "url" else each for each in arguments]
        return CliRunner().invoke(app, ["calibrate", *given])

    return run


def test_it_writes_the_profile_the_report_and_the_settings(
    calibrate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = calibrate("url", *LENGTHS, *QUICK, "--report", "r.html", "--design-growth", "0.02")
    assert result.exit_code == 0, result.output
    profile = Profile.model_validate_json((tmp_path / "profile.json").read_bytes())
    assert f"knee: {profile.knee_per_s:g} requests/s a server" in result.stdout
    assert re.search(r"at the knee, nothing grows .* 50\.0% \(read \d\.\d%\)", result.stdout)  # the cache is large
    assert "growing by 0.02 requests/s each second for 166 s" in result.stdout
    settings = yaml.safe_load(result.stdout[result.stdout.index("pools:") :])
    assert settings["pools"]["vllm"]["autoscale"] == {
        "max_replicas": 8,
        "profile": str(tmp_path / "profile.json"),
        "ttft_p99_s": 0.15,
        "design_growth_per_s2": 0.02,
    }
    page = (tmp_path / "r.html").read_text()
    assert page.count("<svg") == 1
    assert f"knee {profile.knee_per_s:g}/s" in re.sub(r"<[^>]+>", "", page) or "<use" in page  # text, or drawn letters
    assert page.count('class="knee"') == 1
    assert page.count('class="met"') == sum(row.met for row in profile.steps)
    assert not re.search(r'(src|href)="https?:', page)  # nothing is fetched
    assert "step 1: 20 requests/s (the first rate)" in result.stderr

    url = result.stderr.split(" at http://")[1].split(",")[0]
    monkeypatch.setattr(command, "_loop", clock.run)  # without the server
    again = calibrate(url, *LENGTHS, *QUICK, "--report", "again.html")
    assert again.exit_code == 0, again.output
    assert "steps are kept in profile.json.steps: going on from there" in again.stderr
    assert "step " not in again.stderr.replace("steps", "")  # nothing is measured again
    assert f"knee: {profile.knee_per_s:g} requests/s" in again.stdout
    assert (tmp_path / "again.html").exists()

    other = calibrate("url", *LENGTHS, *QUICK, "--seed", "2")
    assert other.exit_code == 2
    assert "measured with other parameters (seed 1, now 2). --anew measures all again" in other.stderr


def test_interrupted_it_says_what_is_kept(
    calibrate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(self: Plain, number: int, step: object) -> None:
        if number == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Plain, "begins", interrupt)
    result = calibrate("url", *LENGTHS, *QUICK)
    assert result.exit_code == 130
    assert "interrupted\n1 step is kept in profile.json.steps: the same command goes on from there" in result.stderr
    kept = load(tmp_path / "profile.json.steps")
    assert kept is not None
    assert len(kept.steps) == 1
    assert not (tmp_path / "profile.json").exists()


def test_recorded_lengths_are_sent(calibrate: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").write_bytes(
        b"\n".join(orjson.dumps({"prompt_tokens": 50, "output_tokens": 5}) for _ in "ab")
    )
    result = calibrate("url", "--lengths", "l.jsonl", *QUICK)
    assert result.exit_code == 0, result.output
    profile = Profile.model_validate_json((tmp_path / "profile.json").read_bytes())
    assert (profile.lengths.prompt_tokens, profile.lengths.output_tokens) == (50, 5)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["url"], 2, "how long are prompts and answers? --prompt-tokens and --output-tokens"),
        (["url", "--prompt-tokens", "8"], 2, "--output-tokens is missing: how long are the answers?"),
        (["url", *LENGTHS, "--lengths", "f"], 2, "say only once how long prompts and answers are"),
        (["url", "--lengths", "none.jsonl"], 2, "--lengths none.jsonl: No such file"),
        (["url", "--prompt-tokens", "8x", "--output-tokens", "1"], 2, '"8x": "8x" is no whole number; write a number'),
        (["url", *LENGTHS, "--ttft-p99", "fast"], 2, '--ttft-p99: "fast" is no time above 0; write 500ms, 1s or 2m'),
        (["url", *LENGTHS, "--out", "no/p.json"], 2, "no/p.json: there is no folder no"),
        (["url", *LENGTHS, "--out", "."], 2, ".: is a folder; name a file in it"),
        (["url", *LENGTHS, "--report", ".."], 2, "..: is a folder; name a file in it"),
        (["url", *LENGTHS, "--api", "grpc"], 2, '--api: "grpc" is neither completions nor chat'),
        (["url", *LENGTHS, "--step-requests", "100"], 2, "100 requests a step are too few"),
        (["ftp://x", *LENGTHS], 2, 'URL: "ftp://x" is no URL; write http://host:port'),
        (["http://[::1", *LENGTHS], 2, 'URL: "http://[::1" is no URL; write http://host:port'),
        (["127.0.0.1:99999", *LENGTHS], 2, 'URL: "127.0.0.1:99999" is no URL'),
        (["http://:8000", *LENGTHS], 2, 'URL: "http://:8000" is no URL'),
        (["url", "--from-service", "127.0.0.1:0"], 2, '--from-service: "127.0.0.1:0" is no URL'),
        (["url", *LENGTHS, "--metrics-url", "http://a b"], 2, '--metrics-url: "http://a b" is no URL'),
        (["url", *LENGTHS, "--ca-file", "no.pem"], 2, '--ca-file: cannot use "no.pem"'),
        (["url", "--from-service", "127.0.0.1:1", "--ca-file", "no.pem"], 2, '--ca-file: cannot use "no.pem"'),
        (["127.0.0.1:1", *LENGTHS], 3, "no server at http://127.0.0.1:1 (Connection refused); is it running"),
        (["url", *LENGTHS, "--ttft-p99", "2ms"], 1, "the target of 0.002 s cannot be met"),
        (["url", *LENGTHS, "--model", "x"], 3, 'does not serve "x"; it serves sim'),
        (["url", "--from-service", "127.0.0.1:1"], 3, "http://127.0.0.1:1/status: "),
    ],
)
def test_mistakes_are_told_with_their_cure(
    calibrate: Callable[..., Result], arguments: list[str], exit_code: int, message: str
) -> None:
    result = calibrate(*arguments)
    assert message in result.stderr
    assert result.exit_code == exit_code
    assert "Traceback" not in result.output


def test_a_report_without_matplotlib_is_refused_before_anything_is_sent(
    calibrate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    result = calibrate("url", *LENGTHS, "--report", "r.html")
    assert result.exit_code == 2
    assert 'pip install "vllm-extproc[report]"' in result.stderr


def test_lengths_of_a_service_are_kept_with_the_steps(
    calibrate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fleet(mean: int) -> Fleet:
        lengths = Independent(Fixed(mean), Fixed(4))
        like = Server(model="sim", version="0.31.0", max_model_len=2048, kv_tokens=32_016)
        return Fleet(3, 2, (like,), lengths, 500, 0.5, ttft_target_s=1.0)

    monkeypatch.setattr(command, "_ask_fleet", lambda *_: fleet(64))
    first = calibrate("url", "--from-service", "127.0.0.1:9003", *QUICK)
    assert first.exit_code == 0, first.output
    told = first.stderr.replace("\n", " ")
    assert "lengths of 500 requests that 2 of 3 servers have served: prompts of 64 and answers of 4 tokens" in told
    assert "all prompts have 50% in common" in told
    assert "the service's target is 1 s (ttft_p99_s), this test's 0.15 s" in told
    assert "engine version is 0.32.0 here and 0.31.0 in the fleet: the profile may not fit it" in told
    profile = Profile.model_validate_json((tmp_path / "profile.json").read_bytes())
    assert (profile.lengths.prompt_tokens, profile.shared_prefix_ratio) == (64, 0.5)

    # Meanwhile the fleet has served others: the steps are of those of then.
    monkeypatch.setattr(command, "_ask_fleet", lambda *_: fleet(80))
    again = calibrate("url", "--from-service", "127.0.0.1:9003", *QUICK)
    assert again.exit_code == 0, again.output
    assert Profile.model_validate_json((tmp_path / "profile.json").read_bytes()).lengths == profile.lengths


def test_the_settings_are_of_the_pool_that_is_named_and_help_says_so(calibrate: Callable[..., Result]) -> None:
    result = calibrate("url", *LENGTHS, *QUICK, "--pool", "chat")
    assert result.exit_code == 0, result.output
    settings = yaml.safe_load(result.stdout[result.stdout.index("pools:") :])
    assert list(settings["pools"]) == ["chat"]
    told = CliRunner().invoke(app, ["calibrate", "--help"], env={"COLUMNS": "200"})
    assert "With --from-service: which pool. The printed settings are of it, too." in told.output


def test_in_a_terminal_the_steps_are_a_table_that_grows() -> None:
    out = StringIO()
    picture = Picture(Console(file=out, force_terminal=True, width=120), [])
    picture.begins(1, Try(2.5, None, None))
    picture.now(Now("measuring", 12.0, 3, 40, waiting=1.0, running=2.0, kv_usage_ratio=0.25, ttft_p50_s=0.1))
    picture.ended(
        StepRow(rate_per_s=2.5, seconds=30, requests=299, met=True, over=0, ttft_p50_s=0.1, ttft_p99_s=0.2, waiting=0.5)
    )
    picture.note("odd [thing]")
    picture.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "step 1: 2.5 requests/s (the first rate)" in text
    assert re.search(r"2\.5\s+met\s+299\s+0\s+100 ms\s+200 ms\s+0\.50", text)
    assert "note: odd [thing]" in text
