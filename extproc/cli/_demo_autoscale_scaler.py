"""What does `extproc scale` do in the demo? It runs as a user would start it; its log is read as JSON."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extproc.cli._demo_autoscale_config import POOL

EVERY_S = 1.0
_ENTRY = "from extproc.cli import main; main()"
_END_S = 45.0  # a stop command may be running


@dataclass(frozen=True, slots=True)
class Happening:
    """A line of its log."""

    at_s: float  # monotonic, when it was read
    event: str
    text: str
    endpoint: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)


class Scaler:
    """One process, and what it told."""

    def __init__(self, script: Path, admin: str, told: Callable[[Happening], None]) -> None:
        self.happened: list[Happening] = []
        self.exit_code: int | None = None  # None: it runs
        self.stopping = False  # it was told to end
        self._arguments = [
            *("scale", POOL, "--exec", str(script), "--admin", admin),
            *("--every", f"{EVERY_S:g}", "--state", str(script.parent), "--log-format", "json"),
        ]
        self._told = told
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._errors = ""

    async def start(self) -> None:
        """Start it, also again."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _ENTRY, *self._arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C is the demo's
        )
        self._reader = asyncio.create_task(self._read(), name="scaler")
        self.stopping, self.exit_code = False, None

    async def wait(self) -> None:
        """Returns when it has ended."""
        assert self._reader is not None
        await asyncio.shield(self._reader)

    async def stop(self) -> None:
        """End it in order: it finishes the command that it runs."""
        if self._process is None or self._reader is None:
            return
        self.stopping = True
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(self._reader), _END_S)
        except TimeoutError:
            self._process.kill()
            await self._reader

    def kill_now(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def of(self, *events: str) -> Sequence[Happening]:
        return [each for each in self.happened if each.event in events]

    @property
    def failure(self) -> str:
        """Why it ended by itself."""
        return f"extproc scale ended with status {self.exit_code}: {self._errors or 'it told nothing'}"

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                row = json.loads(line)
            except ValueError:
                self._errors = (self._errors + line.decode(errors="replace"))[-2000:]
                continue
            fields = row["fields"]
            happening = Happening(time.monotonic(), fields["event"], row["message"], fields.get("endpoint"), fields)
            self.happened.append(happening)
            self._told(happening)
        self.exit_code = await self._process.wait()
