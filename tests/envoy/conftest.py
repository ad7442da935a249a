"""Real Envoy: which versions, and a stack for a test.

Every test of this folder runs once for each version of `--envoy-versions`. To keep the default run short, tests marked
`newest_only` run there on the newest one alone, and in any run if marked with `always=True`.

When a test's Envoy ends, its counters of spurious messages and of rejected mutations must be 0, and its log must hold
no error: that is part of each test.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.envoy_stack import Stack
from tests.support.envoy_wheels import binary, versions

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "newest_only(always=False): in the default run (or always) on the newest Envoy alone"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.envoy)


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


@pytest.fixture
async def start(envoy_binary: Path, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts a `Stack` (its arguments are those of `Stack`); all of a test's stacks end, checked, with the test."""
    async with contextlib.AsyncExitStack() as stacks:

        async def starter(**arguments: Any) -> Stack:
            return await stacks.enter_async_context(Stack(envoy_binary, tmp_path, **arguments))

        yield starter
