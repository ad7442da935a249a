"""How does a test wait for something without a sleep of guessed length?"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

STEP_S = 0.01


async def eventually(condition: Callable[[], object], what: str, *, timeout_s: float = 10.0) -> Any:
    """Ask again and again until `condition` (plain or async) gives something true, and return that.

    Raises:
        AssertionError: it did not within `timeout_s`; the message is `what` and the last value.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        value: Any = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last: {value!r})")
        await asyncio.sleep(STEP_S)
