"""Which source fits a pool? What its `discovery` says; without one, the list in the configuration."""

from __future__ import annotations

from extproc.config.settings import PoolSettings
from extproc.discovery.file import FileSource
from extproc.discovery.kubernetes.source import KubernetesSource
from extproc.discovery.listed import ListedSource
from extproc.discovery.source import EndpointSource


def source_of(pool: PoolSettings) -> EndpointSource:
    """Raises ValueError when what the source needs is not installed."""
    found = pool.discovery
    if found is None:
        return ListedSource(pool)
    if found.file is not None:
        return FileSource(pool, found.file)
    if found.kubernetes is not None:
        return KubernetesSource(found.kubernetes)
    assert found.srv is not None, "the settings see to it"
    try:
        from extproc.discovery.srv import SrvSource
    except ModuleNotFoundError as error:
        raise ValueError('discovery.srv needs dnspython; install it with pip install "vllm-extproc[dns]"') from error
    return SrvSource(pool, found.srv)
