"""How does a command run the service until a signal ends it?"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from extproc.bug_log import log_of_loop

# Some that pass a signal on send it to the process and to its group: two so close together are one.
_ECHO_S = 0.3


def tune_gc() -> None:
    """Streams are objects that live as long as a generation: with the default threshold of 700 new objects the
    collector walks all of them again and again. What exists at start never becomes garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def run_until_signal(
    main: Callable[[asyncio.Event], Coroutine[Any, Any, None]], *, at_once: Callable[[], object] = lambda: None
) -> None:
    """Run `main` on uvloop; it gets an event that SIGTERM or SIGINT sets. A second signal ends the process at once,
    after a call of `at_once`, which must not wait for anything."""

    async def body() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_of_loop)
        first_s = 0.0

        def on_signal(number: int) -> None:
            nonlocal first_s
            if stop.is_set():
                if loop.time() - first_s < _ECHO_S:
                    return
                logging.getLogger(__name__).warning("second signal: exiting at once")
                at_once()
                os._exit(128 + number)
            first_s = loop.time()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal, number)
        await main(stop)

    uvloop.run(body())
