"""`extproc ...` as a process of its own, as a user starts it."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.support.waiting import eventually

ENTRY = "from extproc.cli import main; main()"


class Command:
    """One running command; its output (both streams) grows in `output`."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None, code: str = ENTRY) -> None:
        self.output = ""
        self._arguments = arguments
        self._env = env
        self._code = code
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Command:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", self._code, *self._arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._env,
            cwd=Path(__file__).parents[2],
        )
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._reader is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reader

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def says(self, text: str, timeout_s: float = 30.0) -> None:
        """Wait until the text stands in its output."""
        await eventually(lambda: text in self.output, f"{text!r} in the output:\n{self.output}", timeout_s=timeout_s)

    async def exit_code(self, timeout_s: float = 30.0) -> int:
        """Wait until it has ended and all its output is there."""
        assert self._process is not None
        assert self._reader is not None
        await asyncio.wait_for(asyncio.gather(self._process.wait(), asyncio.shield(self._reader)), timeout_s)
        assert self._process.returncode is not None
        return self._process.returncode

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while chunk := await self._process.stdout.read(65536):
            self.output += chunk.decode(errors="replace")
