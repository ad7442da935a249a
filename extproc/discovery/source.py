"""What must a source of members be able to do?

Say the complete set, first and again whenever it has changed. A consumer that missed a change has lost nothing: each
set replaces all before it. An empty set means that there is nobody, not that nothing is known.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

from extproc.config.settings import EndpointSettings
from extproc.endpoint import Address, Endpoint, split_host_port

EndpointSet = tuple[Endpoint, ...]


class EndpointSource(Protocol):
    """One suite of tests runs over every implementation."""

    @property
    def failing(self) -> Mapping[str, str]:
        """What cannot be found out at present (DNS names), and why; its last answer stands in."""
        ...

    def watch(self) -> AsyncGenerator[EndpointSet, None]:
        """Complete sets, each unlike the last, every address once; it goes on until closed or cancelled.

        Close it (`contextlib.aclosing`) or cancel the task that iterates: it then leaves no task behind.
        """
        ...


def literal_address(entry: EndpointSettings) -> Address | None:
    """The address of an entry that names an IP; None for a DNS name."""
    host, port = split_host_port(entry.address)
    try:
        return Address.of(host, port)
    except ValueError:
        return None


def to_endpoint(entry: EndpointSettings, address: Address, hostname: str | None = None) -> Endpoint:
    return Endpoint(
        address=address,
        hostname=hostname,
        weight=entry.weight,
        models=entry.model,
        metrics_port=entry.metrics_port,
        drained=entry.drained,
    )


def endpoint_set(
    entries: tuple[EndpointSettings, ...], addresses_of: Callable[[EndpointSettings], tuple[Address, ...]]
) -> EndpointSet:
    """The endpoints in the order of the configuration; of an address that comes twice, the first."""
    found: dict[Address, Endpoint] = {}
    for entry in entries:
        literal = literal_address(entry)
        if literal is not None:
            found.setdefault(literal, to_endpoint(entry, literal))
            continue
        hostname, _ = split_host_port(entry.address)
        for address in addresses_of(entry):
            found.setdefault(address, to_endpoint(entry, address, hostname))
    return tuple(found.values())
