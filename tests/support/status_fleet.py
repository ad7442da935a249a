"""A made-up fleet with an hour behind it, served as the admin port serves the real one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from random import Random
from typing import Any

from aiohttp.test_utils import TestServer

from extproc.admin import autoscale_pages, explain, http, status_view
from extproc.admin.metrics import registry
from extproc.admin.status import status
from extproc.admin.status_history import EVERY_S, History
from extproc.autoscale.latest import Explained, Remarks
from extproc.autoscale.policy import Policy
from extproc.autoscale.recommendation import Recommendation, Signal, SignalName, Verdict
from extproc.endpoint import Address, Endpoint
from extproc.pool.drain import By
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from tests.support.fleet import STALE_AFTER_S, address, ended, endpoint
from tests.support.recommended import FOUR

UNIX_S = 1_790_000_000.0
BODY = b'{"model": "llama-3-8b", "prompt": "%s"}' % (b"a secret prompt " * 200)
SIGNALS = (
    Signal(SignalName.REQUESTS, 31.2, 12.0, 3, 0.4, "10.4 requests/s for 3 s each, 12 a server"),
    Signal(SignalName.WAITING, 2.5, 1.0, 4, 0.4, "2.5 wait per server, threshold 1: one more than 3"),
    Signal(SignalName.KV_USAGE, 0.62, 0.7, None, 0.4, "KV usage is 62%, threshold 70%"),
    Signal(SignalName.MIN_REPLICAS, None, None, 2, None, "min_replicas is 2"),
)


class Advice:
    """An `Explained` that says of each pool what it is told to."""

    def __init__(self, **found: Recommendation | None) -> None:
        self.found = found
        self.said: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.found)

    def get(self, pool: str) -> Recommendation | None:
        return self.found[pool]

    def policy(self, pool: str) -> Policy:
        assert pool in self.found
        return Policy(min_replicas=2, max_replicas=12, ttft_target_s=1.0)

    def remarks(self, pool: str) -> Remarks:
        assert pool in self.found
        return Remarks(self.said)


def advised(desired: int = 4, **changes: Any) -> Recommendation:
    found = replace(
        FOUR,
        desired=desired,
        reason="up from 3 to 4: 2.5 wait per server, threshold 1: one more than 3",
        signals=SIGNALS,
        provisioned=3,
        ready=3,
        verdict=Verdict.SCALING,
        ttft_p99_s=1.31,
        ttft_target_s=1.0,
    )
    return replace(found, **changes)


class Made:
    """Pools of servers, the present time, and what the admin port says of them."""

    def __init__(self, advice: Explained | None = None, /, **sizes: int) -> None:
        """`sizes`: servers of each pool; those of one are 10.0.0.1 and so on, of the next 10.1.0.1 ..."""
        self.now = 0.0
        self.advice = advice
        self.streams = 0
        self.connected = 1
        self.ready = True
        self.pools = [Pool(name, stale_after_s=STALE_AFTER_S) for name in sizes]
        for number, pool in enumerate(self.pools):
            pool.set_endpoints(Endpoint(Address.of(f"10.{number}.0.{i + 1}", 8000)) for i in range(sizes[pool.name]))
        self.router = Router([PoolPlan(each, PROFILES["cache-aware"], 3) for each in self.pools], rng=Random(1))
        self.history = History()
        self.look()

    def look(self) -> None:
        self.history.look(self.router, now=self.now, unix_s=self.unix_s, streams=self.streams, autoscale=self.advice)

    @property
    def unix_s(self) -> float:
        return UNIX_S + self.now

    def sample(self, pool: Pool, where: Address, **values: Any) -> None:
        self.router.observe(pool.name, where, LoadSample(taken_at_s=self.now, **values), self.now)

    def pick(self, body: bytes = BODY, path: str = "/v1/completions", *, end: bool = True, **how: Any) -> None:
        self.streams += 1
        decision = self.router.route(RawRequest(path=path, body=body, **how), self.now)
        if end and hasattr(decision, "pick_id"):
            self.router.complete(ended(decision), self.now)

    def hour(self, points: int = 360, *, picks: int = 1) -> None:
        """Let so many looks pass, with a load that goes up and down."""
        draw = Random(2)
        for i in range(points):
            self.now += EVERY_S
            wave = 0.5 + 0.4 * math.sin(i / 40) + 0.1 * draw.random()
            for pool in self.pools:
                for j, member in enumerate(pool.members):
                    self.sample(
                        pool,
                        member.address,
                        waiting=float(max(0, round(8 * wave - 5 + j % 3))),
                        running=float(round(30 * wave)),
                        kv_usage_ratio=min(1.0, wave * (0.8 + 0.05 * (j % 4))),
                        prefix_queries_tokens=1000.0 * i,
                        prefix_hits_tokens=1000.0 * i * (0.4 + 0.05 * (j % 5)),
                        models=("llama-3-8b",),
                    )
            for _ in range(picks):
                self.pick()
            self.look()

    def trouble(self) -> None:
        """Of the first pool: the second server is drained, the third refuses, of the fourth no load is known."""
        pool = self.pools[0]
        members = pool.members
        members[1].ask_drain(By.OPERATOR, self.now, self.now + 60.0)
        for _ in range(2):
            pool.scrape_failed(
                members[2].address, "refused: connection refused", self.now, answered=False, refused=True
            )
        members[3].observe(LoadSample(taken_at_s=self.now - 10.0))
        pool.scrape_failed(members[3].address, "timeout: no answer in 1 s", self.now, answered=False, refused=False)

    def status(self) -> dict[str, Any]:
        return status(
            self.router,
            now=self.now,
            ready=self.ready,
            started_s=0.0,
            version="1.2.3",
            streams={"total": self.streams, "open": 0, "undecodable": 0, "errors": 0},
            access_log={"connected": self.connected, "entries": 0},
            autoscale=self.advice,
            history=self.history,
            wall_clock=lambda: self.unix_s,
        )

    def view(self, since: float | None = None) -> dict[str, Any]:
        recommendations = {}
        if self.advice is not None:
            recommendations = {name: autoscale_pages.view(self.advice, name) for name in self.advice.names}
        decisions = explain.decisions(self.router, status_view.PICKS_SHOWN, self.now)
        return status_view.view(self.status(), decisions, recommendations, self.history.since(since))

    @contextlib.asynccontextmanager
    async def served(self, view: Callable[[float | None], Any] | None = None, port: int = 0) -> AsyncIterator[str]:
        """The admin port's URL."""
        answers = http.Answers(
            ready=lambda: self.ready,
            status=self.status,
            explain=lambda request: {},
            decisions=lambda limit: [],
            view=view or self.view,
        )
        app = http.application(registry(), answers, max_body_bytes=1000)
        async with TestServer(app, port=port or None) as server:
            yield str(server.make_url("")).rstrip("/")


__all__ = ["Advice", "Made", "address", "advised", "endpoint"]
