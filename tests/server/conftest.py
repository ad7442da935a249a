"""A service over four idle servers, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.ext_proc_client import Client, Service
from tests.support.fleet import sampled_router


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service(sampled_router(4), clock=lambda: 0.0).serve() as running:
        yield running


@pytest.fixture
async def client(service: Service) -> AsyncIterator[Client]:
    async with service.client() as connected:
        yield connected
