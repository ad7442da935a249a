"""Who are the members, when the configuration lists their IP addresses? The same for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from extproc.config.settings import PoolSettings
from extproc.discovery.source import EndpointSet, endpoint_set, literal_address


class StaticSource:
    """Raises ValueError for an entry that is a DNS name."""

    def __init__(self, pool: PoolSettings) -> None:
        for entry in pool.endpoints:
            if literal_address(entry) is None:
                raise ValueError(f'endpoints: "{entry.address}" is not an IP address; a name needs DNS discovery')
        self._endpoints = endpoint_set(pool.endpoints, lambda _: ())

    @property
    def failing(self) -> dict[str, str]:
        return {}

    async def watch(self) -> AsyncGenerator[EndpointSet, None]:
        yield self._endpoints
        await asyncio.Event().wait()
