"""Which YAML does a page of docs/ show under a heading? A test that uses it keeps the page true."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.support.envoy_wheels import ROOT

_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def yaml_under(page: str, heading: str, *, replace: dict[str, str] | None = None) -> list[Any]:
    """The section's YAML blocks, in order, as data; `replace`: texts to put others in the place of, before reading.

    Raises:
        AssertionError: there is no such section, or a text to replace does not stand in it.
    """
    section = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, f"docs/{page} has no section {heading!r}"
    for old, new in (replace or {}).items():
        assert old in section, f"docs/{page}, section {heading!r}: {old!r} does not stand in it"
        section = section.replace(old, new)
    return [yaml.safe_load(block) for block in _BLOCK.findall(section)]
