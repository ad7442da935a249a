"""A worker of `extproc serve --workers N`, as the supervisor starts it: `python -m extproc.cli._worker FILE_NUMBER`.

The file is its end of the link to the supervisor, from which it hears all else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Mapping
from typing import Any

from extproc.cli import _logs, _run
from extproc.cli._options import LogFormat
from extproc.workers.worker import Worker, WorkerError


def begin(first: Mapping[str, Any]) -> None:
    """Log as the supervisor does. `first`: what it says first."""
    log_format = LogFormat(first["log_format"])
    _logs.setup_logging(first["log_level"], log_format)
    name_lines(first["number"], as_text=log_format is LogFormat.TEXT)
    _run.tune_gc()


def name_lines(number: int, *, as_text: bool) -> None:
    """Have each line of the log tell the worker: before the logger's name, or in a field of its own."""
    make = logging.getLogRecordFactory()

    def named(*args: Any, **more: Any) -> logging.LogRecord:
        record = make(*args, **more)
        if as_text:
            record.name = f"worker {number}: {record.name}"
        else:
            record.worker = number
        return record

    logging.setLogRecordFactory(named)


def main() -> None:
    own = socket.socket(fileno=int(sys.argv[1]))
    own.setblocking(False)
    failed = False

    async def body(stop: asyncio.Event) -> None:
        nonlocal failed
        try:
            await Worker().run(own, stop, begin)
        except WorkerError as error:
            failed = True
            logging.getLogger(__name__).error("%s", error)

    _run.run_until_signal(body)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
