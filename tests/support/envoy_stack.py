"""Envoy, the service and servers behind them, on loopback, for one test."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import io
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
from yarl import URL

# Envoy is started from the process that serves: grpc's own fork handlers restart its threads between fork and exec,
# which now and then kills the child. It reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from extproc.app import App
from extproc.cli._envoy import EnvoyProcess
from extproc.config.load import read_settings
from extproc.config.settings import Settings
from tests.support import envoy_admin, envoy_config
from tests.support.envoy_config import Json
from tests.support.envoy_upstream import Seen, Upstream
from tests.support.envoy_wheels import ROOT

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
DESTINATION = "x-gateway-destination-endpoint"
# Waits that only cost a test time: the service's goodbye. Scrapes, and Envoy's health checks of the service, are
# frequent so that a test need not wait long for one.
QUICK: Json = {
    "shutdown_notice_s": 0,
    "shutdown_grace_s": 1,
    "scrape": {"interval_s": 0.2, "timeout_s": 1, "stale_after_s": 1, "max_backoff_s": 0.4},
}


async def eventually(condition: Callable[[], object], what: str, *, timeout_s: float = 60.0) -> Any:
    """Poll until `condition` (plain or async) gives something true, and return that.

    Raises:
        AssertionError: it did not within `timeout_s`; the message is `what`, and what it gave last.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        value: Any = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last: {value!r})")
        await asyncio.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def port(self) -> int:
        """Of the server that answered."""
        found: int = self.json()["port"]
        return found


class InProcess:
    """The service on the test's own event loop."""

    def __init__(self, settings: Settings) -> None:
        self.app = App(settings)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        started = asyncio.Event()
        self._task = asyncio.create_task(self.app.run(self._stop, lambda app: started.set()), name="service")
        waiter = asyncio.create_task(started.wait())
        await asyncio.wait({waiter, self._task}, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            await self._task

    async def status(self) -> Json:
        return self.app.status()


class Subprocess:
    """The service as a process of its own, `extproc serve`, that can be killed and stopped."""

    def __init__(self, config: Path, admin: str) -> None:
        self._command = ["-c", "from extproc.cli import main; main()", "serve", "--envoy", str(config)]
        self._command += ["--log-level", "error"]
        self._stdout: int | None = None
        self._admin = admin
        self.process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *self._command, cwd=ROOT, stdout=self._stdout
        )

    def check_running(self) -> None:
        """Raises AssertionError: it has exited; why is in its output."""
        code = self.process.returncode if self.process is not None else None
        assert code is None, f"the service exited with {code}"

    async def until_answers(self) -> None:
        """Wait until its admin port does."""

        async def answers() -> bool:
            self.check_running()
            try:
                return bool(await self.status())
            except aiohttp.ClientError:
                return False

        await eventually(answers, "the service answers")

    async def status(self) -> Json:
        async with aiohttp.ClientSession() as session, session.get(f"http://{self._admin}/status") as response:
            found: Json = await response.json()
            return found

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> None:
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            await self.kill()
            raise AssertionError("the service did not end within 10 s of SIGTERM") from None


class Weighed(Subprocess):
    """The service with a scale; see `envoy_service`."""

    def __init__(self, config: Path, admin: str) -> None:
        super().__init__(config, admin)
        self._command = ["-m", "tests.support.envoy_service", str(config)]
        self._stdout = asyncio.subprocess.PIPE

    async def held_bytes(self) -> int:
        """Resident memory after garbage is collected and free memory given back."""
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGUSR1)
        return int(await asyncio.wait_for(self.process.stdout.readline(), 20))


