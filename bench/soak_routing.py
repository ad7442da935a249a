"""Does routing keep its memory and its accounts over millions of requests?

    python -m bench.soak_routing [--requests 10_000_000] [--servers 16] [--profile cache-aware]

Requests with prompts that are never seen again go through the whole decision, body and all, in virtual time: 10 million
are two days of 16 servers, and take an hour or two. Servers are as simple as can be (prompts in turn, answers side by
side). Some clients go away before the first token, some requests are retried on another server, some are never logged,
some streams are closed early; and all the while servers leave, join, restart, and fail to answer a scrape.

A row tells of each twentieth of the run: the memory of the process, what is remembered, and requests a second of this
machine's time. At the end, when all requests are over, nothing may be in flight, owed or remembered by its id, and the
memory must be where it was when the index had filled; else the exit code is 1.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from extproc.decision import Completion, Pick
from extproc.endpoint import Address, Endpoint
from extproc.pool.ledger import DETACHED_MAX_S, LOG_WAIT_S
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.sample import Histogram, LoadSample
from extproc.prefix.approximate import DEFAULT_MAX_BLOCKS
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES

POLL_S = 0.5
CHURN_S = 20.0
TOKENS_PER_S = 8000.0
PROMPT_BYTES = 8000
PROMPT_TOKENS = PROMPT_BYTES // 4
LOAD = 0.7  # of what the servers can compute
FILLER = b"the prompt is of no matter " * (PROMPT_BYTES // 27)
GROWTH_MB = 20.0  # allowed after the index is full: the allocator's own ups and downs


class Server:
    """A server, by the counters on its page."""

    def __init__(self, address: Address, now: float) -> None:
        self.address = address
        self.restart(now)

    def restart(self, now: float) -> None:
        self.started_s = now
        self.free_s = now  # until then it computes prompts
        self.waiting = self.running = 0
        self.first_tokens = 0
        self.ttft_sum_s = self.prompt_tokens = self.generation_tokens = 0.0

    def page(self, now: float) -> LoadSample:
        ttft = Histogram((float("inf"),), (float(self.first_tokens),), self.ttft_sum_s)
        return LoadSample(
            now,
            running=float(self.running),
            waiting=float(self.waiting),
            kv_usage_ratio=min(1.0, self.running / 100),
            sleeping=False,
            block_size_tokens=16,
            kv_blocks=25_000,
            engines=1,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            ttft=ttft,
            process_start_s=self.started_s,
        )


@dataclass(eq=False, slots=True)
class Running:
    """A request on a server: it counts there only while the server is the process that it was sent to."""

    pick: Pick
    server: Server
    started_s: float  # of the server's process
    sent_s: float
    answer_tokens: int
    detached: bool


@dataclass(frozen=True, slots=True)
class Row:
    requests: int
    rss_mb: float
    blocks: int
    in_flight: int
    remembered: int  # pick ids
    per_s: float  # requests, in this machine's time


class Soak:
    """The fleet, the router, and what happens next."""

    def __init__(
        self,
        *,
        servers: int = 16,
        profile: str = "cache-aware",
        max_blocks: int = DEFAULT_MAX_BLOCKS,
        seed: int = 1,
    ) -> None:
        self.now = 0.0
        self.members: dict[int, Member] = {}  # that may still have requests, by identity
        self._rng = Random(seed)
        self._most = servers
        self._pool = Pool("soak", stale_after_s=3.0)
        self.router = Router([PoolPlan(self._pool, PROFILES[profile], 3, max_blocks)], rng=Random(seed))
        self._servers: dict[Address, Server] = {}
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, str, object]] = []
        self._addresses = [Address.of(f"10.0.{i // 250}.{i % 250 + 1}", 8000) for i in range(servers)]
        for address in self._addresses:
            self._join(address)
        self._later(CHURN_S, "churn", None)

    def run(self, requests: int, rows: int = 20) -> Iterator[Row]:
        per_s = LOAD * self._most * TOKENS_PER_S / PROMPT_TOKENS
        every = max(1, requests // rows)
        began = time.perf_counter()
        for number in range(1, requests + 1):
            self._until(self.now + self._rng.expovariate(per_s))
            self._send(number)
            if number % every == 0:
                took = time.perf_counter() - began
                yield self.row(number, every / took)
                began = time.perf_counter()

    def finish(self) -> list[str]:
        """Let everything end. What is wrong then, in words; nothing is right. It cannot run on after that."""
        self._until(self.now + 600.0)
        for wait_s in (DETACHED_MAX_S, LOG_WAIT_S):
            self.now += wait_s + 1.0
            self.router.stream_ended("tick", self.now)
        ledger, left = self.router.ledger, []
        in_flight = sum(member.in_flight for member in self.members.values())
        if in_flight or ledger.open_count:
            left.append(f"{in_flight} requests in flight, {ledger.open_count} open reservations")
        if ledger._by_id:
            left.append(f"{len(ledger._by_id)} pick ids remembered")
        owed = sum(member.prefill.owed(self.now) for member in self.members.values())
        if owed:
            left.append(f"{owed} prompt tokens owed")
        if ledger.outcomes.total() != ledger.picks.total():
            left.append(f"{ledger.picks.total()} picks with {ledger.outcomes.total()} outcomes")
        return left

    def row(self, requests: int, per_s: float) -> Row:
        ledger = self.router.ledger
        blocks = self.router.placements["soak"].index.stats().blocks
        return Row(requests, rss_mb(), blocks, ledger.open_count, len(ledger._by_id), per_s)

    def _later(self, after_s: float, kind: str, what: object) -> None:
        heapq.heappush(self._events, (self.now + after_s, next(self._numbers), kind, what))

    def _until(self, then: float) -> None:
        while self._events and self._events[0][0] <= then:
            self.now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_on_{kind}")(what)
        self.now = then

    def _send(self, number: int) -> None:
        who = b',"user":"u%d"' % number if number % 2 else b""
        body = b'{"model":"m","messages":[{"role":"user","content":"%d %s"}]%s}' % (number, FILLER, who)
        pick = self.router.route(RawRequest("POST", "/v1/chat/completions", {}, body), self.now)
        assert isinstance(pick, Pick)
        rng = self._rng
        detached = rng.random() < 0.2
        if detached:
            self.router.detach(pick.pick_id)
            self.router.stream_ended(pick.pick_id, self.now)
        address = pick.address if rng.random() < 0.97 or not pick.fallbacks else pick.fallbacks[0]  # a retry
        server = self._servers[address]
        run = Running(pick, server, server.started_s, self.now, rng.randint(1, 200), detached)
        server.waiting += 1
        server.free_s = max(self.now, server.free_s) + PROMPT_TOKENS / TOKENS_PER_S
        gone = rng.random() < 0.05
        first_s = server.free_s - self.now
        self._later(first_s * rng.random() if gone else first_s, "abort" if gone else "first", run)

    def _on_first(self, run: Running) -> None:
        server = run.server
        if server.started_s == run.started_s:
            server.waiting -= 1
            server.running += 1
            server.first_tokens += 1
            server.ttft_sum_s += self.now - run.sent_s + 0.02
            server.prompt_tokens += PROMPT_TOKENS
        self._later(run.answer_tokens * 0.02, "end", run)

    def _on_end(self, run: Running) -> None:
        if run.server.started_s == run.started_s:
            run.server.running -= 1
            run.server.generation_tokens += run.answer_tokens
        self._over(run, 200 if self._rng.random() < 0.98 else 500, ())

    def _on_abort(self, run: Running) -> None:
        if run.server.started_s == run.started_s:
            run.server.waiting -= 1
        self._over(run, None, ("downstream_remote_reset",))

    def _over(self, run: Running, status: int | None, flags: tuple[str, ...]) -> None:
        if not run.detached:
            self.router.stream_ended(run.pick.pick_id, self.now)
        if self._rng.random() < 0.98:  # else its log entry is lost
            retried = run.server.address != run.pick.address
            told = Completion(run.pick.pick_id, run.server.address, True, status, flags, attempts=1 + retried)
            self._later(0.25, "log", told)

    def _on_log(self, told: Completion) -> None:
        self.router.complete(told, self.now)

    def _on_poll(self, server: Server) -> None:
        if self._servers.get(server.address) is not server:
            return
        self._later(POLL_S, "poll", server)
        if self._rng.random() < 0.02:
            self._pool.scrape_failed(server.address, "timeout", self.now, answered=False, refused=False)
        else:
            self.router.observe("soak", server.address, server.page(self.now), self.now)

    def _on_churn(self, _: object) -> None:
        self._later(CHURN_S, "churn", None)
        absent = [address for address in self._addresses if address not in self._servers]
        what = self._rng.random()
        if absent and (what < 0.4 or len(absent) > self._most // 4):
            self._join(self._rng.choice(absent))
        elif what < 0.8:
            del self._servers[self._rng.choice(list(self._servers))]
            self._set_members()
        else:
            self._rng.choice(list(self._servers.values())).restart(self.now)

    def _join(self, address: Address) -> None:
        self._servers[address] = Server(address, self.now)
        self._set_members()
        self._later(POLL_S * self._rng.random(), "poll", self._servers[address])

    def _set_members(self) -> None:
        self._pool.set_endpoints(Endpoint(address) for address in self._servers)
        here = {id(member) for member in self._pool.members}
        self.members = {key: member for key, member in self.members.items() if key in here or member.in_flight}
        self.members.update((id(member), member) for member in self._pool.members)


def rss_mb() -> float:
    """Memory of this process now; Linux only."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--servers", type=int, default=16)
    parser.add_argument("--profile", choices=PROFILES, default="cache-aware")
    parser.add_argument("--max-blocks", type=int, default=DEFAULT_MAX_BLOCKS)
    options = parser.parse_args()
    soak = Soak(servers=options.servers, profile=options.profile, max_blocks=options.max_blocks)
    print(f"{'requests':>12}{'RSS MB':>9}{'blocks':>10}{'in flight':>11}{'ids':>7}{'requests/s':>12}", flush=True)
    rows = []
    for row in soak.run(options.requests):
        rows.append(row)
        print(
            f"{row.requests:12}{row.rss_mb:9.0f}{row.blocks:10}{row.in_flight:11}{row.remembered:7}{row.per_s:12.0f}",
            flush=True,
        )
    wrong = soak.finish()
    growth_mb = rows[-1].rss_mb - rows[len(rows) // 2].rss_mb
    if growth_mb > GROWTH_MB:
        wrong.append(f"memory grew by {growth_mb:.0f} MB over the second half")
    print("wrong: " + "; ".join(wrong) if wrong else f"nothing left; {growth_mb:+.1f} MB over the second half")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
