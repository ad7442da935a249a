"""The manifests of envoy/istio, as `kubectl kustomize` would build them, and as files."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.support.programs import program

Json = dict[str, Any]

FOLDER = Path(__file__).parents[2] / "envoy" / "istio"
APPLIED = ("mesh", "gateway", "sidecar", "outside", "inference-pool")  # folders that are applied


def objects(*files: str) -> list[Json]:
    """What stands in files of envoy/istio."""
    return [item for name in files for item in yaml.safe_load_all((FOLDER / name).read_text()) if item]


def settings(folder: str) -> Json:
    """extproc's settings in a folder."""
    found: Json = yaml.safe_load((FOLDER / folder / "settings.yaml").read_text())
    return found


@functools.cache
def _built(folder: str) -> str:
    command = [program("kubectl", "kubernetes-client"), "kustomize", str(FOLDER / folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout


def built(folder: str) -> list[Json]:
    """What `kubectl apply -k` would send. Without kubectl the test is skipped."""
    return [item for item in yaml.safe_load_all(_built(folder)) if item]


def envoy_filter(folder: str) -> Json:
    (found,) = objects(f"{folder}/envoy-filter.yaml")
    return found


def mesh_objects() -> list[Json]:
    """All that istiod makes clusters and routes of, for a gateway or a sidecar."""
    files = ["extproc/extproc.yaml", "mesh/vllm-service.yaml", "mesh/destination-rules.yaml"]
    return objects(*files, "gateway/gateway.yaml", "sidecar/virtual-service.yaml")
