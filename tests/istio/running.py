"""Envoy with a bootstrap that a test has made, and the service with settings of its own, for one test."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
from yarl import URL

from extproc.app import App
from extproc.cli._envoy import EnvoyProcess
from extproc.config.load import read_settings
from extproc.pool.member import Member
from extproc.scheduling.filters import drop_reason
from tests.support import envoy_admin
from tests.support.envoy_stack import BODY, QUICK, Answer, InProcess, eventually

Json = dict[str, Any]


class Running:
    """Everything it starts ends with it. At the end of a test Envoy must have had no objection to the service."""

    def __init__(
        self,
        binary: Path,
        folder: Path,
        bootstrap: Json,
        settings: Json | None,
        *,
        port: int,
        servers: int | None = None,
        host: str = "vllm.llm",
    ) -> None:
        """`port`: of the listener; `servers`: so many must be ready before the test begins (None: it does not wait);
        `settings`: None: the service does not run; `host`: which clients name."""
        self.url = f"http://127.0.0.1:{port}"
        self.admin = "http://127.0.0.1:{}".format(bootstrap["admin"]["address"]["socket_address"]["port_value"])
        self.log: list[str] = []
        self._binary = binary
        self._bootstrap = folder / f"bootstrap-{port}.json"
        self._bootstrap.write_text(json.dumps(bootstrap, indent=1))
        self._settings = settings
        self._settings_file = folder / f"settings-{port}.json"
        self._servers = servers
        self._host = host
        self._stack = contextlib.AsyncExitStack()
        self._service: InProcess | None = None
        self.client: aiohttp.ClientSession
        self.envoy: EnvoyProcess

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            if self._settings is not None:
                self._settings_file.write_text(json.dumps(self._settings | QUICK))
                self._service = InProcess(read_settings(self._settings_file))
                stack.push_async_callback(self._service.stop)
                await self._service.start()
                await eventually(self._all_ready, "the service knows its servers")
            self.client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), auto_decompress=False)
            stack.push_async_callback(self.client.close)
            self.envoy = EnvoyProcess(self._bootstrap, binary=self._binary, concurrency=1, on_line=self.log.append)
            stack.push_async_callback(self._stop_envoy)
            await self.envoy.start()
            await eventually(self._up, "Envoy is up", timeout_s=30)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            if exc[0] is None:
                await self.check_envoy()
        finally:
            await self._stack.aclose()

    # The service.

    @property
    def app(self) -> App:
        assert self._service is not None
        return self._service.app

    @property
    def members(self) -> tuple[Member, ...]:
        return self.app.router.pools[0].members

    @property
    def picks(self) -> int:
        return sum(self.app.router.ledger.picks.values())

    def outcomes(self) -> dict[str, int]:
        return {str(outcome): count for (_, outcome), count in self.app.router.ledger.outcomes.items()}

    async def stop_service(self) -> None:
        assert self._service is not None
        await self._service.stop()

    def in_flight(self) -> int:
        return sum(member.in_flight for member in self.members)

    def _all_ready(self) -> bool:
        if self._servers is None:
            return True
        ready = [member for member in self.members if drop_reason(member, time.monotonic()) is None]
        return len(ready) == self._servers

    # Envoy.

    async def request(
        self,
        method: str = "POST",
        path: str = "/v1/chat/completions",
        body: bytes = BODY,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = {"host": self._host, "content-type": "application/json", **(headers or {})}
        data = io.BytesIO(body) if len(body) > 65536 else body  # aiohttp then writes it piece by piece
        async with self.client.request(method, URL(self.url + path, encoded=True), data=data, headers=sent) as response:
            return Answer(response.status, response.headers, await response.read())

    async def dump(self) -> str:
        """What Envoy runs with, as its admin port tells."""
        async with self.client.get(f"{self.admin}/config_dump") as response:
            return await response.text()

    async def stats(self) -> dict[str, int]:
        return await envoy_admin.counters(self.client, self.admin)

    async def ext_proc_stat(self, name: str) -> int:
        return envoy_admin.ext_proc_counter(await self.stats(), name)

    async def check_envoy(self) -> None:
        envoy_admin.check_counters(await self.stats())
        envoy_admin.check_log(self.log)

    async def _up(self) -> bool:
        return await envoy_admin.is_up(self.envoy, self.client, self.admin)

    async def _stop_envoy(self) -> None:
        await self.envoy.stop()
