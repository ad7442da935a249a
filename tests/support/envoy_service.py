"""The service as a process: `python -m tests.support.envoy_service ENVOY_FILE`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from extproc.app import App
from extproc.cli import _run
from tests.support.envoy_stack import settings


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    _run.setup_logging("warning")

    async def serve(stop: asyncio.Event) -> None:
        app = App(settings(config))
        _run.tune_gc()
        await app.run(stop)

    _run.run_until_signal(serve)


if __name__ == "__main__":
    main()
