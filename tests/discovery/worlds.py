"""For each kind of source, where its servers are written down, so that one suite can run over all of them."""

from __future__ import annotations

import asyncio
import json
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from extproc.config.discovery_settings import (
    FileDiscoverySettings,
    KubernetesDiscoverySettings,
    SrvDiscoverySettings,
)
from extproc.config.settings import EndpointSettings, PoolSettings
from extproc.discovery.file import FileSource
from extproc.discovery.kubernetes.source import KubernetesSource
from extproc.discovery.listed import ListedSource
from extproc.discovery.source import EndpointSource
from extproc.discovery.srv import SrvSource
from tests.support.dns_server import DnsServer, dns_server
from tests.support.kubernetes_api import KubernetesApi, kubernetes_api, pod, slice_endpoint, slice_of

PORT = 8000
STEP_S = 0.02  # between two looks, instead of what the settings say


class World(ABC):
    """`say` who the servers are, by IP; `fail` until the next `say`."""

    source: EndpointSource

    @abstractmethod
    async def say(self, ips: Sequence[str]) -> None: ...

    async def fail(self) -> None:
        raise NotImplementedError


async def soon(_: float) -> None:
    await asyncio.sleep(STEP_S)


def tasks() -> set[asyncio.Task[object]]:
    """Those that run now, without those of the HTTP server that a world may have in it."""
    return {task for task in asyncio.all_tasks() if "web_protocol" not in task.get_coro().cr_code.co_filename}  # type: ignore[union-attr]


class Listed(World):
    def __init__(self) -> None:
        self._listed = self.source = ListedSource(PoolSettings(), listed=False)

    async def say(self, ips: Sequence[str]) -> None:
        self._listed.replace(tuple(EndpointSettings(address=_host_port(ip)) for ip in ips))


class Names(World):
    """The system's resolver; a pool with one name in it."""

    def __init__(self) -> None:
        self._answer: list[str] | OSError = []
        settings = PoolSettings(endpoints=(EndpointSettings(address=f"vllm.test:{PORT}"),))
        self.source = ListedSource(settings, self._resolve, sleep=soon)

    async def _resolve(self, name: str) -> list[str]:
        if isinstance(self._answer, OSError):
            raise self._answer
        return self._answer

    async def say(self, ips: Sequence[str]) -> None:
        self._answer = list(ips)

    async def fail(self) -> None:
        self._answer = socket.gaierror(socket.EAI_AGAIN, "try again")


class File(World):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.source = FileSource(PoolSettings(), FileDiscoverySettings(path=str(path)), sleep=soon)

    async def say(self, ips: Sequence[str]) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps([{"targets": [_host_port(ip) for ip in ips]}]))
        new.rename(self._path)

    async def fail(self) -> None:
        self._path.write_text("- {address: 10.0.0.1")


class Srv(World):
    NAME = "_http._tcp.vllm.test"

    def __init__(self, zone: DnsServer) -> None:
        self._zone = zone
        settings = SrvDiscoverySettings(name=self.NAME, servers=(zone.address.text,))
        self.source = SrvSource(PoolSettings(), settings, sleep=soon)

    async def say(self, ips: Sequence[str]) -> None:
        self._zone.broken.clear()
        for ip in ips:
            self._zone.set(_target(ip), "AAAA" if ":" in ip else "A", ip)
        self._zone.set(self.NAME, "SRV", *([f"0 1 {PORT} {_target(ip)}." for ip in ips] or ["0 0 0 ."]))

    async def fail(self) -> None:
        self._zone.broken.add(self.NAME)


class Slices(World):
    """A Service in Kubernetes. It fails by a watch that breaks off while no list is answered."""

    def __init__(self, api: KubernetesApi, directory: Path) -> None:
        self._api = api
        config = api.kubeconfig(directory, token="any")
        settings = KubernetesDiscoverySettings(kubeconfig=str(config), service="vllm")
        self.source = KubernetesSource(settings, sleep=soon)

    async def say(self, ips: Sequence[str]) -> None:
        self._api.answer = None
        for kind, name in (("IPv4", "s4"), ("IPv6", "s6")):
            of = [slice_endpoint(ip, f"uid-{ip}") for ip in dict.fromkeys(ips) if (":" in ip) == (kind == "IPv6")]
            self._api.put("endpointslices", slice_of("vllm", name, *of, kind=kind))

    async def fail(self) -> None:
        self._api.answer = (500, {})
        self._api.cut()


class Pods(Slices):
    """Pods of a selector."""

    def __init__(self, api: KubernetesApi, directory: Path) -> None:
        super().__init__(api, directory)
        config = str(directory / "kubeconfig")
        settings = KubernetesDiscoverySettings(kubeconfig=config, selector="app=vllm", port=(PORT,))
        self.source = KubernetesSource(settings, sleep=soon)

    async def say(self, ips: Sequence[str]) -> None:
        self._api.answer = None
        for name in set(self._api.objects.get("pods", ())) - set(ips):
            self._api.delete("pods", name)
        for ip in ips:
            self._api.put("pods", pod(ip, ip))


def _host_port(ip: str) -> str:
    return f"[{ip}]:{PORT}" if ":" in ip else f"{ip}:{PORT}"


def _target(ip: str) -> str:
    return f"ip-{ip.replace('.', '-').replace(':', '-')}.test"


@asynccontextmanager
async def listed(_: Path) -> AsyncIterator[World]:
    yield Listed()


@asynccontextmanager
async def names(_: Path) -> AsyncIterator[World]:
    yield Names()


@asynccontextmanager
async def file(directory: Path) -> AsyncIterator[World]:
    yield File(directory / "servers.json")


@asynccontextmanager
async def srv(_: Path) -> AsyncIterator[World]:
    async with dns_server() as zone:
        yield Srv(zone)


@asynccontextmanager
async def slices(directory: Path) -> AsyncIterator[World]:
    async with kubernetes_api() as api:
        yield Slices(api, directory)


@asynccontextmanager
async def pods(directory: Path) -> AsyncIterator[World]:
    async with kubernetes_api() as api:
        yield Pods(api, directory)


# Given a directory of its own.
WORLDS: dict[str, Callable[[Path], AbstractAsyncContextManager[World]]] = {
    "listed": listed,
    "names": names,
    "file": file,
    "srv": srv,
    "slices": slices,
    "pods": pods,
}
NEVER_FAILS = {"listed"}
NEVER_EMPTY = {"names"}  # a name without addresses is one that does not resolve