class Stack:
    """One Envoy with a shipped file, the service, and servers. Everything it starts ends with it."""

    def __init__(
        self,
        binary: Path,
        folder: Path,
        *,
        shape: str = "A",
        servers: int | Sequence[int] = 3,
        profile: str | None = None,
        change: Callable[[Json], None] = lambda config: None,
        service: str = "in process",
        quick: bool = True,
        concurrency: int = 1,
        await_ready: bool = True,
        await_used: bool = True,
    ) -> None:
        """`servers`: how many to start, or the ports of some that run; `profile`: None is the shipped one, but tests
        that steer by what servers show as waiting (`only`) need `least-loaded`; `change` edits the configuration
        (after the ports are set); `service`: `in process`, `process`, `weighed` or `none`; `await_ready`: wait for
        every server to be ready, else only for an answer of the service; `await_used`: wait for Envoy to hold the
        service for healthy."""
        self.shape = shape
        self.upstreams = [Upstream() for _ in range(servers)] if isinstance(servers, int) else []
        self.ports = [] if isinstance(servers, int) else list(servers)  # of the pool's servers
        self.config: Json = envoy_config.shipped(shape)
        self.service: InProcess | Subprocess | None = None
        self.log: list[str] = []
        self.check_at_end = True
        self._kind = service
        self._binary = binary
        self._folder = folder
        self._profile = profile
        self._change = change
        self._quick = quick
        self._concurrency = concurrency
        self._await_ready = await_ready
        self._await_used = await_used
        self._stack = contextlib.AsyncExitStack()
        self.url = ""
        self.envoy_admin = ""
        self.client: aiohttp.ClientSession
        self.envoy: EnvoyProcess

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            for upstream in self.upstreams:
                stack.push_async_callback(upstream.stop)
                await upstream.start()
                self.ports.append(upstream.port)
            listener, admin, grpc, service_admin = (envoy_config.free_port() for _ in range(4))
            envoy_config.place(
                self.config,
                listener=listener,
                admin=admin,
                grpc=grpc,
                service_admin=service_admin,
                servers=self.ports,
            )
            if self._quick:
                block = envoy_config.settings_of(self.config)
                block.update({**QUICK, "scrape": {**block.get("scrape", {}), **QUICK["scrape"]}})
                for check in envoy_config.cluster(self.config, "extproc")["health_checks"]:
                    check.update(interval="0.5s", no_traffic_interval="0.5s")
            if self._profile is not None:
                envoy_config.settings_of(self.config)["scheduling"]["profile"] = self._profile
            self._change(self.config)
            self.port = listener
            self.grpc_port = grpc
            self.url = f"http://127.0.0.1:{listener}"
            self.envoy_admin = f"http://127.0.0.1:{admin}"
            self.service_admin = f"127.0.0.1:{service_admin}"
            self.path = envoy_config.write(self.config, self._folder / f"envoy-{self.shape}-{listener}.yaml")
            connector = aiohttp.TCPConnector(limit=0, force_close=False)
            self.client = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=30),
                skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
            )
            stack.push_async_callback(self.client.close)
            stack.push_async_callback(self._stop_service)
            if self._kind != "none":
                await self.start_service()
            self.envoy = EnvoyProcess(
                self.path, binary=self._binary, concurrency=self._concurrency, on_line=self.log.append
            )
            stack.push_async_callback(self._stop_envoy)
            await self.envoy.start()
            await eventually(self._envoy_is_up, "Envoy is up", timeout_s=30)
            if self._kind != "none" and self._await_used:
                await self.until_service_is_used(all_ready=self._await_ready)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if exc[0] is None and self.check_at_end:
                await self.check_envoy()
        finally:
            await self._stack.aclose()

    # The service.

    async def start_service(self) -> None:
        self.service = (
            InProcess(read_settings(self.path))
            if self._kind == "in process"
            else (Weighed if self._kind == "weighed" else Subprocess)(self.path, self.service_admin)
        )
        await self.service.start()

    @property
    def app(self) -> App:
        assert isinstance(self.service, InProcess)
        return self.service.app

    @property
    def process(self) -> Subprocess:
        assert isinstance(self.service, Subprocess)
        return self.service

    async def status(self) -> Json:
        assert self.service is not None
        return await self.service.status()

    async def until_service_is_used(self, *, all_ready: bool = True) -> None:
        """Wait until the service knows its servers and Envoy holds the service for healthy."""

        async def ready() -> bool:
            if isinstance(self.service, Subprocess):
                self.service.check_running()
            try:
                status = await self.status()
            except aiohttp.ClientError:
                return False
            pools = status["pools"].values()
            return not all_ready or all(e["state"] == "ready" for pool in pools for e in pool["endpoints"])

        await eventually(ready, "the service knows all its servers")
        await eventually(lambda: self.healthy("extproc"), "Envoy holds the service for healthy")

    async def in_flight(self) -> int:
        found: int = (await self.status())["requests"]["in_flight"]
        return found

    async def in_flight_by_port(self) -> dict[int, int]:
        endpoints = (await self.status())["pools"]["vllm"]["endpoints"]
        return {int(e["address"].rpartition(":")[2]): e["in_flight"] for e in endpoints}

    async def nothing_in_flight(self) -> None:
        async def none() -> bool:
            status = await self.status()
            counted = [e["in_flight"] for e in status["pools"]["vllm"]["endpoints"]]
            return status["requests"]["in_flight"] == 0 and not any(counted) and status["streams"]["open"] == 0

        await eventually(none, "in-flight is back at zero, and no stream is open")

    async def until_access_log_is_connected(self, body: bytes = BODY) -> None:
        """One request makes Envoy open its access log stream; from then on shape C closes its streams early."""
        assert (await self.request(body=body)).status == 200

        async def connected() -> bool:
            status = await self.status()
            return bool(status["access_log"]["connected"] and status["access_log"]["entries"])

        await eventually(connected, "Envoy sends its access log")
        await self.nothing_in_flight()

    async def picks(self) -> int:
        found: int = (await self.status())["requests"]["picks"].get("vllm", 0)
        return found

    async def outcomes(self) -> dict[str, int]:
        """Requests whose end is known, by outcome, of all pools (in-process service)."""
        counted: Counter[str] = Counter()
        for (_, outcome), n in self.app.router.ledger.outcomes.items():
            counted[str(outcome)] += n
        return dict(counted)

    # Requests.

    async def request(
        self,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        body: bytes | Any = BODY,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        target = URL(self.url + path, encoded=True)
        if isinstance(body, bytes) and len(body) > 65536:
            body = io.BytesIO(body)  # aiohttp then writes it piece by piece
        async with self.client.request(
            method, target, data=body, headers=headers or {"content-type": "application/json"}
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def raw(self, data: bytes) -> bytes:
        """Send bytes on a connection of their own and read until Envoy closes it (ask for `connection: close`)."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            async with asyncio.timeout(20):
                return await reader.read()
        finally:
            writer.close()

    def seen(self) -> list[Seen]:
        """What reached the servers, one server after the other."""
        return [seen for upstream in self.upstreams for seen in upstream.seen]

    def by_port(self, port: int) -> Upstream:
        return next(upstream for upstream in self.upstreams if upstream.port == port)

    def only(self, index: int) -> Upstream:
        """Make one server the least loaded, as the others' pages will tell with the next scrape.

        It gets the next request where load alone decides."""
        assert self._profile == "least-loaded"
        for position, upstream in enumerate(self.upstreams):
            upstream.waiting = 0 if position == index else 5 + position
        return self.upstreams[index]

    async def until_waiting_is_known(self) -> None:
        """Wait until the service has scraped what every running server shows now."""
        wanted = {u.address: u.waiting for u in self.upstreams}

        async def known() -> bool:
            endpoints = (await self.status())["pools"]["vllm"]["endpoints"]
            return all(e["sample"] and e["sample"]["waiting"] == wanted[e["address"]] for e in endpoints)

        await eventually(known, "the service knows what the servers show")

    # Envoy.

    async def stats(self) -> dict[str, int]:
        return await envoy_admin.counters(self.client, self.envoy_admin)

    async def ext_proc_stat(self, name: str) -> int:
        return envoy_admin.ext_proc_counter(await self.stats(), name)

    async def healthy(self, cluster: str, *, hosts: int | None = None) -> bool:
        """Whether Envoy holds all hosts of a cluster (or exactly `hosts` of them) for healthy."""
        async with self.client.get(f"{self.envoy_admin}/clusters?format=json") as response:
            statuses = (await response.json(content_type=None))["cluster_statuses"]
        found = next(c for c in statuses if c["name"] == cluster)["host_statuses"]
        good = [h for h in found if not any(v is True for v in h["health_status"].values())]
        return len(good) == (len(found) if hosts is None else hosts)

    async def check_envoy(self) -> None:
        """What must hold after every test with a running Envoy."""
        if self.envoy.running:
            envoy_admin.check_counters(await self.stats())
        envoy_admin.check_log(self.log)

    async def _envoy_is_up(self) -> bool:
        return await envoy_admin.is_up(self.envoy, self.client, self.envoy_admin)

    async def _stop_envoy(self) -> None:
        await self.envoy.stop()

    async def _stop_service(self) -> None:
        if self.service is not None:
            await self.service.stop()


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def pause(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
