"""An event loop whose time goes by what is done, not by the machine's clock: real sockets, and no dependence on load.

Time stands still while anything can run or be read, but for a little with each turn of the loop; when all wait, it
jumps to the next timer. Loopback delivers at once, and a moment of real time is given to it before a jump.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_TURN_S = 2e-5  # virtual
_GRACE_S = 0.0004  # real


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        self.now += _TURN_S
        events = super().select(0)
        if events or timeout <= 0:
            return events
        events = super().select(_GRACE_S)
        if not events:
            self.now += timeout
        return events


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def stall(self, seconds: float) -> None:
        """As if this process did not get the processor for so long."""
        self._virtual.now += seconds


def run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(work)
