"""One churn run: the stack starts, clients stream, events happen in seeded order, all ends, and is judged."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Self

import aiohttp

from tests.churn import events
from tests.churn.front import SRV_NAME, Front, Service
from tests.churn.load import Load
from tests.churn.servers import Server
from tests.churn.verdict import Arrival, Drained, Happening, Verdict, judge
from tests.support.dns_server import DnsServer, dns_server
from tests.support.envoy_config import free_port
from tests.support.envoy_stack import eventually

LEAVE = {"vllm": 3, "vllm-srv": 1}  # servers of a pool that are in service and left alone, whatever happens


@dataclass(frozen=True, slots=True)
class Options:
    """What to run. A stream of 5 to 60 s is `scale` times as long."""

    seed: int = 1
    seconds: float = 180.0  # in which events begin
    events: int = 30
    streams: int = 30  # at once
    scale: float = 0.25
    servers: int = 6
    srv_servers: int = 2
    token_s: float = 0.1  # between two tokens of an answer
    deadline_s: float = 60.0  # of drains: longer than any stream
    quick: bool = False  # the goodbye of the service, and health checks of it, faster than as shipped


@dataclass(slots=True)
class Happened:
    """One event, for the table."""

    name: str
    kind: str
    from_s: float  # of the run
    to_s: float | None = None
    words: str = ""


@dataclass(slots=True)
class Report:
    """What the run found."""

    options: Options
    events: list[Happened]
    verdict: Verdict
    in_flight_end: int
    missed: list[str]
    seconds: float
    errors: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        count = self.verdict.count
        return {
            "events": len(self.events),
            "requests": self.verdict.requests,
            "client_errors": len(self.verdict.causes),
            "cut_by_kill": count("kill"),
            "cut_by_drain": count("stop"),
            "cut_by_service_restart": count("service"),
            "cut_by_flapping": count("flap"),
            "unexplained": count("unexplained"),
            "sent_after_drain_ack": len(self.verdict.sent_after_ack),
            "on_their_way_at_drain_ack": len(self.verdict.on_their_way),
            "longest_on_its_way_s": round(max((late for _, late in self.verdict.on_their_way), default=0.0), 3),
            "in_flight_end": self.in_flight_end,
            "missed": self.missed,
            "seconds": round(self.seconds, 1),
            "options": asdict(self.options),
            "event_list": [asdict(each) for each in self.events],
            "errors": self.errors,
        }


@dataclass(eq=False)
class Churn:
    """The run's state, which events work on."""

    options: Options
    folder: Path
    binary: Path | None = None
    say: Callable[[str], None] = print
    servers: list[Server] = field(default_factory=list)
    drains: list[Drained] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    happened: list[Happened] = field(default_factory=list)
    service_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    front: Front = field(init=False)
    load: Load = field(init=False)
    dns: DnsServer = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = time.time()
        self._takes = Random(f"takes {self.options.seed}")
        self._services_restarted = 0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self.dns = await stack.enter_async_context(dns_server())
            dns = str(self.dns.address)
            self.front = Front(self.folder, binary=self.binary, quick=self.options.quick, dns=dns)
            stack.push_async_callback(self._stop_servers)
            first = [("vllm", self.options.servers), ("vllm-srv", self.options.srv_servers)]
            # One after the other: all at once they would only wait for each other.
            for pool, count in first:
                for _ in range(count):
                    server = await self.new_server(pool)
                    server.listed, server.busy = True, False
            self.write_list()
            self.write_records()
            stack.push_async_callback(self.front.stop)
            await self.front.start()
            for pool, count in first:
                await eventually(partial(self._envoy_has, pool, count), f"Envoy has the servers of {pool}")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def run(self) -> Report:
        """Everything, to the verdict."""
        options = self.options
        self.load = Load(
            self.front.url,
            seed=options.seed,
            streams=options.streams,
            shortest_s=5 * options.scale,
            longest_s=60 * options.scale,
            token_s=options.token_s,
            srv_share=options.srv_servers / (options.servers + options.srv_servers),
        )
        began_s = self._began_s = time.time()
        self.load.start()
        await asyncio.sleep(min(3.0, options.seconds / 10))
        running = await self._start_events()
        for task in running:
            await task
        left_s = began_s + options.seconds - time.time()
        await asyncio.sleep(max(0.0, left_s))
        self.load.check()
        self.say(f"no more requests; {self.load.running} streams run to their ends")
        await self.load.stop()
        in_flight_end = await self._in_flight_at_the_end()
        seconds = time.time() - began_s
        await self.front.stop()
        return self._report(in_flight_end, seconds)

    async def _start_events(self) -> list[asyncio.Task[None]]:
        """Each at its time, or later if no server can be taken for any that is left. Those that were started."""
        waiting = events.schedule(Random(f"events {self.options.seed}"), self.options.events)
        every_s = self.options.seconds * 0.9 / len(waiting)
        tasks: list[asyncio.Task[None]] = []
        next_s = time.time()
        deadline_s = next_s + 2 * self.options.seconds + 120
        while waiting:
            await asyncio.sleep(max(0.0, next_s - time.time()))
            self.load.check()
            kind = next((kind for kind in waiting if self.may_take(events.KINDS[kind][1])), None)
            if kind is None:
                if time.time() > deadline_s:
                    raise RuntimeError(f"no server could be taken for these events: {waiting}")
                await asyncio.sleep(0.2)
                continue
            waiting.remove(kind)
            happened = Happened(f"{len(self.happened) + 1} {kind}", kind, time.time() - self._began_s)
            self.happened.append(happened)
            tasks.append(asyncio.create_task(self._event(happened), name=happened.name))
            await asyncio.sleep(0)  # it takes its server
            next_s = max(next_s + every_s, time.time())
        return tasks

    async def _event(self, happened: Happened) -> None:
        self._tell(f"{happened.name} ... ({self.load.running} streams run)")
        try:
            happened.words = await events.KINDS[happened.kind][0](self, happened.name)
        except (AssertionError, RuntimeError, OSError, aiohttp.ClientError, TimeoutError) as error:
            happened.words = f"FAILED: {type(error).__name__}: {error}"
            self.problems.append(f"{happened.name}: {type(error).__name__}: {error}")
        happened.to_s = time.time() - self._began_s
        self._tell(f"{happened.name}: {happened.words}")

    def _tell(self, words: str) -> None:
        self.say(f"{time.time() - self._began_s:6.1f} s  {words}")

    # What events use.

    def rng(self, name: str) -> Random:
        return Random(f"{self.options.seed} {name}")

    def listed(self, pool: str) -> list[Server]:
        """Those that its source names."""
        return [server for server in self.servers if server.pool == pool and server.listed]

    def may_take(self, pool: str | None) -> bool:
        """Whether enough servers stay that nothing happens to."""
        return pool is None or len(self._free(pool)) > LEAVE[pool]

    def take(self, pool: str, *, wanted: Server | None = None) -> Server:
        """A server for an event to do something to; it is the event's until it is not busy any more."""
        free = self._free(pool)
        if wanted is None and free:  # one with streams, if the lot falls so
            some = self._takes.sample(free, max(1, len(free) - 1))
            wanted = max(some, key=lambda server: len(server.open_requests()))
        if wanted not in free or len(free) <= LEAVE[pool]:
            raise RuntimeError(f"no server of {pool} can be taken")
        wanted.busy = True
        return wanted

    def _free(self, pool: str) -> list[Server]:
        return [server for server in self.listed(pool) if server.up and not server.busy]

    async def new_server(self, pool: str, *, port: int | None = None) -> Server:
        """One more, started, busy and not listed yet."""
        name = f"s{len(self.servers) + 1}"
        server = Server(name, port or free_port(), pool, self.folder, self.options.token_s, busy=True)
        self.servers.append(server)
        await server.start()
        return server

    def write_list(self) -> None:
        self.front.list_servers(self.listed("vllm"))

    def write_records(self) -> None:
        servers = self.listed("vllm-srv")
        values = []
        for server in servers:
            target = f"{server.name}.vllm.test"
            self.dns.set(target, "A", "127.0.0.1", ttl_s=1)
            values.append(f"0 1 {server.port} {target}.")
        self.dns.set(SRV_NAME, "SRV", *values, ttl_s=1)

    def next_service(self) -> Service:
        """The two in turn."""
        self._services_restarted += 1
        return self.front.services[(self._services_restarted - 1) % 2]

    async def on_all_services(self, method: str, path: str) -> list[Any]:
        """Ask both, none of which is being restarted meanwhile: what one does not know it would not do."""
        async with self.service_lock:
            return [await self.front.ask(service, method, path) for service in self.front.services]

    # The ends.

    async def _envoy_has(self, pool: str, count: int) -> bool:
        return len(await self.front.hosts(pool)) == count

    async def _in_flight_at_the_end(self) -> int:
        """What is counted when nothing runs: by the service, and by the servers."""

        async def counted() -> int:
            return await self.front.in_flight() + sum(len(s.open_requests()) for s in self.servers if s.up)

        deadline_s = time.time() + 15
        while (left := await counted()) and time.time() < deadline_s:  # noqa: ASYNC110 - told by another process
            await asyncio.sleep(0.2)
        return left

    async def _stop_servers(self) -> None:
        for server in self.servers:
            if server.up:
                await server.kill()

    def _report(self, in_flight_end: int, seconds: float) -> Report:
        envoy = self.front.log_entries()
        arrivals = [
            Arrival(str(line["request"]), server.address, float(str(line["at_s"])))
            for server in self.servers
            for line in server.requests()
            if line["what"] == "arrived"
        ]
        verdict = judge(self.load.outcomes, envoy, arrivals, self.happenings, self.drains, self.problems)
        missed = verdict.missed(in_flight_end)
        if len(self.happened) != self.options.events:
            missed.append(f"{len(self.happened)} events of {self.options.events}")
        by_request = {each.request: each for each in self.load.outcomes}
        errors = [
            {"request": request, "at_s": round(by_request[request].ended_s - self._began_s, 2)} | asdict(cause)
            for request, cause in verdict.causes.items()
        ]
        return Report(self.options, self.happened, verdict, in_flight_end, missed, seconds, errors)


def write(report: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.as_json(), indent=1) + "\n")
