"""Does a file that is nested without end cost next to nothing, and is it told as what it is?"""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from extproc.config import load
from extproc.config.tree import MAX_DEPTH

NESTINGS = {
    "lists": "[",
    "lists, a line each": "[\n",
    "mappings": "{a: ",
    "both": "[{a: ",
    "keys": "[? ",
    "block lists": "- ",
    "block keys": "? ",
}


def calls(text: str) -> int:
    """How many Python functions a file's reading calls: its work, whatever the machine does beside it."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        load(text, "deep.yaml")
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("opening", NESTINGS.values(), ids=NESTINGS)
def test_a_file_nested_without_end_is_refused_with_its_line_and_cure(opening: str) -> None:
    (problem,) = load(opening * 100_000, "deep.yaml").problems
    said = str(problem)
    assert said.startswith("deep.yaml:")
    assert said.endswith(f": is nested deeper than {MAX_DEPTH} levels; close what is open, or flatten it")
    assert problem.line is not None
    assert problem.line <= MAX_DEPTH + 2


@pytest.mark.parametrize("opening", NESTINGS.values(), ids=NESTINGS)
def test_what_lies_below_the_deepest_level_is_not_read(opening: str) -> None:
    """The first load pays for what is set up once."""
    calls(opening * 1_000)
    assert calls(opening * 100_000) <= calls(opening * 1_000) + 10


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}")])
def test_the_limit_is_one_level_however_a_value_is_written(opening: str, closing: str) -> None:
    def codes(levels: int) -> set[str]:
        text = "x: " + opening * levels + "1" + closing * levels
        return {problem.code for problem in load(text, "deep.yaml").problems}

    assert codes(MAX_DEPTH - 1) == {"setting-unknown"}
    assert codes(MAX_DEPTH) == {"yaml-syntax"}
