"""One loop an endpoint: how do they keep in step with the set of endpoints?

The loops share nothing but the HTTP session, so a server that hangs delays no other. They end by cancellation. What a
server or the network does never ends one; any other exception goes up through `run` and takes its TaskGroup down.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Iterable

import aiohttp

from extproc.config.settings import ScrapeSettings
from extproc.endpoint import Endpoint
from extproc.telemetry.fetch import new_session, tls_context

Target = tuple[str, str | None]  # where a loop asks: host:port, and the name for TLS and Host
Identity = tuple[str, Target]  # of an endpoint: its address, and the target


class EndpointLoops(ABC):
    """Raises ValueError for a `ca_file` that cannot be used."""

    task_name = "loop"  # what a loop's task is called, before the address

    def __init__(self, settings: ScrapeSettings) -> None:
        self._settings = settings
        self._tls: ssl.SSLContext | None = tls_context(settings)
        self._endpoints: dict[Identity, Endpoint] = {}
        self._loops: dict[Identity, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._running = False

    def _identity(self, endpoint: Endpoint) -> Identity:
        """A loop goes on undisturbed while its endpoint keeps this: here, its address and its serving port's names."""
        return endpoint.address.text, (endpoint.address.text, endpoint.hostname)

    @abstractmethod
    async def _loop(self, session: aiohttp.ClientSession, identity: Identity) -> None:
        """Ask `self._endpoints[identity]` for ever."""

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """From now on ask exactly these. May be called before `run`, and again at any time, from the event loop.

        A loop goes on undisturbed while its endpoint keeps address and target; other changes (weight, drained) reach
        the sink with the next result.
        """
        self._endpoints = {self._identity(endpoint): endpoint for endpoint in endpoints}
        for identity in self._loops.keys() - self._endpoints.keys():
            self._loops[identity].cancel()  # at once, not in run's next turn: the sink hears no more of it
        self._changed.set()

    async def run(self) -> None:
        """Ask until cancelled. Run it once, as a task of the application's TaskGroup.

        Raises:
            ExceptionGroup: a loop met an exception that no server and no network causes.
        """
        if self._running:
            raise RuntimeError("this poller runs already")
        self._running = True
        try:
            async with new_session(self._settings, self._tls) as session, asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    self._start_and_forget(group, session)
                    await self._changed.wait()
        finally:
            self._loops.clear()
            self._running = False

    def _start_and_forget(self, group: asyncio.TaskGroup, session: aiohttp.ClientSession) -> None:
        for identity in self._loops.keys() - self._endpoints.keys():
            del self._loops[identity]
        for identity in self._endpoints:
            loop = self._loops.get(identity)
            if loop is None or loop.cancelling():  # taken out and put in again before we woke
                name = f"{self.task_name} {identity[0]}"
                self._loops[identity] = group.create_task(self._loop(session, identity), name=name)
