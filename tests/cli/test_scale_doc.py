"""Do the commands of docs/scale.md do what `extproc scale` asks of one, and are its lists complete?"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scale.md").read_text()


def _script(name: str) -> str:
    found = re.search(rf"<!-- fleet.sh: {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


class Shell:
    """A command of the page, with a stand-in for the program that it runs."""

    def __init__(self, folder: Path, script: str, program: str, stand_in: str) -> None:
        (folder / "bin").mkdir()
        stand = folder / "bin" / program
        stand.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{folder}/asked\n{stand_in}')
        self.script = folder / "fleet.sh"
        self.script.write_text(script)
        for file in (stand, self.script):
            file.chmod(0o755)
        (folder / "servers.yaml").write_text("[]\n")
        self.folder = folder
        path = f"{folder}/bin:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "FLEET_DIR": str(folder)}

    def run(self, *arguments: str) -> tuple[int, str]:
        ended = subprocess.run(
            [self.script, *arguments], env=self.env, capture_output=True, text=True, check=False, timeout=30
        )
        return ended.returncode, ended.stdout

    @property
    def servers(self) -> list[str]:
        return list(YAML(typ="safe").load((self.folder / "servers.yaml").read_text()))

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()


def test_the_command_for_machines_that_are_on_starts_each_once(tmp_path: Path) -> None:
    shell = Shell(tmp_path, _script("ssh"), "ssh", 'case "$*" in *10.0.0.12*) exit 255 ;; esac')
    assert shell.run("start") == (0, "10.0.0.11:8000\n")
    assert shell.run("start") == (0, "10.0.0.13:8000\n")  # 12 is down
    assert shell.run("start") == (0, "10.0.0.14:8000\n")
    assert shell.run("start") == (1, "")
    assert shell.run("stop", "10.0.0.13:8000") == (0, "")
    assert shell.run("stop", "10.0.0.13:8000") == (0, "")
    assert shell.servers == ["10.0.0.11:8000", "10.0.0.14:8000"]
    assert shell.asked[-1] == "-n -o ConnectTimeout=5 10.0.0.13 sudo systemctl stop vllm"
    for address in ("10.0.0.11:8000", "10.0.0.14:8000"):
        assert shell.run("stop", address) == (0, "")
    assert shell.servers == []


def test_the_command_for_a_cloud_leaves_no_machine_behind(tmp_path: Path) -> None:
    stand_in = """\
case "$*" in
*describe*) [ ! -e broken ] || exit 1; echo 10.4.0.9 ;;
*list*) echo vllm-1 ;;
esac
"""
    shell = Shell(tmp_path, _script("cloud"), "gcloud", stand_in)
    assert shell.run("start") == (0, "10.4.0.9:8000\n")
    assert shell.servers == ["10.4.0.9:8000"]
    assert shell.run("stop", "10.4.0.9:8000") == (0, "")
    assert shell.asked[-1] == "compute instances delete vllm-1 --zone=europe-west4-a --quiet"
    assert shell.servers == []
    (tmp_path / "broken").touch()
    assert shell.run("start") == (1, "")
    made, _, deleted = shell.asked[-3:]
    assert made.startswith("compute instances create vllm-")
    assert deleted.startswith(f"compute instances delete {made.split()[3]} ")
    assert shell.servers == []


def test_every_event_is_listed() -> None:
    listed = PAGE.partition("The events:")[2].partition("\n\n")[0]
    sources = [*(ROOT / "extproc" / "actuator").glob("*.py"), ROOT / "extproc" / "cli" / "scale.py"]
    text = "".join(source.read_text() for source in sources)
    told = set(re.findall(r'\.tell\(\s*"([a-z]+)"', text)) | {"wait"}
    told |= set(
        re.findall(r'^    [A-Z]+ = "([a-z]+)"', text.partition("class Change(StrEnum)")[2].partition("@")[0], re.M)
    )
    assert set(re.findall(r"`([a-z]+)`", listed)) == told


@pytest.mark.parametrize("name", ["ssh", "cloud"])
def test_a_mistyped_action_starts_nothing(tmp_path: Path, name: str) -> None:
    shell = Shell(tmp_path, _script(name), "ssh" if name == "ssh" else "gcloud", "")
    assert shell.run("strat") == (2, "")
    assert shell.servers == []
    assert not (tmp_path / "asked").exists()
