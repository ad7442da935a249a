"""Which servers does the service know in the pool, and what do they count as?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from extproc.actuator.advice import NoAdviceError
from extproc.endpoint import Address, split_host_port
from extproc.pool.member import State

SERVING = frozenset({State.READY, State.RETURNING})
# Whose load is not known is there all the same. The recommendation counts the same way.
PROVISIONED = SERVING | {State.STARTING, State.UNHEALTHY}
OUT = frozenset({State.DRAINING, State.DRAINED, State.EXPIRED})


@dataclass(frozen=True, slots=True)
class Server:
    """One of them."""

    address: str  # ip:port
    state: State
    hostname: str | None = None  # that it was resolved from

    def is_at(self, endpoint: str) -> bool:
        """Whether this is its host:port, by address or by name."""
        try:
            host, port = split_host_port(endpoint)
            own_host, own_port = split_host_port(self.address)
        except ValueError:
            return False
        return port == own_port and _canonical(host, port) in (own_host, self.hostname)


def read(status: Any, pool: str) -> tuple[Server, ...]:
    """The servers of a pool on the page `/status`. Raises NoAdviceError."""
    try:
        endpoints = status["pools"][pool]["endpoints"]
        return tuple([_server(row) for row in endpoints])
    except (KeyError, TypeError, ValueError) as error:
        raise NoAdviceError(
            f"the service's status does not tell the servers of pool {pool} ({type(error).__name__}: {error}); is it of"
            " another version?"
        ) from None


def find(servers: Iterable[Server], endpoint: str) -> Server | None:
    """The one at this host:port."""
    return next((server for server in servers if server.is_at(endpoint)), None)


def _server(row: Mapping[str, Any]) -> Server:
    hostname = row.get("hostname")
    return Server(str(row["address"]), State(row["state"]), None if hostname is None else str(hostname))


def _canonical(host: str, port: int) -> str:
    try:
        return Address.of(host, port).ip
    except ValueError:
        return host
