"""What the section `autoscale` of a pool comes to, and what is said of a profile that cannot be used."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer import Exit

from extproc.autoscale.cold_start import ColdStart
from extproc.autoscale.policy import Policy
from extproc.autoscale.profile import Profile
from extproc.autoscale.schedule import Schedule
from extproc.cli._config import settings_from
from extproc.config import load
from extproc.config.autoscale_settings import AutoscaleSettings
from extproc.config.check import check
from extproc.config.profile_file import read_profile
from tests.autoscale.test_profile import GIVEN

ROOT = Path(__file__).parents[2]


def own(profile: Path) -> str:
    return f"""pools:
  vllm:
    endpoints: [{{address: "10.0.0.1:8000"}}]
    autoscale:
      max_replicas: 8
      profile: {json.dumps(str(profile))}
"""


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(GIVEN | changes, indent=1))
    return path


def test_the_settings_become_a_policy() -> None:
    pytest.importorskip("croniter")
    settings = AutoscaleSettings.model_validate(
        {
            "max_replicas": 8,
            "min_replicas": 2,
            "ttft_p99_s": 0.5,
            "design_growth_per_s2": 0.01,
            "cold_start": {"node_s": 90, "weights_gb": 141},
            "schedules": [{"start": "0 8 * * 1-5", "end": "0 18 * * 1-5", "replicas": 4, "zone": "Europe/Berlin"}],
            "window_s": 30,
            "sync_s": 30,
            "down_after_s": 600,
            "stale_after_s": 120,
        }
    )
    profile = Profile.model_validate(GIVEN)
    assert settings.policy(profile, scrape_s=1.5, sample_stale_after_s=3.0) == Policy(
        max_replicas=8,
        min_replicas=2,
        calibration=profile.calibration,
        ttft_target_s=0.5,
        design_growth_per_s2=0.01,
        cold_start=ColdStart(node_s=90.0, weights_gb=141.0),
        schedules=(Schedule("0 8 * * 1-5", "0 18 * * 1-5", 4, "Europe/Berlin"),),
        window_s=30.0,
        scrape_s=1.5,
        sync_s=30.0,
        sample_stale_after_s=3.0,
        down_after_s=600.0,
        stale_after_s=120.0,
    )


def test_what_is_not_said_is_as_the_policy_has_it_and_the_target_is_the_profiles() -> None:
    settings, default = AutoscaleSettings(max_replicas=8), Policy(max_replicas=8)
    assert settings.policy(None, scrape_s=default.scrape_s, sample_stale_after_s=10.0) == default
    profile = Profile.model_validate(GIVEN)
    assert settings.policy(profile, scrape_s=1.0, sample_stale_after_s=3.0).ttft_target_s == profile.ttft_p99_target_s


EXAMPLES = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "autoscale.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_of_the_manual_can_be_loaded(text: str) -> None:
    pytest.importorskip("croniter")
    if not text.startswith("pools:"):
        text = f'pools:\n  vllm:\n    endpoints: [{{address: "10.0.0.1:8000"}}]\n{text}'
    loaded = load(text, "example")
    assert loaded.problems == ()
    assert loaded.settings is not None
    assert loaded.settings.pools["vllm"].autoscale is not None


def test_without_croniter_a_schedule_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "croniter", None)
    text = own(Path("x")).replace("profile: ", "schedules: [{start: 0 8 * * *, end: 0 9 * * *, replicas: 2}] #")
    (problem,) = load(text, "own.yaml").problems
    assert str(problem) == (
        "own.yaml:6: pools.vllm.autoscale.schedules[0]: schedules need croniter; install vllm-extproc[autoscale]"
    )


def test_a_good_profile_is_no_problem(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert check(own(path), "own.yaml") == ()
    assert read_profile(path) == Profile.model_validate(GIVEN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "profile.json: there is no such file"),
        ("", "profile.json: is empty"),
        ("{", "profile.json"),
        ("[1]", "profile.json:1: is no profile of extproc calibrate"),
        ('{"a": 1,\n"a": 2}', "profile.json:2: a: stands here again, first on line 1"),
        ({"knee_per_s": 0}, ": knee_per_s: 0 is out of range"),
        ({"knee_per_s": "fast"}, ': knee_per_s: "fast" is not a number'),
        ({"version": 2}, ": version: unknown 2"),
        ({"steps": [GIVEN["steps"][0] | {"waiting": -1}]}, ": steps[0].waiting: -1 is out of range"),
        ({"steps": GIVEN["steps"][::-1]}, "the steps must have rising rates"),
        ({"server": {}}, ": server.model: is not set"),
    ],
    ids=str,
)
def test_a_profile_that_cannot_be_used_is_said_with_its_place_and_the_cure(
    tmp_path: Path, text: str | dict[str, Any] | None, words: str
) -> None:
    path = tmp_path / "profile.json"
    if isinstance(text, dict):
        written(tmp_path, **text)
    elif text is not None:
        path.write_text(text)
    (problem,) = check(own(path), "own.yaml")
    assert (problem.code, problem.line, problem.field) == ("autoscale-profile", 6, "pools.vllm.autoscale.profile")
    assert words in problem.message
    assert str(problem).startswith(f"own.yaml:6: pools.vllm.autoscale.profile: {path}")
    assert problem.cure == "write it with extproc calibrate, or remove the setting"
    with pytest.raises(ValueError) as raised:
        read_profile(path)
    assert str(raised.value) == problem.message


def test_in_an_envoy_yaml_it_is_said_too(tmp_path: Path) -> None:
    text = (ROOT / "envoy" / "envoy.yaml").read_text()
    missing = tmp_path / "none.json"
    text = text.replace("vllm: {}  ", f"vllm: {{autoscale: {{max_replicas: 4, profile: {missing}}}}}  ")
    (problem,) = check(text, "envoy.yaml")
    assert problem.field == "node.metadata.extproc.pools.vllm.autoscale.profile"
    assert "there is no such file" in problem.message


def test_the_service_is_not_started_with_a_profile_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "own.yaml"
    config.write_text(own(tmp_path / "none.json"))
    with pytest.raises(Exit) as raised:
        settings_from(None, config)
    assert raised.value.exit_code == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert "none.json: there is no such file" in told[0]
    assert told[1] == "extproc: not started, because of the errors above"
    config.write_text(own(written(tmp_path)))
    autoscale = settings_from(None, config).pools["vllm"].autoscale
    assert autoscale is not None
    assert autoscale.max_replicas == 8


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ('start: "8:00", end: "0 18 * * *", replicas: 4', '[0]: "8:00" has not five fields; write minute hour day'),
        ('start: "0 25 * * *", end: "0 18 * * *", replicas: 4', '[0]: "0 25 * * *" is no time of cron ('),
        (
            'start: "0 8 * * *", end: "0 18 * * *", replicas: 4, zone: Europe/Berlln',
            '[0]: unknown time zone "Europe/Berlln"; write a name such as Europe/Berlin or UTC',
        ),
        ('start: "0 8 * * *", end: "0  8 * * *", replicas: 4', "[0]: a schedule starts and ends at"),
        (
            'start: "0 8 * * *", end: "0 18 * * *", replicas: 0',
            "[0].replicas: 0 is out of range; it must be at least 1",
        ),
        ('start: "0 8 * * *", end: "0 18 * * *"', "[0].replicas: is not set; add it"),
    ],
)
def test_a_schedule_that_cannot_be_meant_is_said_with_its_place_and_the_cure(schedule: str, words: str) -> None:
    pytest.importorskip("croniter")
    text = own(Path("x")).replace("profile: ", f"schedules: [{{{schedule}}}] #")
    (problem,) = load(text, "own.yaml").problems
    assert str(problem).startswith(f"own.yaml:6: pools.vllm.autoscale.schedules{words}")
