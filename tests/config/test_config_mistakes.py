"""Does every mistake give exactly its message?

`mistakes/NAME.patch.yaml` makes one mistake in a shipped file by replacing text, and lists all problems that must come
of it. `mistakes/NAME.yaml` is a file of its own, with the output beside it in `NAME.expected`. NAME starts with the
code it is about; what follows "--" tells variants apart.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer import Typer
from typer.testing import CliRunner

from extproc.cli.check import check as check_command
from extproc.config.check import all_codes, check
from extproc.config.problems import Severity
from tests.support.mistakes import assert_told

ROOT = Path(__file__).parents[2]
MISTAKES = Path(__file__).parent / "mistakes"
PATCHES = sorted(MISTAKES.glob("*.patch.yaml"))
FILES = sorted(path for path in MISTAKES.glob("*.yaml") if path not in PATCHES)
ONLY_BY_BYTES = {"file-unreadable", "file-not-text"}  # test_config_files.py


def patched(patch: dict[str, Any]) -> str:
    text = (ROOT / "envoy" / patch["base"]).read_text()
    for edit in patch["edits"]:
        assert text.count(edit["find"]) == 1, f"this must stand once in {patch['base']}:\n{edit['find']}"
        text = text.replace(edit["find"], edit["replace"])
    return text


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.name.removesuffix(".patch.yaml"))
def test_a_mistake_in_a_shipped_file_gives_its_message_at_its_line(path: Path) -> None:
    """Cases a01, a03, a09, a13, a18, a20, a21, a28, b01, b03, b05, b10, b11, d10: a file for each rule's mistake."""
    patch = YAML(typ="safe", pure=True).load(path)
    text = patched(patch)
    found = check(text, patch["base"])
    assert_told(path, patch, text, found)
    assert int(any(problem.severity is Severity.ERROR for problem in found)) == patch["exit"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_mistake_in_an_own_file_gives_its_message(path: Path) -> None:
    """Cases b03, d10."""
    app = Typer()
    app.command()(check_command)
    result = CliRunner().invoke(app, [str(path)])
    shown = result.output.replace(str(path), path.name)
    expected = path.with_suffix(".expected").read_text().splitlines()
    assert shown.splitlines()[:-1] == expected[1:]
    assert f"exit {result.exit_code}" == expected[0]


def test_every_code_has_a_mistake() -> None:
    shown = {code for path in PATCHES for code in re.findall(r"^- code: (\S+)$", path.read_text(), re.MULTILINE)}
    manifests = (Path(__file__).parent / "manifests").glob("*.patch.yaml")  # test_config_manifests.py
    shown |= {path.name.split(".")[0].split("--")[0] for path in manifests}
    shown |= {code for path in FILES for code in re.findall(r"\[([a-z0-9-]+)\]$", _expected(path), re.MULTILINE)}
    assert {code.name for code in all_codes()} == shown | ONLY_BY_BYTES


def _expected(path: Path) -> str:
    return path.with_suffix(".expected").read_text()
