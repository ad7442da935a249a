"""Does real Envoy agree: with the shipped files, and with what is said to be refused by it?"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.config.test_config_mistakes import MISTAKES, patched
from tests.support.envoy_wheels import ROOT, binary, versions

pytestmark = pytest.mark.envoy

IN_KUBERNETES = ROOT / "envoy" / "kubernetes" / "base" / "envoy.yaml"
SHIPPED = [*sorted((ROOT / "envoy").glob("envoy*.yaml")), IN_KUBERNETES]
REFUSED = (
    "eds-cluster-undefined",
    "envoy-field-unknown",
    "envoy-field-value",
    "envoy-field-value--duration",
    "ext-proc-after-router",
    "fallback-missing",
    "node-identity--eds",
    "request-trailers-not-sent",
    "static-address",
    "yaml-boolean",
    "yaml-merge",
)
SILENT = (
    "buffer-missing",
    "eds-elsewhere--ads",
    "eds-load-assignment",
    "eds-protocol",
    "ext-proc-cluster-undefined",
    "immediate-response-off",
    "mutation-ignored",
    "mutation-refused",
    "pool-one-address",
    "pool-one-address--dns-cluster",
    "route-body-not-sent",
    "route-buffer-off",
    "route-buffer-off--host",
    "route-ext-proc-off",
    "route-ext-proc-off--filter",
    "route-ext-proc-off--generic",
    "route-ext-proc-off--mode",
    "route-metadata-key",
    "route-pool",
    "route-profile",
    "untyped-namespace-missing",
    "untyped-namespace-missing--route",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "version" in metafunc.fixturenames:
        metafunc.parametrize("version", versions(metafunc.config.getoption("--envoy-versions")))


def validate(version: str, path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(binary(version)), "--mode", "validate", "-c", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: str(path.relative_to(ROOT / "envoy")))
def test_envoy_accepts_a_shipped_file(version: str, path: Path) -> None:
    result = validate(version, path)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("name", REFUSED)
def test_envoy_refuses_what_is_said_to_be_refused(version: str, name: str, tmp_path: Path) -> None:
    text = patched(YAML(typ="safe", pure=True).load(MISTAKES / f"{name}.patch.yaml"))
    path = tmp_path / "envoy.yaml"
    path.write_text(text)
    assert validate(version, path).returncode != 0


@pytest.mark.parametrize("name", SILENT)
def test_envoy_accepts_what_goes_wrong_silently(version: str, name: str, tmp_path: Path) -> None:
    """These mistakes are the reason for the check: Envoy starts with them and routes nothing as picked."""
    path = tmp_path / "envoy.yaml"
    path.write_text(patched(YAML(typ="safe", pure=True).load(MISTAKES / f"{name}.patch.yaml")))
    result = validate(version, path)
    assert result.returncode == 0, result.stderr[-2000:]
