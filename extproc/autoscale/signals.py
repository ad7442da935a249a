"""What do the looks at a pool come to?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from extproc.autoscale.arrivals import BURST_RATIO, Arrivals
from extproc.autoscale.backlog import Backlog
from extproc.autoscale.first_token import FirstTokens, p99_s
from extproc.autoscale.known import Measured, known, mean
from extproc.autoscale.reading import PoolReading, ServerReading, ServerState
from extproc.autoscale.thresholds import LEAST_WAITING
from extproc.autoscale.window import PARTS, Window

WAITING_WINDOWS = 3  # bursts that come again and again within so many are no single ones
LONG_S = 3600.0  # so long a pool must have been without trouble to be thought of as calm
TTFT_WINDOWS = 5  # the 99th percentile takes a hundred requests: it is read over more than one window


@dataclass(frozen=True, slots=True)
class Signals:
    """A pool now. None is unknown. Means over the window, of the ready servers whose load is known."""

    at_s: float
    ready: int = 0
    fresh: int = 0  # of the ready ones, those that have not been so for a window
    starting: int = 0
    draining: int = 0
    stale: int = 0
    rate_per_s: Measured | None = None  # of all requests that come to the router for the pool
    growth_per_s2: float | None = None  # of that rate, each second
    growth_chance_per_s2: float = 0.0  # of that, what chance may make of it
    fastest_rise_per_s: float | None = None  # of that rate, within one lead
    jumped: bool = False  # that rate, within the last window, and by no chance
    prompt_tokens: Measured | None = None  # of a request
    uncached_tokens: Measured | None = None  # of a request
    output_tokens: Measured | None = None  # of an answer
    waiting: Measured | None = None  # requests per server
    waiting_lasting: Measured | None = None  # the same less that of a single burst; None: few wait
    waiting_gone_in_s: float | None = None  # as the queue is worked off now; None: it is not
    running: Measured | None = None  # requests per server
    kv_usage: Measured | None = None  # 0..1 per server
    kv_usages: tuple[float, ...] = ()  # of each server, ascending
    preempting: bool = False  # a server preempted requests within the window
    all_loads_known: bool = False  # of every ready server: waiting, running and KV usage
    ttft_p99_s: Measured | None = None
    ttft_long_p99_s: Measured | None = None  # over an hour
    age_s: float | None = None  # since the load of any server was last known; None: never

    @property
    def provisioned(self) -> int:
        """Servers that serve or will: draining ones excluded."""
        return self.ready + self.starting + self.stale


class _Server:
    """What is kept of one server."""

    __slots__ = (
        "kv_usage",
        "preempted_at_s",
        "preemptions",
        "ready_s",
        "running",
        "sample_at_s",
        "ttft",
        "ttft_long",
        "waiting",
    )

    def __init__(self, window_s: float, gap_s: float) -> None:
        self.waiting = Window(WAITING_WINDOWS * window_s, gap_s, parts=WAITING_WINDOWS * PARTS)
        self.running = Window(window_s, gap_s)
        self.kv_usage = Window(window_s, gap_s)
        self.ttft = FirstTokens(TTFT_WINDOWS * window_s)
        self.ttft_long = FirstTokens(LONG_S)
        self.preemptions: float | None = None
        self.preempted_at_s = float("-inf")
        self.sample_at_s = float("-inf")
        self.ready_s: float | None = None  # first seen so

    def add(self, at_s: float, reading: ServerReading) -> None:
        if at_s <= self.sample_at_s:
            return
        self.sample_at_s = at_s
        self.waiting.add(at_s, reading.waiting)
        self.running.add(at_s, reading.running)
        kv = known(reading.kv_usage_ratio)
        self.kv_usage.add(at_s, None if kv is None else min(kv, 1.0))
        self.ttft.add(at_s, reading.ttft)
        preemptions = known(reading.preemptions)
        if preemptions is not None and self.preemptions is not None and preemptions > self.preemptions:
            self.preempted_at_s = at_s
        self.preemptions = preemptions


class PoolSignals:
    """Those of one pool. Memory is bounded by the number of servers."""

    def __init__(self, window_s: float, gap_s: float) -> None:
        """`gap_s`: a sample of a server is believed for so long."""
        self._window_s = window_s
        self._gap_s = gap_s
        self._servers: dict[str, _Server] = {}
        self._arrivals = Arrivals(window_s)
        self._backlog = Backlog(window_s)
        self._known_at_s: float | None = None  # the load of some server
        self._long_p99: Measured | None = None
        self._long_at_s = float("-inf")  # when that was read

    def add(self, reading: PoolReading, lead_s: float) -> Signals:
        """Take in a look, and say what all looks come to. `lead_s`: how long a server takes to come."""
        now = reading.at_s
        self._arrivals.add(now, reading.offered, lead_s, _running(reading.servers))
        self._servers = {
            each.key: self._servers.get(each.key) or _Server(self._window_s, self._gap_s) for each in reading.servers
        }
        for each in reading.servers:
            age_s = known(each.age_s)
            if age_s is not None:
                self._servers[each.key].add(now - age_s, each)
        for each in reading.servers:
            if each.state is ServerState.READY and self._servers[each.key].ready_s is None:
                self._servers[each.key].ready_s = now
        ready = [self._servers[each.key] for each in reading.servers if each.state is ServerState.READY]
        serving = [self._servers[each.key] for each in reading.servers if each.state is not ServerState.STARTING]
        waiting = [server.waiting.mean(now, over_s=self._window_s) for server in ready]
        running = [server.running.mean(now) for server in ready]
        kv_usage = [server.kv_usage.mean(now) for server in ready]
        mean_waiting = _mean(waiting)
        gone_in_s = self._backlog.gone_in_s(now, None if mean_waiting is None else mean_waiting.value, len(ready))
        # No threshold is lower, so nobody asks what of less would last: most pools, and most of the time.
        asked = mean_waiting is not None and mean_waiting.value > LEAST_WAITING
        if any(value is not None for value in (*waiting, *running, *kv_usage)) or (
            reading.known and not ready and not reading.count(ServerState.STALE)
        ):
            self._known_at_s = now
        return Signals(
            at_s=now,
            ready=len(ready),
            fresh=sum(server.ready_s is None or now - server.ready_s < self._window_s for server in ready),
            starting=reading.count(ServerState.STARTING),
            draining=reading.count(ServerState.DRAINING),
            stale=reading.count(ServerState.STALE),
            rate_per_s=self._arrivals.rate_per_s(now),
            growth_per_s2=self._arrivals.growth_per_s2(now),
            growth_chance_per_s2=self._arrivals.growth_chance_per_s2(now),
            fastest_rise_per_s=self._arrivals.fastest_rise_per_s,
            jumped=self._arrivals.jumped(now),
            prompt_tokens=self._arrivals.tokens("prompt_tokens", now),
            uncached_tokens=self._arrivals.tokens("uncached_tokens", now),
            output_tokens=self._arrivals.tokens("output_tokens", now),
            waiting=mean_waiting,
            waiting_lasting=_lasting(ready, now, self._window_s) if asked else None,
            waiting_gone_in_s=gone_in_s,
            running=_mean(running),
            kv_usage=_mean(kv_usage),
            kv_usages=tuple(sorted(each.value for each in kv_usage if each is not None)),
            preempting=any(now - server.preempted_at_s <= self._window_s for server in ready),
            all_loads_known=all(
                each is not None and each.age_s <= self._gap_s for each in (*waiting, *running, *kv_usage)
            ),
            ttft_p99_s=p99_s(server.ttft.lately(now) for server in serving),
            ttft_long_p99_s=self._long_p99_s(serving, now),
            age_s=None if self._known_at_s is None else now - self._known_at_s,
        )

    def _long_p99_s(self, servers: list[_Server], now: float) -> Measured | None:
        """Read once a window: over an hour it changes little, and all histograms are added up for it."""
        if now - self._long_at_s >= self._window_s:
            for server in servers:
                if server.ttft.last is not None:
                    server.ttft_long.add(*server.ttft.last)
            self._long_at_s, self._long_p99 = now, p99_s(server.ttft_long.lately(now) for server in servers)
        return self._long_p99


def _running(servers: Iterable[ServerReading]) -> float | None:
    """Requests at once, on all of them, the same in any order; None: one that may have some does not tell."""
    there = [known(each.running) for each in servers if each.state is not ServerState.STARTING]
    told = [value for value in there if value is not None]
    average = mean(told)
    return None if average is None or len(told) < len(there) else known(average * len(told))


def _mean(values: list[Measured | None]) -> Measured | None:
    """Of those that are known; as old as the oldest."""
    there = [each for each in values if each is not None]
    average = mean(each.value for each in there)
    return None if average is None else Measured(average, max(each.age_s for each in there))


def _lasting(servers: list[_Server], now: float, window_s: float) -> Measured | None:
    """The mean over a window without its busiest part, as long as a burst; or over several windows, if that is more.
    But that is not asked where servers came meanwhile, which are the answer to what waited before."""
    calm = _mean([each.waiting.mean(now, over_s=window_s, leave_out=BURST_RATIO) for each in servers])
    since_s = now - WAITING_WINDOWS * window_s
    if any(each.ready_s is None or each.ready_s > since_s for each in servers):
        return calm
    long = _mean([each.waiting.mean(now) for each in servers])
    return max((each for each in (calm, long) if each is not None), key=lambda each: each.value, default=None)
