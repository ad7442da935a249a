"""`extproc serve --workers N` as processes of its own, with a gRPC client of each worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc

from extproc.config.settings import WORKER_PORTS_APART
from tests.support.envoy_config import free_port
from tests.support.envoy_wheels import ROOT
from tests.support.ext_proc_client import Client
from tests.support.waiting import eventually

Json = dict[str, Any]
QUICK = {"interval_s": 0.1, "timeout_s": 2, "stale_after_s": 5, "max_backoff_s": 0.2}
TIMEOUT_S = 120.0  # of each wait: the machine may be busy


@dataclass
class Running:
    """The processes, once all workers are ready."""

    process: asyncio.subprocess.Process
    admin: str
    http: aiohttp.ClientSession
    log: list[str] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)  # by worker

    async def get(self, path: str) -> Json:
        async with self.http.get(f"http://{self.admin}{path}") as answer:
            found: Json = await answer.json()
            return found

    async def status(self) -> Json:
        return await self.get("/status")

    async def workers(self) -> list[Json]:
        found: list[Json] = (await self.status())["workers"]
        return found

    async def in_flight(self) -> dict[str, int]:
        """By server, as the supervisor knows it."""
        endpoints = (await self.status())["pools"]["vllm"]["endpoints"]
        return {each["address"]: each["in_flight"] for each in endpoints}

    async def metrics(self) -> dict[str, float]:
        """Values by name, summed over labels."""
        async with self.http.get(f"http://{self.admin}/metrics") as answer:
            lines = [line.rsplit(" ", 1) for line in (await answer.text()).splitlines() if not line.startswith("#")]
        out: dict[str, float] = {}
        for name, value in lines:
            bare = name.partition("{")[0]
            out[bare] = out.get(bare, 0.0) + float(value)
        return out

    async def all_ready(self) -> bool:
        assert self.process.returncode is None, "\n".join(self.log)
        with contextlib.suppress(aiohttp.ClientError):
            status = await self.status()
            ready = all(e["state"] == "ready" for pool in status["pools"].values() for e in pool["endpoints"])
            return ready and bool(status["ready"]) and all(each["state"] == "ready" for each in status["workers"])
        return False

    async def eventually(self, condition: Any, what: str) -> Any:
        return await eventually(condition, what, timeout_s=TIMEOUT_S)

    def said(self, words: str) -> bool:
        return any(words in line for line in self.log)


def free_ports(count: int) -> int:
    """The first of so many ports, as workers have them, that are free."""
    while True:
        first = free_port()
        if first + WORKER_PORTS_APART * count > 60_000:
            continue
        with contextlib.ExitStack() as probes:
            try:
                for number in range(1, count):
                    probe = probes.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", first + WORKER_PORTS_APART * number))
            except OSError:
                continue
            return first


@contextlib.asynccontextmanager
async def serving(
    folder: Path, servers: list[str], *, workers: int = 2, pool: Json | None = None, **other: Any
) -> AsyncIterator[Running]:
    """Started, with all workers ready. All that it starts ends with it. `pool`, `other`: more of its settings."""
    first = free_ports(workers)
    admin = f"127.0.0.1:{free_port()}"
    document: Json = {
        "workers": workers,
        "grpc": {"listen": f"127.0.0.1:{first}"},
        "admin": {"listen": admin},
        "scrape": QUICK,
        "shutdown_notice_s": 0,
        "shutdown_grace_s": 5,
        "pools": {"vllm": {"endpoints": [{"address": address} for address in servers]} | (pool or {})},
    }
    path = folder / "extproc.yaml"
    path.write_text(json.dumps(document | other))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from extproc.cli import main; main()",
        "serve",
        "--config",
        str(path),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
    )
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        running = Running(process, admin, http)
        reading = asyncio.create_task(_read(process, running.log))
        stack.push_async_callback(_ended, process, reading)
        await running.eventually(running.all_ready, "all workers are ready")
        for number in range(workers):
            target = f"127.0.0.1:{first + WORKER_PORTS_APART * number}"
            channel = grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
            running.clients.append(Client(await stack.enter_async_context(channel)))
        yield running


async def _read(process: asyncio.subprocess.Process, log: list[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        log.append(line.decode().rstrip())  # noqa: PERF401 - a test looks at it meanwhile


async def _ended(process: asyncio.subprocess.Process, reading: asyncio.Task[None]) -> None:
    try:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 30)
    except TimeoutError:
        process.kill()
        raise AssertionError("the service did not end within 30 s of SIGTERM") from None
    finally:
        await process.wait()
        await asyncio.wait_for(reading, 10)  # workers hold the pipe as long as they run


def runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
