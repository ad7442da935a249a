"""`extproc simulate`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from extproc.cli.simulate import simulate
from extproc.sim.policies import BASELINES, PROFILE_POLICIES
from extproc.sim.workloads import WORKLOADS

DOC = Path(__file__).parents[2] / "docs" / "simulate.md"
SMALL = ("W2", "--servers", "3", "--seconds", "4")


def invoke(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(simulate)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_the_table_has_every_profile_and_baseline_and_marks_the_best_of_each_column() -> None:
    result = invoke(*SMALL)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("W2: 3 x a100-8b"))
    assert lines[at + 1].split() == ["policy", "mean", "p50", "p90", "p99", "answer", "hits", "%", "share", "tokens/s"]
    rows = [line.split() for line in lines[at + 2 : at + 2 + len(PROFILE_POLICIES) + len(BASELINES)]]
    assert [row[0] for row in rows] == [*PROFILE_POLICIES, *BASELINES]
    for column in range(1, 9):
        values = {row[column] for row in rows if row[column].endswith("*")}
        numbers = [float(row[column].rstrip("*").replace(",", "")) for row in rows]
        best = max(numbers) if column in (6, 8) else min(numbers)
        assert {float(value.rstrip("*").replace(",", "")) for value in values} == {best}


def test_without_a_terminal_each_run_is_told_in_a_line_when_it_is_done() -> None:
    result = invoke(*SMALL, "--profile", "session", "--baseline", "random", "--seed", "1", "--seed", "2")
    lines = result.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "1/4 W2 3 servers, seed 1, session",
        "2/4 W2 3 servers, seed 1, random",
        "3/4 W2 3 servers, seed 2, session",
        "4/4 W2 3 servers, seed 2, random",
    ]
    assert "means over seeds 1, 2" in result.stdout


def test_only_the_named_policies_run() -> None:
    result = invoke(*SMALL, "--profile", "cache-aware")
    assert "cache-aware" in result.stdout
    assert "session" not in result.stdout
    assert "round-robin" not in result.stdout
    assert result.stdout.count("*") == 1, "only in the legend: a single policy is not the best of anything"


def test_json_and_csv_have_every_run_and_are_the_same_each_time(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json", "a.csv")]
    options = (*SMALL, "--servers", "4", "--profile", "all", "--seed", "7")
    assert invoke(*options, "--json", str(files[0])).exit_code == 0
    assert invoke(*options, "--json", str(files[1]), "--csv", str(files[2])).exit_code == 0
    assert files[0].read_text() == files[1].read_text()
    whole = json.loads(files[0].read_text())
    assert whole["grid"]["seeds"] == [7]
    assert [(run["servers"], run["policy"]) for run in whole["runs"]] == [
        (servers, policy) for servers in (3, 4) for policy in PROFILE_POLICIES
    ]
    for run in whole["runs"]:
        assert sum(run["requests_by_server"]) == run["requests"]
        assert len(run["requests_by_server"]) == run["servers"]
        assert 0 < run["ttft_p50_s"] <= run["ttft_p90_s"] <= run["ttft_p99_s"]
    with files[2].open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["ttft_mean_s"]) for row in rows] == [run["ttft_mean_s"] for run in whole["runs"]]


def test_a_slow_server_gets_less_of_the_prompts(tmp_path: Path) -> None:
    """Ten times slower, in a fleet of four that shares nothing: far less than a quarter, by what it is seen to owe."""
    path = tmp_path / "out.json"
    invoke(
        "W5",
        "--servers",
        "4",
        "--seconds",
        "15",
        "--profile",
        "cache-aware",
        "--slow-server",
        "10",
        "--json",
        str(path),
    )
    (run,) = json.loads(path.read_text())["runs"]
    tokens = run["prompt_tokens_by_server"]
    assert tokens[0] < 0.5 * sum(tokens) / 4


def test_real_bodies_can_be_asked_for() -> None:
    result = invoke(*SMALL, "--profile", "prefix-hash", "--full-bodies")
    assert result.exit_code == 0, result.output
    assert "prefix-hash" in result.stdout


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_chart_is_written_in_the_format_of_its_name(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"chart.{ending}"
    result = invoke(*SMALL, "W3", "--profile", "cache-aware", "--baseline", "round-robin", "--plot", str(path))
    assert result.exit_code == 0, result.output
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if ending == "png" else b"<?xml")
    if ending == "svg":
        assert b"round-robin" in content


def test_without_matplotlib_a_chart_is_refused_at_once_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = invoke("all", "--plot", "chart.png")
    assert result.exit_code == 2
    assert result.stderr == ('extproc: --plot needs matplotlib. Install it with: pip install "vllm-extproc[report]"\n')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("W10",), 'WORKLOAD: unknown "W10"; did you mean "W1"?'),
        (("W1", "--profile", "cache-awre"), '--profile: unknown "cache-awre"; did you mean "cache-aware"?'),
        (("W1", "--baseline", "roundrobin"), '--baseline: unknown "roundrobin"; did you mean "round-robin"?'),
        (("W1", "--profile", "random"), '--profile: unknown "random"'),
        (("W1", "--preset", "instant"), '--preset: unknown "instant"; use one of: a100-8b, cpu-tiny'),
        (("W4", "--preset", "cpu-tiny"), "W4 on cpu-tiny: its longest request has"),
        (("W1", "--plot", "chart.gif"), "--plot chart.gif: the name must end with one of .png, .svg, .pdf"),
        (("W1", "--json", "/nowhere/at/all.json"), "/nowhere/at/all.json: there is no folder /nowhere/at"),
        (("W6", "--servers", "1", "--seconds", "1"), "W6: nothing arrives within 1 s; make it longer"),
    ],
)
def test_a_mistake_is_told_with_its_cure(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_names_are_taken_in_any_case() -> None:
    result = invoke("w2", "--servers", "2", "--seconds", "2", "--profile", "Session")
    assert result.exit_code == 0
    assert result.stdout.lstrip().startswith("W2: 2 x a100-8b")


def test_the_manual_names_every_workload_policy_and_option() -> None:
    text = DOC.read_text()
    for name in (*WORKLOADS, *PROFILE_POLICIES, *BASELINES):
        assert f"`{name}`" in text, name
    help_text = invoke("--help").output
    for option in ("profile", "baseline", "servers", "seconds", "seed", "preset", "slow-server", "full-bodies"):
        assert f"--{option}" in help_text
        assert f"`--{option}" in text, option
    for option in ("json", "csv", "plot"):
        assert f"--{option} " in help_text
        assert f"`--{option} FILE`" in text, option


def test_the_python_of_the_manual_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = DOC.read_text().split("```python\n")[1].split("```")[0]
    exec(code, {})
    assert capsys.readouterr().out.startswith("W2\n4\n| policy | mean |")
