"""Files that others may write, as a list of servers: whatever is in one, it is read, or what is wrong is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config import endpoints_file
from extproc.config.load import load

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "aliases that expand without end": BOMB,
    "an alias of itself": "a: &a [*a]\nendpoints: *a\n",
    "5,000 digits": "endpoints: [{address: '10.0.0.1:8000', weight: " + "9" * 5000 + "}]\n",
    "5,000 digits as an address": "[" + "9" * 5000 + "]\n",
    "a hexadecimal number of 5,000 digits": "endpoints: [{address: '10.0.0.1:8000', weight: 0x" + "f" * 5000 + "}]\n",
    "an exponent": "endpoints: [{address: '10.0.0.1:8000', weight: 1e999999}]\n",
    "a port of 5,000 digits": "['10.0.0.1:" + "9" * 5000 + "']\n",
    "a tag of Python": "!!python/object/apply:os.system ['touch /tmp/owned']\n",
    "deep": "[" * 100_000,
    "keys of all kinds": "? [a]\n: b\n? {c: d}\n: e\n1: f\nnull: g\n",
    "NUL": "endpoints: ['10.0.0.1:8000\0']\n",
    "a date": "endpoints: [{address: 2001-12-14t21:59:43.10-05:00}]\n",
    "binary": "endpoints: [!!binary R0lGODlhDAAMAIQAAP]\n",
    "a set": "endpoints: !!set {a, b}\n",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_file_of_servers_ends_the_service(kind: str) -> None:
    """An exception here would be taken for a fault of our own, and go up to the end of the process."""
    servers, problems = endpoints_file.read(HOSTILE[kind].encode(), "servers.yaml")
    assert servers is None
    assert problems
    for problem in problems:
        assert str(problem).startswith("servers.yaml")
        assert len(str(problem)) < 20_000


@pytest.mark.parametrize("kind", HOSTILE)
def test_nor_does_a_changed_configuration(kind: str) -> None:
    loaded = load(HOSTILE[kind].encode(), "extproc.yaml")
    assert loaded.settings is None
    assert loaded.problems


@given(
    st.lists(
        st.sampled_from(
            [
                "&a ",
                "*a",
                "[",
                "]",
                "{",
                "}",
                ": ",
                ", ",
                "- ",
                "\n",
                "  ",
                "9" * 4400,
                "!!int ",
                "0x",
                "'",
                "? ",
                "<<",
                "e9",
            ]
        ),
        max_size=30,
    )
)
def test_no_text_of_yamls_own_words_raises(words: list[str]) -> None:
    text = "".join(words)
    endpoints_file.read(text.encode(), "servers.yaml")
    load(text.encode(), "extproc.yaml")


def test_a_tag_of_python_runs_nothing() -> None:
    owned = Path("/tmp/owned-by-extproc-test")
    load(f"a: !!python/object/apply:os.system ['touch {owned}']\n".encode(), "extproc.yaml")
    assert not owned.exists()
