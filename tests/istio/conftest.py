"""Real Envoy for the Istio manifests: which versions, as in tests/envoy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.envoy_wheels import binary, versions


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "newest_only: in the default run on the newest Envoy alone")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "envoy_binary" not in metafunc.fixturenames:
        return
    option = metafunc.config.getoption("--envoy-versions")
    wanted = versions(option)
    if option is None and metafunc.definition.get_closest_marker("newest_only"):
        wanted = wanted[-1:]
    metafunc.parametrize("envoy_binary", wanted, indirect=True, scope="session")


@pytest.fixture(scope="session")
def envoy_binary(request: pytest.FixtureRequest) -> Path:
    version: str = request.param
    return binary(version)
