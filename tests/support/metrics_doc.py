"""What does docs/metrics.md say that the service exports?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
_SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@dataclass(frozen=True)
class Documented:
    kind: str  # counter, gauge or histogram
    labels: frozenset[str]


def documented() -> dict[str, Documented]:
    """By name, of counters with `_total`."""
    found: dict[str, Documented] = {}
    for line in PAGE.read_text().splitlines():
        if not line.startswith("| `extproc_"):
            continue
        name, kind, labels, text = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:5])
        assert name.strip("`") not in found, f"{name} is documented twice"
        assert text, name
        found[name.strip("`")] = Documented(kind, frozenset(re.findall(r"`([^`]+)`", labels)))
    assert len(found) > 50
    return found


def series_names() -> dict[str, frozenset[str]]:
    """As PromQL sees them: the labels, by the name of the series."""
    found: dict[str, frozenset[str]] = {}
    for name, each in documented().items():
        for suffix in _SUFFIXES[each.kind]:
            found[name + suffix] = each.labels | ({"le"} if suffix == "_bucket" else set())
    return found
