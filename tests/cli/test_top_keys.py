"""Keys as terminals send them."""

from __future__ import annotations

import pytest

from extproc.cli._top_keys import keys_in


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("q", ["q"]),
        ("<>", ["<", ">"]),
        ("\x1b[A\x1b[B", ["up", "down"]),
        ("\x1bOC", ["right"]),
        ("\x1b[5~\x1b[6~", ["page up", "page down"]),
        ("\x1b[H\x1b[1~", ["home", "home"]),
        (" \t", ["space", "tab"]),
        ("\x1b[15;5~q", ["q"]),  # control and F5
        ("\x1b[", []),
        ("\x1b", []),
        ("\x1bq", ["q"]),
        ("é", ["é"]),
        ("", []),
    ],
)
def test_keys_have_names_and_what_is_unknown_is_nothing(text: str, wanted: list[str]) -> None:
    assert keys_in(text) == wanted
