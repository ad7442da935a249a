"""The service as a process: `python -m tests.support.envoy_service ENVOY_FILE`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from extproc.app import App
from extproc.cli import _run
from extproc.config.load import read_settings


def main() -> None:
    settings = read_settings(Path(sys.argv[1]))
    _run.setup_logging("warning")

    async def serve(stop: asyncio.Event) -> None:
        app = App(settings)
        _run.tune_gc()
        await app.run(stop)

    _run.run_until_signal(serve)


if __name__ == "__main__":
    main()
