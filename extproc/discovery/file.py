"""Who are the members, when a file lists them?

A file that is broken, empty or not there keeps the last good list: a slip of the hand must not empty a healthy fleet.
It is said once in the log, and stays in `failing` until the file is good again. Names in the list are resolved.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from extproc.config import endpoints_file
from extproc.config.discovery_settings import FileDiscoverySettings
from extproc.config.problems import in_a_line
from extproc.config.settings import PoolSettings
from extproc.discovery.listed import ListedSource, Resolver, system_resolver
from extproc.discovery.source import EndpointSet
from extproc.discovery.watched import Content, contents

log = logging.getLogger(__name__)


class FileSource:
    """Nothing is said before the file has been good once."""

    def __init__(
        self,
        pool: PoolSettings,
        settings: FileDiscoverySettings,
        resolver: Resolver = system_resolver,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`sleep` is that between two looks at the file."""
        self._path = Path(settings.path)
        self._poll_s = settings.poll_s
        self._sleep = sleep
        self._listed = ListedSource(pool, resolver, listed=False)
        self._count: int | None = None  # entries of the last good list
        self._failing: str | None = None

    @property
    def failing(self) -> dict[str, str]:
        """The file, if it cannot be used; and names in it that do not resolve."""
        own = {} if self._failing is None else {str(self._path): self._failing}
        return own | self._listed.failing

    async def watch(self) -> AsyncGenerator[EndpointSet, None]:
        following = asyncio.create_task(self._follow(), name=f"watch {self._path}")
        step: asyncio.Future[EndpointSet] | None = None
        try:
            async with aclosing(self._listed.watch()) as sets:
                try:
                    while True:
                        step = asyncio.ensure_future(anext(sets))
                        await asyncio.wait((step, following), return_when=asyncio.FIRST_COMPLETED)
                        if following.done():
                            following.result()
                        yield step.result()
                finally:
                    if step is not None:
                        step.cancel()
                        await asyncio.gather(step, return_exceptions=True)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        async with aclosing(contents(self._path, self._poll_s, sleep=self._sleep)) as found:
            async for content in found:
                await self._take(content)

    async def _take(self, content: Content) -> None:
        if content.error is not None:
            self._note(f"{self._path}: {content.error}")
            return
        # In a thread: a list of a thousand servers takes a good part of a second to parse.
        entries, problems = await asyncio.to_thread(endpoints_file.read, content.raw, str(self._path))
        if entries is None:
            self._note(in_a_line(problems))
            return
        self._count = len(entries)
        self._note(None)
        self._listed.replace(entries)

    def _note(self, reason: str | None) -> None:
        """Log when the file turns bad, or bad in another way, and when it is good again."""
        before, self._failing = self._failing, reason
        if reason is not None and reason != before:
            kept = "no list yet" if self._count is None else f"keeping its last list of {self._count}"
            log.warning("%s (%s)", reason, kept)
        elif reason is None and before is not None:
            log.info("%s is good again", self._path)
