"""Real Envoy: which versions, and a stack for a test.

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
from tests.support.envoy_versions import envoy_binary, envoy_version, pytest_configure, pytest_generate_tests

__all__ = ["envoy_binary", "envoy_version", "pytest_configure", "pytest_generate_tests"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.envoy)


@pytest.fixture
async def start(envoy_binary: Path, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Starts a `Stack` (its arguments are those of `Stack`); all of a test's stacks end, checked, with the test."""
    async with contextlib.AsyncExitStack() as stacks:

        async def starter(**arguments: Any) -> Stack:
            return await stacks.enter_async_context(Stack(envoy_binary, tmp_path, **arguments))

        yield starter
