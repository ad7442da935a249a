"""What does a worker do? It answers Envoy on a port of its own, from a router that knows what all the others do.

It asks no server and no source anything: the supervisor tells it. When the supervisor ends, or says so, or on SIGTERM,
it ends as a service of one process does: not ready, then no new requests, then the open ones end. Without a supervisor
it takes no new requests from the first moment on.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

import orjson

from extproc.assembly import router_of
from extproc.config.settings import Settings
from extproc.explanation import Logged
from extproc.front import Front
from extproc.keeping import MODELS_WAIT_S
from extproc.readiness import Readiness
from extproc.router import Router
from extproc.server.listener import ListenError
from extproc.workers.counts import GAUGES, counted, explained, pack
from extproc.workers.fleet import ToldFleet
from extproc.workers.link import VERSION, Kind, Link
from extproc.workers.messages import decode, encode
from extproc.workers.sharing import Sharing
from extproc.workers.timing import CENSUS_S, COUNTS_S, FLUSH_S

log = logging.getLogger(__name__)

START_S = 60.0  # longest wait for the supervisor's first word
_LAST_WORDS_S = 1.0  # for them to be on their way
_LOOK_S = MODELS_WAIT_S + 0.1  # what the supervisor takes at most, and the way


class WorkerError(Exception):
    """It cannot serve; the message says why. The supervisor has been told, if it listens."""


class Worker:
    """`run` it once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stopping = False
        self._informed = False
        self._ending = False
        self._within: tuple[float, float] | None = None  # notice and grace, as the supervisor says; None: as set
        self._gone = asyncio.Event()
        self._stop: asyncio.Event
        self._link: Link
        self._first: asyncio.Future[dict[str, Any]]
        self._router: Router
        self._ready: Callable[[], bool]
        self._sharing: Sharing
        self._fleet: ToldFleet
        self._front: Front
        self._looks: dict[int, asyncio.Future[None]] = {}  # asked for and not done, by number
        self._numbers = itertools.count()
        self._last_logged: Logged | None = None

    async def run(self, own: socket.socket, stop: asyncio.Event, started: Callable[[dict[str, Any]], None]) -> None:
        """Serve until `stop` is set, which the supervisor may do, too. `own`: our end of the link. `started` is called
        with what the supervisor says first, before anything is done by it.

        Raises:
            WorkerError: it cannot serve.
        """
        loop = asyncio.get_running_loop()
        self._stop, self._first = stop, loop.create_future()
        _, self._link = await loop.create_unix_connection(lambda: Link(self._receive, self._lost), sock=own)
        try:
            first = await self._first_word()
            started(first)
            await self._serve(Settings.model_validate_json(first["settings"]))
        except ListenError as error:
            raise self._refusal(str(error)) from error
        finally:
            self._ending = True
            self._link.close()  # when all is said
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), _LAST_WORDS_S)

    async def _first_word(self) -> dict[str, Any]:
        try:
            first = await asyncio.wait_for(self._first, START_S)
        except TimeoutError:
            raise WorkerError(f"the supervisor said nothing for {START_S:g} s") from None
        if first["version"] != VERSION:
            raise self._refusal(
                f"the supervisor is of version {first['version']}, the files are of version {VERSION}: the service was"
                " upgraded while it runs; restart it"
            )
        return first

    def _refusal(self, why: str) -> WorkerError:
        self._link.send(Kind.HELLO, orjson.dumps({"error": why}))
        return WorkerError(why)

    async def _serve(self, settings: Settings) -> None:
        router = router_of(settings, self._clock)
        self._router = router
        self._sharing = Sharing(router, on_news=self._news)
        self._fleet = ToldFleet(router, settings, self._clock)
        readiness = Readiness(router, lambda: self._fleet.known, wait_s=settings.ready_wait_s, clock=self._clock)
        self._ready = lambda: readiness() and not self._stopping
        self._front = Front(
            router,
            settings,
            ready=self._ready,
            look_again=self._look_again,
            failing=lambda: self._fleet.failing,
            latest=self._fleet,
            clock=self._clock,
        )
        self._front.open()
        try:
            hello = {"prefix": router.id_prefix, "address": self._front.address}
            self._link.send(Kind.HELLO, orjson.dumps(hello))
            await self._front.start()
            log.info("gRPC on %s", self._front.address)
            async with asyncio.TaskGroup() as tasks:
                coroutines = {"report": self._report(), "census": self._count_open()} | self._front.background()
                background = [tasks.create_task(coroutine, name=name) for name, coroutine in coroutines.items()]
                await self._stop.wait()
                self._stopping = True
                notice_s, grace_s = self._within or (settings.shutdown_notice_s, settings.shutdown_grace_s)
                # Alone, it has no time to give notice: its successor needs the port.
                await self._front.leave(0.0 if self._gone.is_set() else notice_s, grace_s)
                for task in background:
                    task.cancel()
        finally:
            await self._front.close()
            self._flush()
            self._say_counts()
        log.info("stopped")

    # What the supervisor says.

    def _receive(self, kind: Kind, payload: bytes) -> None:
        match kind:
            case Kind.SHARED:
                self._sharing.apply(decode(payload), self._clock())
                if not self._informed:  # the first tells what was before our time
                    self._informed = True
                    self._sharing.lag_s()
            case Kind.FLEET:
                self._fleet.take(orjson.loads(payload))
            case Kind.LOOKED:
                look = self._looks.pop(orjson.loads(payload)["number"], None)
                if look is not None and not look.done():
                    look.set_result(None)
            case Kind.START:
                if not self._first.done():
                    self._first.set_result(orjson.loads(payload))
            case Kind.SYNC:
                self._flush()
                self._link.send(Kind.SYNCED, payload)
            case Kind.STOP:
                told = orjson.loads(payload)
                self._within = told["notice_s"], told["grace_s"]
                self._stop.set()
            case _:
                raise ValueError(f"{kind.name} is not for workers")

    def _lost(self) -> None:
        if not self._first.done():
            self._first.set_exception(WorkerError("the supervisor has gone"))
        self._gone.set()
        if not self._stop.is_set() and not self._ending:
            log.error("the supervisor has gone: ending in order")
            self._stop.set()

    # What is said to it.

    def _news(self) -> None:
        asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        if self._sharing.waiting:
            self._link.send(Kind.SHARED, encode(self._sharing.take()))

    async def _count_open(self) -> None:
        while True:
            await asyncio.sleep(CENSUS_S)
            self._flush()
            self._link.send(Kind.SHARED, encode(self._sharing.census()))

    async def _report(self) -> None:
        while True:
            self._say_counts()
            await asyncio.sleep(COUNTS_S)

    def _say_counts(self) -> None:
        service = self._front.counts()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        report = {
            "counts": pack(counted(self._router, service, self._front.durations)),
            "gauges": {name: value for name, value in service.items() if name in GAUGES},
            "eds": self._front.eds_status(),
            "ready": self._ready(),
            "picks": self._router.picked,
            "lag_s": self._sharing.lag_s(),
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "decisions": [explained(logged) for logged in self._newly_logged()],
        }
        self._link.send(Kind.COUNTS, orjson.dumps(report))

    def _newly_logged(self) -> list[Logged]:
        """Of the decision log, what came since the last time."""
        out = list(
            itertools.takewhile(lambda logged: logged is not self._last_logged, reversed(self._router.decisions))
        )
        if out:
            self._last_logged = out[0]
        return out[::-1]

    async def _look_again(self, pool: str) -> None:
        number = next(self._numbers)
        look = self._looks[number] = asyncio.get_running_loop().create_future()
        self._link.send(Kind.LOOK_AGAIN, orjson.dumps({"pool": pool, "number": number}))
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(look, _LOOK_S)
        finally:
            self._looks.pop(number, None)
