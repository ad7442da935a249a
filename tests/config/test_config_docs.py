"""Do the manual's tables say what the code has, and do its examples work?"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extproc.config import load
from extproc.config.reference import TABLES, marked, settings_table, write

DOCS = Path(__file__).parents[2] / "docs"
CURE = "run `python -m extproc.config.reference`"


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, tables in TABLES.items() for name in tables])
def test_a_table_of_the_manual_says_what_the_code_has(page: str, name: str) -> None:
    found = marked(name).search((DOCS / page).read_text())
    assert found, f"{page} has no table of {name}"
    assert found[2] == TABLES[page][name](), CURE


def test_the_tables_are_written_between_their_marks_and_nothing_else_is(tmp_path: Path) -> None:
    for page in TABLES:
        text = (DOCS / page).read_text()
        for name in TABLES[page]:
            text = marked(name).sub(r"\g<1>old\g<3>", text)
        (tmp_path / page).write_text(text)
    write(tmp_path)
    for page in TABLES:
        assert (tmp_path / page).read_text() == (DOCS / page).read_text(), CURE


def test_every_setting_has_a_description_and_a_kind_in_words() -> None:
    rows = [row for row in settings_table().splitlines() if row.startswith("| `")]
    assert len(rows) > 80
    assert not [row for row in rows if row.endswith("|  |") or "=" in row.split("|")[2]]


def test_each_section_stands_once_under_its_name() -> None:
    headings = [line for line in settings_table().splitlines() if line.startswith("#")]
    assert len(headings) == len(set(headings))
    assert {"### scheduling", "### the process", "### pools", "### pools: discovery"} <= set(headings)


EXAMPLES = re.findall(r"```yaml\n(.*?)```", (DOCS / "configuration.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("text", EXAMPLES, ids=["envoy", "own"])
def test_the_examples_of_the_manual_can_be_loaded(text: str) -> None:
    loaded = load(text, "example")
    assert loaded.problems == ()
    assert loaded.settings is not None
    assert loaded.settings.pools["vllm"].endpoints[0].weight == 2
