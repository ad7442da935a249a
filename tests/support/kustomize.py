"""What does a kustomization make? `kubectl kustomize` says so, and kustomize's own warnings count as mistakes."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

Objects = dict[tuple[str, str], dict[str, Any]]


@cache
def build(folder: Path) -> Objects:
    """Its objects by kind and name, not to be changed. Skips without kubectl, and fails without it in continuous
    integration."""
    done = subprocess.run([_kubectl(), "kustomize", folder], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    items = list(yaml.safe_load_all(done.stdout))
    made = {(item["kind"], item["metadata"]["name"]): item for item in items}
    assert len(made) == len(items), "two objects of one kind have one name"
    return made


def _kubectl() -> str:
    path = shutil.which("kubectl")
    if path is not None:
        return path
    missing = "kubectl, which has kustomize in it, is missing"
    if os.environ.get("CI"):
        pytest.fail(missing)
    pytest.skip(missing)
