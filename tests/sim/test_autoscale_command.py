"""`extproc simulate --autoscale`: a table, files, names, and errors that say what to do."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from extproc.cli.main import app
from extproc.sim.scaling.scenarios import POLICIES, SCENARIOS

runner = CliRunner()


def test_a_scenario_gives_a_table_and_the_files_that_were_asked_for(tmp_path: Path) -> None:
    rows, moments, chart = (tmp_path / name for name in ("rows.json", "fleet.csv", "fleet.svg"))
    files = ["--json", str(rows), "--csv", str(moments), "--plot", str(chart)]
    names = ["--policy", "ours", "--policy", "keda-rate"]
    result = runner.invoke(app, ["simulate", "--autoscale", "from-zero", *names, *files])
    assert result.exit_code == 0, result.output
    assert "from-zero: requests come, and there is no server" in result.output
    told = {row["policy"]: row for row in json.loads(rows.read_text())}
    assert list(told) == ["ours", "keda-rate"]
    for row in told.values():
        assert 0.0 < row["slo_attainment"] < 1.0
        assert row["replica_hours"] > 0.0
        assert row["clairvoyant_replica_hours"] is None
    fleet = list(csv.DictReader(moments.read_text().splitlines()))
    assert {line["policy"] for line in fleet} == {"ours", "keda-rate"}
    assert max(int(line["ready"]) for line in fleet) >= 2
    assert chart.read_text().startswith("<?xml")


def test_the_names_are_listed() -> None:
    result = runner.invoke(app, ["simulate", "--list"])
    assert result.exit_code == 0
    assert all(f"  {name} " in result.output for name in (*SCENARIOS, *POLICIES))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--autoscale", "dya"], 'unknown "dya"; did you mean "day"'),
        (["--autoscale", "day", "--policy", "our"], 'unknown "our"; did you mean "ours"'),
        (["--autoscale", "all"], "one scenario at a time"),
        (["--autoscale", "day", "W1"], "only --policy, --seed and the files go with it"),
        (["--policy", "ours", "W1"], "--policy goes with --autoscale"),
        ([], "name a workload"),
        (["--autoscale", "day", "--csv", "/nowhere/at/all.csv"], "there is no folder /nowhere/at"),
        (["--autoscale", "day", "--plot", "day.xls"], "must end with"),
    ],
)
def test_a_mistake_is_named_with_its_cure(options: list[str], words: str) -> None:
    result = runner.invoke(app, ["simulate", *options])
    assert result.exit_code == 2
    assert words in result.output
