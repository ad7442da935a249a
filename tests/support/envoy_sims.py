"""Simulated vLLM servers in a process of their own, `extproc vllm-sim`, to be broken and killed by a test."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any, Self

import aiohttp

from tests.support.envoy_wheels import ROOT

MODEL = "m"
NAME_HEADER = "x-vllm-sim"  # in each answer: the name of the server that gave it


class Sims:
    """One process with some servers. `ports` are theirs by name, after `start`."""

    def __init__(self, name: str, count: int, *options: str) -> None:
        """`name`: the servers' names begin with it; `options`: more of the command line."""
        self.ports: dict[str, int] = {}
        self._count = count
        command = ["-c", "from extproc.cli import main; main()", "vllm-sim", "--name", name, "--count", str(count)]
        self._command = [*command, "--port", "0", "--model", MODEL, "--log-level", "error", *options]
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = process = await asyncio.create_subprocess_exec(
            sys.executable, *self._command, cwd=ROOT, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(30):
                for _ in range(self._count):
                    name, _, url = (await process.stdout.readline()).decode().strip().partition(" ")
                    self.ports[name] = int(url.rpartition(":")[2])
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """SIGINT ends it at once, unlike SIGTERM, on which it drains as vLLM does."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            await self.kill()
            raise AssertionError("the simulated servers did not end within 10 s of SIGINT") from None

    async def kill(self) -> None:
        """SIGKILL; when this returns their sockets are closed."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def set_faults(self, name: str, **faults: Any) -> None:
        url = f"http://127.0.0.1:{self.ports[name]}/sim/faults"
        async with aiohttp.ClientSession() as session, session.post(url, json=faults) as response:
            assert response.status == 200, await response.text()
