"""Which are the oldest dependencies that pyproject.toml allows? Prints them for pip, which `make test-oldest` uses."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)>=([0-9.]+)")


def constraints() -> list[str]:
    """One `name==version` for each dependency of the service itself.

    Raises:
        ValueError: one of them has no lower bound.
    """
    pinned = []
    for text in tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]:
        found = _REQUIREMENT.match(text)
        if found is None:
            raise ValueError(f"{text}: no lower bound")
        pinned.append(f"{found[1]}=={found[2]}")
    return pinned


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints()) + "\n")
