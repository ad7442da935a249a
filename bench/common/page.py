"""How is a page written by a run kept together with what people add to it?"""

from __future__ import annotations

from pathlib import Path

MARKER = "<!-- Above: written by the run. Below: written by hand, kept by the run. -->"


def write(path: Path, generated: str) -> None:
    """Write the generated part and keep what stands below the marker."""
    old = path.read_text() if path.exists() else ""
    _, found, by_hand = old.partition(MARKER)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(generated + (f"\n{MARKER}{by_hand}" if found else ""))
