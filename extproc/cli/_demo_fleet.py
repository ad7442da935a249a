"""Which servers does the demo run, and how does one of them get busy?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import aiohttp

from extproc.cli._demo_config import HOST
from extproc.sim.api import ServerOptions
from extproc.sim.server import SimServer
from extproc.sim.spec import A100_8B

MODEL = "demo-8b"
NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
# An 8-billion model on a quarter of that card: about 20 tokens a second and stream, so that a person can follow it.
# Few places and little memory, so that a dozen requests show as waiting and as KV usage.
SPEC = replace(
    A100_8B.slowed(4.0), max_num_seqs=6, num_gpu_blocks=1537, max_model_len=16_384, jitter_ratio=0.1
)  # 1,536 blocks of 16: 24,576 tokens


class Fleet:
    """The simulated servers, by name, and requests that go to one of them past the gateway."""

    def __init__(self, ports: Sequence[int]) -> None:
        options = ServerOptions(models=(MODEL,), record=True)
        self.servers = {
            name: SimServer(name, SPEC, HOST, port, options=options, seed=number)
            for number, (name, port) in enumerate(zip(NAMES, ports, strict=False))
        }
        self._direct: list[asyncio.Task[None]] = []

    @property
    def names(self) -> list[str]:
        return list(self.servers)

    def name_of(self, address: str) -> str:
        """The server at an address; the address itself if it is none of ours."""
        return next((name for name, server in self.servers.items() if server.address == address), address)

    def address(self, name: str) -> str:
        return self.servers[name].address

    async def start(self) -> None:
        for server in self.servers.values():
            await server.start()

    async def stop(self) -> None:
        await self.relieve()
        for server in self.servers.values():
            await server.stop()

    def occupy(self, name: str, requests: int) -> None:
        """Send long requests directly to a server: other people's work, that the gateway has not sent."""
        url = f"{self.servers[name].url}/v1/completions"
        self._direct = [
            asyncio.create_task(_generate(url, number), name=f"direct request {number}") for number in range(requests)
        ]

    async def relieve(self) -> None:
        """Give those requests up."""
        for task in self._direct:
            task.cancel()
        for task in self._direct:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._direct = []


async def _generate(url: str, number: int) -> None:
    body = {"model": MODEL, "prompt": f"a long report, number {number}: " + "and so on " * 400, "max_tokens": 8000}
    timeout = aiohttp.ClientTimeout(total=None)
    with contextlib.suppress(aiohttp.ClientError):
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json=body) as response:
            await response.read()
