"""Which source fits a pool? DNS if any entry is a name; else nothing ever changes."""

from __future__ import annotations

from extproc.config.settings import PoolSettings
from extproc.discovery.dns import DnsSource
from extproc.discovery.source import EndpointSource, literal_address
from extproc.discovery.static import StaticSource


def source_of(pool: PoolSettings) -> EndpointSource:
    if any(literal_address(entry) is None for entry in pool.endpoints):
        return DnsSource(pool)
    return StaticSource(pool)
