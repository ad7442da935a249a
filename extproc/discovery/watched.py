"""What does a file hold, now and after each change?

It is read anew each time and compared by content: a time stamp may stay the same over two writes, or change over none,
and a Kubernetes ConfigMap changes by the swap of a symlink above the file. Reading is done in a thread, since a file
may be large, or its disk slow. New content counts once a second look, a moment later, finds the same: a file that is
written in place is seen half-written in between, and half a list can look like a whole one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from extproc.config.reading import reason_of

MAX_BYTES = 16 * 1024 * 1024  # of a file; an endpoint is a hundred
SETTLE_S = 0.2  # between the two looks
_MOST_LOOKS = 10  # then what is there counts: something writes all the time


@dataclass(frozen=True, slots=True)
class Content:
    """What one look found: the bytes, or why there are none."""

    raw: bytes = b""
    error: str | None = None  # it cannot be read


async def contents(
    path: Path, poll_s: float, *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncGenerator[Content, None]:
    """What the file holds, each unlike the last; looked at every `poll_s` seconds, for ever.

    A file that is not there, or cannot be read, is a `Content` too.
    """
    last: Content | None = None
    while True:
        now = await asyncio.to_thread(_look, path)
        if now != last:
            for _ in range(_MOST_LOOKS):
                before, now = now, await _look_later(path, min(SETTLE_S, poll_s), sleep)
                if now == before:
                    break
        if now != last:
            last = now
            yield now
        await sleep(poll_s)


async def _look_later(path: Path, wait_s: float, sleep: Callable[[float], Awaitable[None]]) -> Content:
    await sleep(wait_s)
    return await asyncio.to_thread(_look, path)


def _look(path: Path) -> Content:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        return Content(error=reason_of(error))
    except ValueError:  # a NUL in the name
        return Content(error="is not a file name")
    if len(raw) > MAX_BYTES:
        return Content(error=f"is larger than {MAX_BYTES >> 20} MiB")
    return Content(raw)
