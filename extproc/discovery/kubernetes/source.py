"""Who are the members, when Kubernetes runs the servers?

They are the endpoints of a Service (its EndpointSlices), the pods of a label selector, or those that an InferencePool
selects, with the ports that it names. A pod that is being deleted is `leaving` at once. While the API cannot be asked,
the last set stands; before the first answer nothing is said, since nobody is not the same as nothing known.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from extproc.config.discovery_settings import KubernetesDiscoverySettings
from extproc.discovery.kubernetes.connection import Connection, Query, Reader, load_client
from extproc.discovery.kubernetes.members import Members, of_pods, of_slices
from extproc.discovery.kubernetes.mirror import Mirror
from extproc.discovery.kubernetes.objects import InferencePool, Pod, Slice
from extproc.discovery.source import EndpointSet

log = logging.getLogger(__name__)


class KubernetesSource:
    """Raises ValueError when the package for it is not installed."""

    def __init__(
        self,
        settings: KubernetesDiscoverySettings,
        *,
        connect: Callable[[KubernetesDiscoverySettings], Reader] = Connection,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        load_client()
        self._settings = settings
        self._connect = connect
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._changed = asyncio.Event()
        self._pools: Mirror[InferencePool] | None = None
        self._pods: Mirror[Pod] | None = None
        self._slices: Mirror[Slice] | None = None
        self._running: dict[Mirror[Any], asyncio.Task[None]] = {}
        self._logged: set[str] = set()  # of the problems there are now, those that were told
        self._unusable: tuple[str, str] | None = None  # an object that cannot be followed, and why

    @property
    def failing(self) -> dict[str, str]:
        """Queries that the API does not answer, or whose answer is of no use, and why."""
        found = {str(m.query): m.failing for m in (self._pools, self._pods, self._slices) if m and m.failing}
        if self._unusable is not None:
            found.setdefault(*self._unusable)
        return found

    async def watch(self) -> AsyncGenerator[EndpointSet, None]:
        last: EndpointSet | None = None
        settings = self._settings
        try:
            if settings.service is not None:
                self._slices = self._start(slices_of(settings), Slice.of)
            elif settings.inference_pool is not None:
                self._pools = self._start(pool_of(settings), InferencePool.of)
            else:
                self._pods = self._start(pods_of(settings, settings.selector or ""), Pod.of)
            while True:
                self._changed.clear()
                members = await self._members()
                if members is not None:
                    self._tell(members.problems)
                    if members.endpoints != last:
                        last = members.endpoints
                        yield last
                await self._changed.wait()
                for task in self._running.values():
                    if task.done():
                        task.result()  # it never ends but of a fault of our own
        finally:
            for mirror in list(self._running):
                await self._stop(mirror)
            self._pools = self._pods = self._slices = None

    async def _members(self) -> Members | None:
        """None: not known at present; what was known before stands."""
        settings = self._settings
        if self._slices is not None:
            slices = self._slices.objects
            if slices is None:
                return None
            self._unusable = None if slices else (str(self._slices.query), _NO_SLICES)
            return of_slices(slices.values(), settings.port, settings.family)
        ports = settings.port
        if self._pools is not None:
            pool = await self._follow(self._pools)
            if pool is None:
                return None
            ports = pool.ports
        if self._pods is None or self._pods.objects is None:
            return None
        return of_pods(self._pods.objects.values(), ports, settings.family)

    async def _follow(self, pools: Mirror[InferencePool]) -> InferencePool | None:
        """Watch the pods that the pool selects now. None: there is no pool that can be followed."""
        if pools.objects is None:
            return None
        pool = pools.objects.get(self._settings.inference_pool or "")
        why = "there is no such InferencePool" if pool is None else _unusable(pool)
        self._unusable = (str(pools.query), f"{why}; the last servers known stand") if why else None
        if pool is None or why:
            return None
        query = pods_of(self._settings, pool.selector)
        if self._pods is None or self._pods.query != query:
            if self._pods is not None:
                await self._stop(self._pods)
            self._pods = self._start(query, Pod.of)
        return pool

    def _start(self, query: Query, of: Callable[[Any], Any]) -> Mirror[Any]:
        mirror: Mirror[Any] = Mirror(
            self._connect(self._settings),
            query,
            of,
            self._changed.set,
            resync_s=self._settings.resync_s,
            rng=self._rng,
            sleep=self._sleep,
        )
        task: asyncio.Task[None] = asyncio.create_task(mirror.run(), name=f"follow {query}")
        task.add_done_callback(lambda _: self._changed.set())
        self._running[mirror] = task
        return mirror

    async def _stop(self, mirror: Mirror[Any]) -> None:
        task = self._running.pop(mirror)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def _tell(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._logged:
                log.warning("kubernetes: %s", problem)
        self._logged = set(problems)


_NO_SLICES = "it has no EndpointSlices; is there a Service of this name, and does it select pods?"


def slices_of(settings: KubernetesDiscoverySettings) -> Query:
    selector = f"kubernetes.io/service-name={settings.service}"
    return Query("discovery.k8s.io", "v1", "endpointslices", label_selector=selector, namespace=settings.namespace)


def pods_of(settings: KubernetesDiscoverySettings, selector: str) -> Query:
    return Query("", "v1", "pods", label_selector=selector, namespace=settings.namespace)


def pool_of(settings: KubernetesDiscoverySettings) -> Query:
    """The one pool: a role that is bound to its name allows this too."""
    field = f"metadata.name={settings.inference_pool}"
    return Query(
        "inference.networking.k8s.io", "v1", "inferencepools", field_selector=field, namespace=settings.namespace
    )


def _unusable(pool: InferencePool) -> str | None:
    if not pool.selector:
        return "its selector is empty, which would make every pod of the namespace a server"
    return None if pool.ports else "it names no target port"
