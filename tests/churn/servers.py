"""Which simulated servers run, each a process that can be stopped, killed and started again on its port?"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from extproc.cli._envoy import _ENDING_WITH_US
from tests.support.envoy_wheels import ROOT

MODEL = "m"
COMMAND = (sys.executable, "-c", "from extproc.cli import main; main()")


async def spawn(*command: str, output: Path) -> asyncio.subprocess.Process:
    """A process that ends with this one, even if this one is killed; what it says is appended to `output`."""
    with output.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *(*_ENDING_WITH_US, str(os.getpid()), *command), cwd=ROOT, stdout=out, stderr=out, start_new_session=True
        )


@dataclass(eq=False)
class Server:
    """One simulated vLLM server. Another server at its port is another `Server`."""

    name: str
    port: int
    pool: str
    folder: Path
    token_s: float  # between two tokens of an answer
    listed: bool = False  # its pool's source names it
    busy: bool = False  # an event is about it
    lost: set[str] = field(default_factory=set)  # requests that ended with a life of its
    process: asyncio.subprocess.Process | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def up(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.requests.jsonl"

    async def start(self) -> None:
        """Raises RuntimeError: it does not answer in time, or has exited."""
        engine = ("--preset", "a100-8b", "--base-step-s", f"{self.token_s:g}")
        options = ("--name", self.name, "--port", str(self.port), "--model", MODEL, "--request-log", str(self.log))
        output = self.folder / f"{self.name}.log"
        self.process = await spawn(*COMMAND, "vllm-sim", *options, *engine, "--log-level", "error", output=output)
        deadline_s = time.monotonic() + 60
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < deadline_s:
                if self.process.returncode is not None:
                    raise RuntimeError(
                        f"{self.name} exited with {self.process.returncode}: {output.read_text()[-500:]}"
                    )
                try:
                    async with session.get(f"http://{self.address}/health") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.05)
        raise RuntimeError(f"{self.name} does not answer")

    async def kill(self) -> float:
        """SIGKILL; the time at which it was sent."""
        assert self.process is not None
        at_s = time.time()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()
        self.lost |= self.open_requests()
        return at_s

    async def terminate(self) -> float:
        """SIGTERM, as its platform would send it, and SIGKILL ten seconds later; the time of the first."""
        assert self.process is not None
        at_s = time.time()
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            await self.kill()
        self.lost |= self.open_requests()
        return at_s

    async def set_faults(self, **faults: object) -> None:
        url = f"http://{self.address}/sim/faults"
        async with aiohttp.ClientSession() as session, session.post(url, json=faults) as response:
            response.raise_for_status()

    def requests(self) -> list[dict[str, object]]:
        """Its request log, of all its lives."""
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def open_requests(self) -> set[str]:
        """Requests that arrived in this life and have no end."""
        open_: set[str] = set()
        for line in self.requests():
            request = str(line["request"])
            open_.add(request) if line["what"] == "arrived" else open_.discard(request)
        return open_ - self.lost
