"""When does a drain that somebody waits for end, and how?

The service may be restarted meanwhile. While it is away it is asked again, for a bounded time; when it is back and has
forgotten the drain (it keeps no `drain.state_file`), the drain is begun anew with the time that was left.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any

from rich.console import Console
from rich.markup import escape

from extproc.cli._admin import Admin, AwayError, RefusedError

POLL_S = 0.5
GONE_AFTER_S = 5.0  # unknown for so long: it has left


class Exit(IntEnum):
    """How `extproc drain` exits; 2 is for a mistyped command line."""

    DRAINED = 0  # or begun, without --wait
    REFUSED = 1
    EXPIRED = 3
    CANCELLED = 4
    UNREACHABLE = 5


class Progress:
    """One line that changes on a terminal; else a line for each change."""

    def __init__(self) -> None:
        self._console = Console(soft_wrap=True, highlight=False)
        self._status = self._console.status("") if self._console.is_terminal else None
        self._last = ""

    def shown(self) -> AbstractContextManager[Any]:
        return self._status if self._status is not None else nullcontext()

    def show(self, text: str, left: str = "") -> None:
        """`left` changes all the time: it makes no new line."""
        if self._status is not None:
            self._status.update(escape(text + left))
        elif text != self._last:
            self.line(text + left)
        self._last = text

    def line(self, text: str) -> None:
        self._console.print(escape(text))
        sys.stdout.flush()


def wait(
    admin: Admin,
    first: Mapping[str, Any],
    query: Mapping[str, str],
    *,
    by: Mapping[str, str],
    away_s: float,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Exit:
    """Wait for the end of a drain that has begun. `first`: what the service answered to its beginning; `query`: which
    pool; `by`: what more to tell when it has to be begun anew; `away_s`: how long to bear with a service that is away.
    """
    endpoint, view = first["endpoint"], first
    heard_s = clock()  # when the service last told of this server
    until_s = None if first["deadline_s"] is None else heard_s + first["deadline_s"]
    was_away = False
    with progress.shown():
        while True:
            end = _ended(view)
            if end is not None:
                progress.line(f"{endpoint}: {_verdict(end, view)}")
                return end
            progress.show(f"{endpoint}: {_waits_for(view)}", _time_left(view))
            sleep(POLL_S)
            try:
                answer = admin.drain("GET", endpoint, query)
                if answer["phase"] is None and answer["service_started"] != view["service_started"]:
                    progress.line(f"{endpoint}: the service was restarted and has forgotten the drain: begun anew")
                    left = {} if until_s is None else {"deadline_s": f"{max(0.0, until_s - clock()):.3f}"}
                    answer = admin.drain("POST", endpoint, {**query, **by, **left})
                view, heard_s, was_away = answer, clock(), False
            except AwayError as error:
                was_away = True
                if clock() - heard_s > away_s:
                    progress.line(f"{endpoint}: not known to be drained: {error}")
                    return Exit.UNREACHABLE
                progress.show(f"{endpoint}: the service is away, asking again")
            except RefusedError as error:
                if clock() - heard_s <= (away_s if was_away else GONE_AFTER_S):
                    continue
                if error.status == 404:
                    progress.line(f"{endpoint}: has left its pool, and nothing of ours runs there")
                    return Exit.DRAINED
                progress.line(f"{endpoint}: {error}")
                return Exit.REFUSED


def _ended(view: Mapping[str, Any]) -> Exit | None:
    if view["state"] == "gone":
        # Its drain ended with its leaving, so nobody looks at the deadline any more.
        return Exit.EXPIRED if view["deadline_s"] == 0 else None
    return {"drained": Exit.DRAINED, "expired": Exit.EXPIRED, None: Exit.CANCELLED}.get(view["phase"])


def _verdict(end: Exit, view: Mapping[str, Any]) -> str:
    if end is Exit.DRAINED:
        return "drained: it is safe to stop"
    if end is Exit.CANCELLED:
        return "the drain was cancelled: it gets requests again"
    still = view["open_at_end"] if view["open_at_end"] is not None else view["in_flight"]
    return f"not drained in time: {still} request{'s' * (still != 1)} still running"


def _waits_for(view: Mapping[str, Any]) -> str:
    if view["state"] == "gone":
        return f"has left its pool, waits for {view['in_flight']} in flight"
    if view["blocked_by"] == "in_flight":
        return f"waits for {view['in_flight']} in flight"
    if view["running"] is None or view["waiting"] is None:
        return "waits for its metrics page"
    return f"waits for its engine: {view['running']:g} running, {view['waiting']:g} waiting"


def _time_left(view: Mapping[str, Any]) -> str:
    return "" if view["deadline_s"] is None else f", {view['deadline_s']:.0f} s left"
