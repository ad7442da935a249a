"""Which source fits a pool? What its `discovery` says; without one, the list in the configuration."""

from __future__ import annotations

from extproc.config.settings import PoolSettings
from extproc.discovery.file import FileSource
from extproc.discovery.listed import ListedSource
from extproc.discovery.source import EndpointSource


def source_of(pool: PoolSettings) -> EndpointSource:
    """Raises ValueError when what the source needs is not installed."""
    found = pool.discovery
    if found is None:
        return ListedSource(pool)
    if found.file is not None:
        return FileSource(pool, found.file)
    raise ValueError("discovery sets nothing")
