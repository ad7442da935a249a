"""What do the manual's pages say that the service exports?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "metrics.md"
OF_WORKERS = DOCS / "workers.md"  # where there are several
_SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@dataclass(frozen=True)
class Documented:
    kind: str  # counter, gauge or histogram
    labels: frozenset[str]


def documented(page: Path = PAGE) -> dict[str, Documented]:
    """By name, of counters with `_total`."""
    found: dict[str, Documented] = {}
    for line in page.read_text().splitlines():
        if not line.startswith("| `extproc_"):
            continue
        name, kind, labels, text = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:5])
        assert name.strip("`") not in found, f"{name} is documented twice"
        assert text, name
        found[name.strip("`")] = Documented(kind, frozenset(re.findall(r"`([^`]+)`", labels)))
    assert found, f"{page.name} lists no metric"
    return found


def series_names() -> dict[str, frozenset[str]]:
    """As PromQL sees them: the labels, by the name of the series."""
    found: dict[str, frozenset[str]] = {}
    for name, each in (documented() | documented(OF_WORKERS)).items():
        for suffix in _SUFFIXES[each.kind]:
            found[name + suffix] = each.labels | ({"le"} if suffix == "_bucket" else set())
    return found
