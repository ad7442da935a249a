"""Which versions of Envoy does a folder of tests run on? What its conftest takes over; the folder's tests ask for
`envoy_binary`, or for `envoy_version`.

Each test runs once for each version of `--envoy-versions`. To keep the default run short, tests marked `newest_only`
run there on the newest one alone, and in any run if marked with `always=True`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.envoy_wheels import binary, versions


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "newest_only(always=False): in the default run (or always) on the newest Envoy alone"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "envoy_version" in metafunc.fixturenames:
        wanted = versions(metafunc.config.getoption("--envoy-versions"))
        marker = metafunc.definition.get_closest_marker("newest_only")
        if marker and (marker.kwargs.get("always") or metafunc.config.getoption("--envoy-versions") is None):
            wanted = (max(wanted, key=lambda version: tuple(map(int, version.split(".")))),)
        metafunc.parametrize("envoy_version", wanted, scope="session")


@pytest.fixture(scope="session")
def envoy_version(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture(scope="session")
def envoy_binary(envoy_version: str) -> Path:
    """Installed if need be; that it cannot be is an error, not a skip."""
    return binary(envoy_version)
