"""Where is a program that is no Python package?"""

from __future__ import annotations

import os
import shutil

import pytest


def program(name: str, package: str) -> str:
    """Its path. Where it is missing the test is skipped, and says how to install it (`package` is Debian's name); in
    continuous integration, where it is installed before, the test fails."""
    path = shutil.which(name)
    if path is not None:
        return path
    missing = f"the program {name} is missing; Debian, Ubuntu: sudo apt-get install --no-install-recommends {package}"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
