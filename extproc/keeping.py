"""What is known of the servers, and who finds it out?

For each pool: its source says who the members are; loops ask each of them for its load, its models, its /health; beside
them drains come to their ends and recommendations are made. Requests have no part in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from extproc.admin.drain_file import DrainFile
from extproc.admin.drains import DrainDesk
from extproc.autoscaling import Autoscaling
from extproc.config.settings import DrainSettings, EndpointSettings, Settings
from extproc.discovery.choose import source_of
from extproc.discovery.config_file import ConfigFile, Followed
from extproc.discovery.listed import ListedSource
from extproc.discovery.source import EndpointSource
from extproc.endpoint import Endpoint
from extproc.pool.pool import Pool
from extproc.router import Router
from extproc.server.listener import ListenError
from extproc.sinks import Heard, ModelsSink, PoolSink
from extproc.telemetry.loops import EndpointLoops
from extproc.telemetry.models import ModelsPoller
from extproc.telemetry.poller import Poller
from extproc.telemetry.prober import Prober

log = logging.getLogger(__name__)

_DRAINS_TICK_S = 0.1  # how soon it is noticed that a drain has come to its end
# How long a request waits for the servers to say whether they serve its model after all, before it is refused. Most
# answer within milliseconds, a busy one takes tenths of a second; Envoy's message_timeout is 1 s as shipped. As
# long it waits for the first members of its pool.
MODELS_WAIT_S = 0.5


class Keeper:
    """All pools of one router."""

    def __init__(
        self,
        router: Router,
        settings: Settings,
        *,
        followed: Followed | None,
        process: str,
        counting: Callable[[], bool],
        clock: Callable[[], float],
        heard: Heard | None = None,
    ) -> None:
        """`followed`: the file of the settings, whose changes are followed; None: they are not. `process`, `counting`:
        see `Autoscaling`. `heard`: is told what is heard, too, when the router knows it.

        Raises ListenError for a file named in a `scrape` section, or as `drain.state_file`, that cannot be used, and
        for what a pool's discovery needs and is not installed.
        """
        self.router = router
        self._members_known = {name: asyncio.Event() for name in settings.pools}  # set with the first members
        self._model_pollers: dict[str, ModelsPoller] = {}  # of the pools whose servers are asked
        self._pollers: dict[str, Poller] = {}
        self._probers: dict[str, Prober] = {}
        self._heard = heard
        try:
            for name, of in settings.pools.items():
                pool, scrape, models = (
                    router.plans[name].pool,
                    of.scrape or settings.scrape,
                    of.models or settings.models,
                )
                if models.enabled:
                    self._model_pollers[name] = ModelsPoller(models, scrape, ModelsSink(pool, heard), clock)
                sink = PoolSink(router, pool, clock, self._model_pollers.get(name), heard)
                self._pollers[name] = Poller(scrape, sink, clock)
                self._probers[name] = Prober(scrape, sink, clock)
            self._sources = {name: source_of(pool) for name, pool in settings.pools.items()}
            self.autoscaling = Autoscaling(router, settings, process=process, clock=clock, counting=counting)
        except ValueError as error:
            raise ListenError(str(error)) from error
        self.config_file = ConfigFile(followed, settings, self._relist) if followed is not None else None
        self.drains = _drain_desk(router, settings.drain, clock)

    @property
    def known(self) -> bool:
        """Whether the members of all pools are known, or their source says that it fails."""
        return all(plan.pool.known or self._sources[name].failing for name, plan in self.router.plans.items())

    @property
    def failing(self) -> dict[str, Mapping[str, str]]:
        """By pool: what its discovery cannot find out (a DNS name, a file), and why."""
        return {name: source.failing for name, source in self._sources.items()}

    async def look_again(self, pool: str) -> None:
        """Wait, not for long, until the pool's first members are known; or ask its servers which models they serve."""
        if not self.router.plans[pool].pool.known:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._members_known[pool].wait(), MODELS_WAIT_S)
        elif pool in self._model_pollers:
            await self._model_pollers[pool].refresh(MODELS_WAIT_S)

    def background(self) -> dict[str, Any]:
        """The coroutines that are to run beside the request path, by task name."""
        coroutines: dict[str, Any] = {"drains": self.drains.watch(_DRAINS_TICK_S)}
        coroutines |= self.autoscaling.background()
        if self.config_file is not None:
            coroutines["configuration"] = self.config_file.run()
        for name, source in self._sources.items():
            pollers: list[EndpointLoops] = [self._pollers[name]]
            coroutines[f"poll {name}"] = self._pollers[name].run()
            if name in self._model_pollers:
                pollers.append(self._model_pollers[name])
                coroutines[f"models {name}"] = self._model_pollers[name].run()
            if name in self.autoscaling.versions:
                pollers.append(self.autoscaling.versions[name])
            coroutines[f"probe {name}"] = self._probers[name].run()
            coroutines[f"discover {name}"] = self._discover(self.router.plans[name].pool, source, pollers)
        return coroutines

    async def _discover(self, pool: Pool, source: EndpointSource, pollers: Sequence[EndpointLoops]) -> None:
        async with contextlib.aclosing(source.watch()) as endpoint_sets:
            async for endpoints in endpoint_sets:
                change = pool.set_endpoints(endpoints)
                self.drains.appeared(pool)
                if self._heard is not None:
                    self._heard.members(pool.name, [member.endpoint for member in pool.members])
                self._members_known[pool.name].set()
                for poller in pollers:
                    poller.set_endpoints([member.endpoint for member in pool.members])
                log.info(
                    "pool %s: %d endpoints%s%s",
                    pool.name,
                    len(pool.members),
                    _listing(", new: ", change.added),
                    _listing(", gone: ", change.removed),
                )

    def _relist(self, pool: str, endpoints: tuple[EndpointSettings, ...]) -> None:
        """Give a pool whose servers are listed another list."""
        source = self._sources[pool]
        assert isinstance(source, ListedSource), "a pool with discovery has no list"
        source.replace(endpoints)


def _drain_desk(router: Router, settings: DrainSettings, clock: Callable[[], float]) -> DrainDesk:
    """Raises ListenError for a state file that cannot be used."""
    file = None if settings.state_file is None else DrainFile(settings.state_file)
    try:
        return DrainDesk(
            router,
            settings.bounds,
            floor=settings.floor,
            server_requests=settings.server_requests,
            file=file,
            clock=clock,
        )
    except OSError as error:
        raise ListenError(
            f"drain.state_file: cannot use {settings.state_file} ({error.strerror or error}); its directory must exist"
            " and be writable by this user, and it must be a file that can be replaced (not one that is mounted)"
        ) from error


def _listing(words: str, endpoints: tuple[Endpoint, ...]) -> str:
    return words + ", ".join(str(endpoint.address) for endpoint in endpoints) if endpoints else ""
