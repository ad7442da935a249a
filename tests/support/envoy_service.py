"""The service as a process whose memory can be weighed: `python -m tests.support.envoy_service ENVOY_FILE`.

On SIGUSR1 it collects garbage, gives free memory back to the system and prints its resident bytes: what is left is
held, or leaked. Requests without a log entry are forgotten at once instead of after 10 s: here no Envoy sends any, and
what the account rightly keeps would hide what is lost.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import signal
import sys
from pathlib import Path

from extproc.app import App
from extproc.cli import _logs, _run
from extproc.config.load import read_settings
from extproc.pool import ledger


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc/self/status")


def _weigh(*_: object) -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    sys.stdout.write(f"{resident_bytes()}\n")
    sys.stdout.flush()


def main() -> None:
    ledger.LOG_WAIT_S = 0.1
    settings = read_settings(Path(sys.argv[1]))
    _logs.setup_logging("warning")

    async def serve(stop: asyncio.Event) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _weigh)
        app = App(settings)
        _run.tune_gc()
        await app.run(stop)

    _run.run_until_signal(serve)


if __name__ == "__main__":
    main()
