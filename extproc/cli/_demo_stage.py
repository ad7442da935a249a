"""What do all demos have in common: what goes on beside the story, and what is said at its end?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_FRAME_S = 0.25


async def play(stop: asyncio.Event, story: Coroutine[Any, Any, None], *beside: Coroutine[Any, Any, Any]) -> bool:
    """Play until the end of the story, a signal, or the end of what goes on beside it. True: it was a signal.

    Raises what a part of it raised.
    """
    playing = asyncio.create_task(story, name="story")
    stopped = asyncio.create_task(stop.wait(), name="stop")
    tasks: list[asyncio.Task[Any]] = [playing, stopped, *(asyncio.create_task(each) for each in beside)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return stopped.done() and not playing.done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def frames(draw: Callable[[], None]) -> None:
    """Draw again and again."""
    while True:
        draw()
        await asyncio.sleep(_FRAME_S)


def verdict(held: int, failed: int) -> str:
    """Of the checks."""
    return f"all {held} checks held" if not failed else f"{failed} of {held + failed} checks failed"


def tell(console: Console, text: str) -> None:
    """A sentence: wrapped between words in a terminal, one line elsewhere."""
    console.print(text, markup=False, soft_wrap=not console.is_terminal)
