"""Do the manual's tables say what the code has, and do its examples work?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extproc.config import load
from extproc.config.reference import rules_table, settings_table

DOCS = Path(__file__).parents[2] / "docs"
CURE = "run `python -m extproc.config.reference` and paste its table here"


def between(page: str, name: str) -> str:
    text = (DOCS / page).read_text()
    found = re.search(rf"<!-- {name}: .*?-->\n(.*?)\n<!-- end of {name} -->", text, re.DOTALL)
    assert found, f"{page} has no table of {name}"
    return found.group(1)


def test_the_table_of_settings_is_that_of_the_schema() -> None:
    assert between("configuration.md", "settings") == settings_table(), CURE


def test_the_table_of_rules_is_that_of_the_check() -> None:
    assert between("envoy.md", "rules") == rules_table(), CURE


def test_the_table_of_rules_for_manifests_is_that_of_the_check() -> None:
    assert between("drain.md", "kubernetes-rules") == rules_table(kubernetes=True), CURE


def test_every_setting_has_a_description() -> None:
    assert not [row for row in settings_table().splitlines() if row.endswith("|  |")]


EXAMPLES = re.findall(r"```yaml\n(.*?)```", (DOCS / "configuration.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=["envoy", "own"])
def test_the_examples_of_the_manual_can_be_loaded(text: str) -> None:
    loaded = load(text, "example")
    assert loaded.problems == ()
    assert loaded.settings is not None
    assert loaded.settings.pools["vllm"].endpoints[0].weight == 2
