"""How many servers should each pool have now? Looks again and again, keeps what comes of it, and says what changes.

Only pools with a section `autoscale` are looked at. Nothing here starts or stops a server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from extproc.autoscale.latest import Remarks
from extproc.autoscale.look import PoolLook
from extproc.autoscale.mismatch import mismatches
from extproc.autoscale.policy import Policy
from extproc.autoscale.recommendation import Recommendation, Verdict
from extproc.autoscale.recommender import Recommender
from extproc.autoscale.tightening import Tightening
from extproc.config.autoscale_settings import AutoscaleSettings
from extproc.config.profile_file import read_profile
from extproc.config.settings import AdminSettings, ScrapeSettings, Settings
from extproc.endpoint import Address, Endpoint
from extproc.peers import PoolPeers
from extproc.pool.pool import Pool
from extproc.router import Router
from extproc.telemetry.versions import VersionPoller

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at a pool, at most
_LOOKS = 6  # in a window, at least
_MOST_TOLD = 100  # warnings of a pool that are logged

_CALM = "the pool is calm: for an hour the time to first token was well within its target, and the rate did not jump"
_VERDICTS: Mapping[Verdict, tuple[int, str]] = {
    Verdict.OK: (logging.INFO, "it is within its target"),
    Verdict.SCALING: (logging.INFO, "it is over its target, and more servers are asked for or starting"),
    Verdict.LATE: (
        logging.WARNING,
        "it is over its target, and no signal asked for more servers: the thresholds are too high",
    ),
    Verdict.EARLY: (
        logging.WARNING,
        "it is far below its target with more load than the profile allows: the thresholds are too low",
    ),
    Verdict.AT_CAPACITY: (logging.WARNING, "it is over its target, and max_replicas allows no more servers"),
}


class Autoscaling:
    """The recommendations of all pools; an `autoscale.latest.Explained`."""

    def __init__(
        self,
        router: Router,
        settings: Settings,
        *,
        process: str,
        clock: Callable[[], float],
        counting: Callable[[], bool] = lambda: True,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`process`: the id by which peers tell us from others. `counting`: whether requests come to us; when we stop
        they go elsewhere, which says nothing of the load.

        Raises ValueError for a profile, or a CA of peers, that cannot be used.
        """
        self._clock = clock
        self._wall_clock = wall_clock
        scaled = {name: pool.autoscale for name, pool in settings.pools.items() if pool.autoscale is not None}
        self._every_s = min([LOOK_S, *(each.window_s / _LOOKS for each in scaled.values())])
        self._pools: dict[str, _Scaled] = {}
        for name, autoscale in scaled.items():
            self._pools[name] = _Scaled(
                router,
                router.plans[name].pool,
                autoscale,
                settings.pools[name].scrape or settings.scrape,
                every_s=self._every_s,
                process=process,
                clock=clock,
                counting=counting,
                own=settings.admin,
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._pools)

    def get(self, pool: str) -> Recommendation | None:
        return self._pools[pool].latest

    def policy(self, pool: str) -> Policy:
        return self._pools[pool].recommender.policy

    def remarks(self, pool: str) -> Remarks:
        return self._pools[pool].remarks

    @property
    def versions(self) -> Mapping[str, VersionPoller]:
        """By pool, who asks its servers for their versions; those who must be told which servers there are."""
        return {name: each.versions for name, each in self._pools.items() if each.versions is not None}

    def background(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What is to run beside the request path, by name."""
        coroutines: dict[str, Coroutine[Any, Any, None]] = {}
        if self._pools:
            coroutines["autoscale"] = self._run()
        for name, each in self._pools.items():
            if each.versions is not None:
                coroutines[f"versions {name}"] = each.versions.run()
            if each.peers is not None:
                coroutines[f"peers {name}"] = each.peers.run()
        return coroutines

    def look(self, pool: str) -> None:
        """Look at this pool, once. Takes a few milliseconds for each hundred servers."""
        self._pools[pool].look_at(self._clock(), self._wall_clock())

    async def _run(self) -> None:
        while True:
            for name in self.names:
                self.look(name)
                await asyncio.sleep(0)  # requests come in between
            await asyncio.sleep(self._every_s)


class _Scaled:
    """One pool."""

    def __init__(
        self,
        router: Router,
        pool: Pool,
        autoscale: AutoscaleSettings,
        scrape: ScrapeSettings,
        *,
        every_s: float,
        process: str,
        clock: Callable[[], float],
        counting: Callable[[], bool],
        own: AdminSettings,
    ) -> None:
        self._router = router
        self._pool = pool
        self._counting = counting
        self._profile = None
        if autoscale.profile is not None:
            try:
                self._profile = read_profile(Path(autoscale.profile))
            except ValueError as error:
                raise ValueError(f"pools.{pool.name}.autoscale.profile: {error}") from error
        policy = autoscale.policy(
            self._profile, scrape_s=scrape.interval_s + every_s, sample_stale_after_s=scrape.stale_after_s
        )
        self.recommender = Recommender(policy)
        self.latest: Recommendation | None = None  # None: not looked at yet
        self.remarks = Remarks()
        self.peers = None
        if autoscale.peers:
            self.peers = PoolPeers(pool.name, autoscale.peers, process, every_s, clock, own=own)
        self.versions = None
        if self._profile is not None and self._profile.server.version is not None:
            self.versions = VersionPoller(scrape, self, clock)
        self._versions: dict[Address, str] = {}
        self._tightening = Tightening(policy) if autoscale.tighten else None
        self._look = PoolLook(pool, self._requests)
        self._verdict: Verdict | None = None  # the last that there was
        self._verdict_since_s = float("-inf")
        self._told_verdict: Verdict | None = None
        self._too_low = 0  # the most servers that min_replicas was said to lack
        self._told: set[str] = set()

    def look_at(self, now: float, unix_s: float) -> None:
        before = self.latest
        self.latest = found = self.recommender.look(self._look.read(now), unix_s)
        self._tell(before, found)
        if self._tightening is not None:
            policy = self._tightening.judged(now, found.verdict)
            if policy is not None:
                self.recommender.policy = policy
                self._log(logging.WARNING, f"the thresholds are tightened to {self._tightening.ratio:.0%}")
        self.remarks = Remarks(
            (*self._mismatches(), *self._missing()), None if self._tightening is None else self._tightening.ratio
        )

    def on_version(self, endpoint: Endpoint, version: str | None) -> None:
        if version is not None:
            self._versions[endpoint.address] = version
        else:
            self._versions.pop(endpoint.address, None)

    def _requests(self) -> float | None:
        others = 0.0 if self.peers is None else self.peers.requests
        if others is None or not self._counting():
            return None
        return self._router.ledger.requests(self._pool.name) + others

    def _mismatches(self) -> tuple[str, ...]:
        """Each is logged once."""
        if self._profile is None:
            return ()
        there = {member.address for member in self._pool.members}
        self._versions = {address: version for address, version in self._versions.items() if address in there}
        found = mismatches(self._profile.server, self._pool.members, self._versions)
        for words in found:
            if words not in self._told and len(self._told) < _MOST_TOLD:
                self._told.add(words)
                self._log(logging.WARNING, words)
        return found

    def _missing(self) -> tuple[str, ...]:
        """Peers; they tell the log themselves."""
        if self.peers is None or self.peers.requests is not None:
            return ()
        return tuple(f"how many requests come is unknown: peer {each}" for each in self.peers.failing)

    def _tell(self, before: Recommendation | None, now: Recommendation) -> None:
        if now.desired is not None and (before is None or now.desired != before.desired):
            servers = "1 server is" if now.desired == 1 else f"{now.desired} servers are"
            self._log(logging.INFO, f"{servers} recommended: {now.reason}")
        if before is not None and now.desired is not None and now.stale and not before.stale:
            self._log(logging.WARNING, "nothing is recommended any more: the load of no server is known")
        if before is not None and now.calm != before.calm:
            self._log(logging.INFO, _CALM if now.calm else "the pool is not calm any more")
        self._tell_verdict(now)
        if (now.min_too_low or 0) > self._too_low:
            self._too_low = now.min_too_low or 0
            self._log(
                logging.WARNING,
                f"min_replicas too low: the fastest ramp within {now.lead_s:.0f} s, which a server takes to come,"
                f" needs {now.min_too_low}",
            )

    def _tell_verdict(self, now: Recommendation) -> None:
        """Once it has lasted for a window: near a bound it goes to and fro."""
        if now.verdict is None:
            return
        if now.verdict is not self._verdict:
            self._verdict, self._verdict_since_s = now.verdict, now.at_s
        lasted_s = now.at_s - self._verdict_since_s
        if now.verdict is self._told_verdict or lasted_s < self.recommender.policy.window_s:
            return
        self._told_verdict = now.verdict
        level, words = _VERDICTS[now.verdict]
        first_token = f"time to first token {now.ttft_p99_s:.3g} s (p99), target {now.ttft_target_s:.3g} s"
        self._log(level, f"verdict {now.verdict}: {first_token}; {words}")

    def _log(self, level: int, words: str) -> None:
        log.log(level, "pool %s: %s", self._pool.name, words)
