"""How is a set of Kubernetes objects kept like the API server's?

List, then watch from the list's version; when the watch ends, however it ends, list again. So nothing depends on what a
watch may have missed, and since the server is asked to end it after `resync_s`, a change that got lost is made good
within that time. What was read last stays while the API is away. Failures are waited out, ever longer, with jitter.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from enum import Enum, auto
from typing import Generic, NoReturn, TypeVar

from extproc.discovery.kubernetes.connection import ApiError, Event, Query, Reader
from extproc.discovery.kubernetes.objects import Json, name_of

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
_JITTER = 0.1  # of the time between two lists: replicas of the service shall not list in step
_STEADY_S = 5.0  # a watch that was open for so long makes up for the failures before it
# A connection that breaks now and then (a proxy's idle timeout) is nobody's fault: it is made again without a word.
_QUIET_FAILURES = 2


class _Failed(Enum):
    """What has to go well for a failure to be over."""

    LIST = auto()
    WATCH = auto()  # it was refused: it must open
    AGAIN = auto()  # it opens, and ends again and again: it must stay open


class Mirror(Generic[T]):
    """Objects of one query, each as `of` reads it."""

    def __init__(
        self,
        reader: Reader,
        query: Query,
        of: Callable[[Json], T],
        changed: Callable[[], None],
        *,
        resync_s: float,
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called after each change of `objects` or `failing`."""
        self.query = query
        self.objects: dict[str, T] | None = None  # by name; None: not known yet
        self.failing: str | None = None  # why the objects may be out of date
        self._failed = _Failed.LIST  # what `failing` is of
        self._reader = reader
        self._of = of
        self._changed = changed
        self._resync_s = resync_s
        self._rng = rng or random.Random()
        self._sleep = sleep
        self._clock = clock

    async def run(self) -> NoReturn:
        failures = 0  # in a row
        try:
            while True:
                error, listed, open_s = await self._once()
                if open_s is not None and open_s >= _STEADY_S:
                    failures = 0
                    self._note(None)
                    if error is None:
                        continue  # the server has ended it as asked
                failures += 1
                broke = error is not None and (open_s is not None or error.gone)
                if error is not None and (not broke or failures > _QUIET_FAILURES):
                    self._failed = _Failed.AGAIN if broke else _Failed.WATCH if listed else _Failed.LIST
                    self._note(str(error))
                if broke and failures == 1:
                    continue
                await self._sleep(self._wait_s(failures, error))
        finally:
            await self._reader.close()

    async def _once(self) -> tuple[ApiError | None, bool, float | None]:
        """List and watch once. What ended it (None: the server, in order), whether the list came, and how long the
        watch was open (None: it did not open)."""
        listed, opened = False, None
        error: ApiError | None = None
        try:
            items, version = await self._reader.read(self.query)
            listed = True
            self._replace(items)
            if self._failed is _Failed.LIST:
                self._note(None)
            for_s = self._resync_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
            async with aclosing(self._reader.watch(self.query, version, for_s)) as batches:
                async for batch in batches:
                    if opened is None:
                        opened = self._clock()
                        if self._failed is not _Failed.AGAIN:
                            self._note(None)
                    self._apply(batch)
        except ApiError as failure:
            error = failure
        return error, listed, None if opened is None else self._clock() - opened

    def _replace(self, items: list[Json]) -> None:
        objects = {name_of(item): self._of(item) for item in items}
        if objects != self.objects:
            self.objects = objects
            self._changed()

    def _apply(self, batch: list[Event]) -> None:
        assert self.objects is not None
        changed = False
        for event in batch:
            name = name_of(event.item)
            if event.kind == "DELETED":
                changed = self.objects.pop(name, None) is not None or changed
            elif event.kind in ("ADDED", "MODIFIED"):
                now = self._of(event.item)
                changed = changed or self.objects.get(name) != now
                self.objects[name] = now
            # A BOOKMARK only tells a newer version, and we never go on from a version but a list's.
        if changed:
            self._changed()

    def _wait_s(self, failures: int, error: ApiError | None) -> float:
        longest = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2.0 ** min(failures - 1, 10))
        wait_s = longest * self._rng.uniform(0.5, 1.0)
        asked_s = error.retry_after_s if error is not None and error.retry_after_s is not None else 0.0
        return max(wait_s, min(asked_s, _LONGEST_WAIT_S))

    def _note(self, reason: str | None) -> None:
        """Log when it begins to fail, or fails otherwise, and when it is well again; not each time."""
        if reason == self.failing:
            return
        before, self.failing = self.failing, reason
        if reason is not None:
            kept = "nothing is known yet" if self.objects is None else f"keeping the {len(self.objects)} known"
            log.warning("kubernetes: cannot follow %s: %s; %s", self.query, reason, kept)
        elif before is not None:
            log.info("kubernetes: following %s again", self.query)
        self._changed()
