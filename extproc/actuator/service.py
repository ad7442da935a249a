"""What does the actuator ask of the service?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class AwayError(Exception):
    """The service, or one of its processes, cannot be asked now."""


class RefusedError(Exception):
    """It says no, and why."""


class Service(Protocol):
    """One fleet's service: one process, or several that each route to the same servers.

    All may raise AwayError.
    """

    def status(self) -> Any:
        """The page `/status`."""

    def recommendation(self, pool: str) -> Any:
        """The page of the pool. Raises NoAdviceError where it says that it has none."""

    def victim(self, pool: str) -> tuple[str, str]:
        """The server that should go, and why. Raises RefusedError when none should."""

    def drain(self, pool: str, endpoint: str, deadline_s: float | None) -> Mapping[str, float]:
        """Drain it everywhere. When each process that knows the server, by its URL, was started (Unix time).

        Raises RefusedError where the server is not told from others.
        """

    def shown(self, pool: str, endpoint: str) -> Mapping[str, Mapping[str, Any] | None]:
        """How its drain stands, by URL; None: that process does not know the server."""

    def undrain(self, pool: str, endpoint: str) -> None:
        """Bring it back everywhere. Raises RefusedError where it stays out for another reason."""
