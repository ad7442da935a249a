"""The sentence that tells why a server was picked. Costs: waiting, unknown, KV usage, in flight."""

from __future__ import annotations

import pytest

from extproc.cli._demo_why import Cost, reason


@pytest.mark.parametrize(
    ("chosen", "others", "sentence"),
    [
        ((0, 0, 0.04, 1), [], "the only one that can be used"),
        ((0, 0, 0.04, 1), [(3, 0, 0.1, 4), (1, 0, 0.0, 2)], "fewest waiting 0 (others 1–3)"),
        (
            (0, 0, 0.04, 1),
            [(3, 0, 0.1, 4), (0, 0, 0.07, 2), (0, 0, 0.12, 1)],
            "fewest waiting 0 (others 3), lowest KV 4.0% (7.0%–12.0%)",
        ),
        ((2, 0, 0.04, 1), [(2, 0, 0.07, 2)], "2 waiting, lowest KV 4.0% (7.0%)"),
        ((0, 0, 0.04, 1), [(0, 1, 0.04, 1)], "0 waiting, and its load is known"),
        ((0, 0, 0.0, 1), [(0, 0, 0.0, 2), (0, 0, 0.1, 0)], "0 waiting, KV 0.0%, fewest in flight 1 (2)"),
        ((0, 0, 0.0, 1), [(0, 0, 0.0, 1), (0, 0, 0.0, 3)], "0 waiting, KV 0.0%: drawn among 2 equal ones"),
    ],
)
def test_a_reason_names_what_decided_and_against_what(chosen: Cost, others: list[Cost], sentence: str) -> None:
    """R4: fewest waiting, then lowest KV usage."""
    assert reason(chosen, others) == sentence
