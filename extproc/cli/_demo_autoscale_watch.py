"""How did the load, the fleet and the times to first token go? Looked at again and again, and kept for the chart."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from extproc.cli._demo_autoscale_config import POOL
from extproc.cli._demo_autoscale_load import Load, Sent

LOOK_S = 0.5
_KEPT = 7200  # an hour
_LATELY_S = 8.0  # of the times to first token
_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Look:
    """One moment. None: not known."""

    at_s: float  # monotonic
    rate_per_s: float  # sent
    desired: int | None
    ready: int
    starting: int
    draining: int
    waiting: float | None  # per server, mean over the window
    waiting_most: float | None  # its threshold
    ttft_s: float | None  # that 99 of 100 of the latest requests had, as their clients saw it


class Watch:
    """The public pages of the service, and the clients."""

    def __init__(self, admin: str, load: Load) -> None:
        self.looks: deque[Look] = deque(maxlen=_KEPT)
        self.page: Mapping[str, Any] = {}  # the last recommendation
        self.servers: Sequence[Mapping[str, Any]] = ()  # as the status has them
        self._admin = f"http://{admin}"
        self._load = load
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))

    async def close(self) -> None:
        await self._http.close()

    async def run(self) -> None:
        while True:
            try:
                await self._look()
            except (aiohttp.ClientError, TimeoutError):
                pass  # the chart has a gap then
            await asyncio.sleep(LOOK_S)

    @property
    def last(self) -> Look | None:
        return self.looks[-1] if self.looks else None

    def between(self, since_s: float, until_s: float) -> Sequence[Look]:
        return [look for look in self.looks if since_s <= look.at_s <= until_s]

    async def _look(self) -> None:
        async with self._http.get(f"{self._admin}/status") as answer:
            self.servers = (await answer.json())["pools"][POOL]["endpoints"]
        async with self._http.get(f"{self._admin}/autoscale/v1/pools/{POOL}") as answer:
            self.page = await answer.json()
        page, now = self.page, time.monotonic()
        waiting: Mapping[str, Any] = next((each for each in page["signals"] if each["name"] == "waiting"), {})
        states = [str(each["state"]) for each in self.servers]
        self.looks.append(
            Look(
                at_s=now,
                rate_per_s=self._load.rate_per_s,
                desired=page["desired"],
                ready=sum(state in ("ready", "returning") for state in states),
                starting=sum(state in ("starting", "unhealthy") for state in states),
                draining=sum(state in ("draining", "drained", "expired") for state in states),
                waiting=waiting.get("value"),
                waiting_most=waiting.get("threshold"),
                ttft_s=p99_s(self._load.sent, now),
            )
        )


def p99_s(sent: Sequence[Sent], now: float) -> float | None:
    """Of the requests whose first token came lately, or is still waited for: those count with their time so far. None:
    there are none."""
    times = []
    for each in reversed(sent):
        if each.started_s < now - 10.0 * _LATELY_S:
            break
        if each.first_s is not None and each.first_s >= now - _LATELY_S:
            times.append(each.first_s - each.started_s)
        elif each.first_s is None and each.ended_s is None:
            times.append(now - each.started_s)
    return sorted(times)[math.ceil(0.99 * len(times)) - 1] if times else None
