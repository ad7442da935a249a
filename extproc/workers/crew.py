"""How do several workers act as one service?

The supervisor has a router of its own, which picks nothing and knows all: it asks the servers and tells the workers
what they say; what a worker tells of its requests goes to it and, through it, to the others. So its pages are those of
a service of one process. It starts the workers, ends them, and starts anew one that has ended by itself. For what that
one had in flight it answers from then on: the requests run on, in Envoy.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from prometheus_client.registry import Collector

from extproc.app import App
from extproc.autoscale.recommendation import Recommendation
from extproc.config.settings import Settings
from extproc.discovery.config_file import Followed
from extproc.endpoint import format_host, split_host_port
from extproc.explanation import Logged
from extproc.front import COUNTED
from extproc.server.listener import ListenError
from extproc.workers.counts import Totals, explanation_of, unpack
from extproc.workers.fleet import Row, Spread, drains_row, failing_row, recommended_row, state_rows
from extproc.workers.link import VERSION, Kind, Link, frame
from extproc.workers.messages import decode, encode
from extproc.workers.metrics import WorkersCollector
from extproc.workers.sharing import Sharing
from extproc.workers.slot import Slot, end
from extproc.workers.timing import CENSUS_S, FLUSH_S

log = logging.getLogger(__name__)

TICK_S = 0.02  # how soon workers are told of a drain that nobody here asked for
SYNC_S = 0.5  # longest wait until all know of one that somebody did
UP_S = 60.0  # a worker that has not opened its port by then is ended
SILENT_S = 30.0  # one that has not reported for so long hangs, and is ended
_EXIT_S = 5.0  # after the longest that a worker may take to end in order
_EOF_S = 1.0  # for the last words of a process that has ended


def app_of(settings: Settings, followed: Followed | None, command: Sequence[str], start: Mapping[str, Any]) -> App:
    """A service whose `settings.workers` are processes; the arguments are those of `App` and `Crew`. Raises ListenError
    as `App` does."""
    spread = Spread()
    return App(settings, followed=followed, fronts=lambda app: Crew(app, spread, command, start), heard=spread)


class CrewError(Exception):
    """No worker can be kept running."""


class Crew:
    """The workers of one `App`, in the place of its `Front`."""

    def __init__(self, app: App, spread: Spread, command: Sequence[str], start: Mapping[str, Any]) -> None:
        """`spread`: is told what the app hears of servers. `command`: runs a worker, with the number of the file that
        is its end of the link as its last argument. `start`: is told to each worker, beside its settings."""
        self._app = app
        self._command = command
        self._start = start
        self._sharing = Sharing(app.router, keep_taught=True, on_news=self._news)
        self._totals = Totals(app.router, COUNTED)
        self._rows: list[Row] = []
        self._told: dict[tuple[str, str], Row] = {}  # the last drains and failures, by kind and pool
        self._recommended: dict[str, Recommendation | None] = {}
        self._leaving = False
        self._numbers = itertools.count()
        self._looks: set[asyncio.Future[None]] = set()
        settings = app.settings
        host, _ = split_host_port(settings.grpc.listen, lowest_port=0)
        self._slots: list[Slot] = []
        for number, port in enumerate(settings.worker_ports):
            grpc = settings.grpc.model_copy(update={"listen": format_host(host, port)})
            own = settings.model_copy(update={"grpc": grpc, "workers": 1})
            self._slots.append(Slot(number, own.model_dump_json()))
        spread.on_row = self._tell

    # Of `Fronts`.

    @property
    def address(self) -> str:
        return ", ".join(slot.address for slot in self._slots if slot.address)

    @property
    def up(self) -> bool:
        """Whether one of them, at least, says that it is ready."""
        return any(slot.report.get("ready") for slot in self._slots)

    def open(self) -> None:
        """Raises ListenError for ports that there are not."""
        last = self._app.settings.worker_ports[-1]
        if last > 65535:
            raise ListenError(f"workers: the last of {len(self._slots)} would listen on port {last}; there is none")

    async def start(self) -> None:
        """Raises ListenError: a port cannot be opened."""
        self._app.keeper.drains.tell = self._tell_drains
        for slot in self._slots:
            await self._spawn(slot)
        try:
            async with asyncio.timeout(UP_S):
                await asyncio.gather(*(slot.settled.wait() for slot in self._slots))
        except TimeoutError:
            raise ListenError(f"workers: a port was not opened within {UP_S:g} s of the start") from None
        for slot in self._slots:
            if slot.error is not None:
                raise ListenError(slot.error)

    async def leave(self, notice_s: float, grace_s: float) -> None:
        """Have all workers end in order, and wait for it."""
        self._leaving = True
        for slot in self._slots:
            if slot.link is not None:
                slot.link.send(Kind.STOP, orjson.dumps({"notice_s": notice_s, "grace_s": grace_s}))
        longest_s = notice_s + grace_s + _EXIT_S
        ends = [asyncio.ensure_future(slot.process.wait()) for slot in self._slots if slot.process and slot.alive]
        if ends:
            _, left = await asyncio.wait(ends, timeout=longest_s)
            for each in left:
                each.cancel()
            if left:
                log.error("%d workers did not end within %.0f s: they are killed", len(left), longest_s)

    async def close(self) -> None:
        self._leaving = True
        self.kill()
        for slot in self._slots:
            if slot.process is not None:
                await slot.process.wait()
            if slot.link is not None:
                slot.link.cut()

    def kill(self) -> None:
        """End all at once."""
        for slot in self._slots:
            slot.kill()

    def background(self) -> dict[str, Any]:
        return {"workers": self._run()}

    def counts(self) -> dict[str, int]:
        return self._totals.service()

    def decisions(self) -> tuple[list[tuple[str, float]], float]:
        return self._totals.durations.cumulative()

    def eds_status(self) -> dict[str, Any]:
        found = [slot.report["eds"] for slot in self._slots if slot.report]
        counts = self.counts()
        return {
            "pushes": counts["eds_pushes"],
            "refused": counts["eds_refused"],
            "versions": found[0]["versions"] if found else {},
            "streams": [stream for each in found for stream in each["streams"]],
        }

    def processes(self) -> list[dict[str, Any]]:
        return [slot.shown() for slot in self._slots]

    def collectors(self) -> list[Collector]:
        return [WorkersCollector(self.processes)]

    # Processes.

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for slot in self._slots:
                tasks.create_task(self._mind(slot), name=f"worker {slot.number}")
            tasks.create_task(self._tick(), name="what workers are told")
            tasks.create_task(self._count_open(), name="census")

    async def _spawn(self, slot: Slot) -> None:
        slot.begin(self._app.clock())
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            slot.process = await asyncio.create_subprocess_exec(
                *self._command,
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
            )
        _, slot.link = await asyncio.get_running_loop().create_unix_connection(
            lambda: Link(partial(self._receive, slot), partial(self._lost, slot, slot.eof)), sock=ours
        )
        first = {**self._start, "version": VERSION, "number": slot.number, "settings": slot.settings}
        slot.link.send(Kind.START, orjson.dumps(first))

    async def _mind(self, slot: Slot) -> None:
        """See that it runs."""
        while True:
            assert slot.process is not None, "it was started"
            code = await slot.process.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(slot.eof.wait(), _EOF_S)
            taken_over = self._gone(slot)
            if self._leaving:
                return
            pause_s = slot.restarts.ended(slot.started_s, self._app.clock())
            words = f"worker {slot.number} (process {slot.process.pid}) {_ended_by(code)}"
            if slot.error is not None:
                words += f": {slot.error}"
            if pause_s is None:
                slot.given_up = True
                log.critical("%s, again and again soon after its start: it is not started any more", words)
                if all(each.given_up for each in self._slots):
                    raise CrewError("no worker can be kept running")
                return
            level = logging.ERROR if code else logging.WARNING
            log.log(level, "%s; of its requests %d go on; it is started again in %.1f s", words, taken_over, pause_s)
            await asyncio.sleep(pause_s)
            if self._leaving:
                return
            await self._spawn(slot)

    def _gone(self, slot: Slot) -> int:
        """Its process has ended. How many open picks of it are ours now."""
        for payload in slot.syncs:
            self._synced(slot, payload)
        if slot.link is not None:
            slot.link.cut()
        self._totals.gauges(slot.number, {})
        slot.settled.set()
        slot.report = {}
        prefix, slot.prefix = slot.prefix, None
        return 0 if prefix is None else self._sharing.died(prefix)

    def _lost(self, slot: Slot, eof: asyncio.Event) -> None:
        """Without a link it is of no use; it is about to end by itself, or has to be."""
        eof.set()
        if eof is slot.eof:
            slot.settled.set()
            asyncio.get_running_loop().call_later(_EOF_S, end, slot.process)

    # What they say.

    def _receive(self, slot: Slot, kind: Kind, payload: bytes) -> None:
        slot.heard_s = self._app.clock()
        match kind:
            case Kind.SHARED:
                self._sharing.apply(decode(payload), slot.heard_s)
                self._pass_on(frame(kind, payload), but=slot)
            case Kind.COUNTS:
                self._counted(slot, orjson.loads(payload))
            case Kind.LOOK_AGAIN:
                asked = orjson.loads(payload)
                task = asyncio.ensure_future(self._look_again(slot, asked["pool"], asked["number"]))
                self._looks.add(task)
                task.add_done_callback(self._looks.discard)
            case Kind.SYNCED:
                self._synced(slot, payload)
            case Kind.HELLO:
                self._greeted(slot, orjson.loads(payload))
            case _:
                raise ValueError(f"{kind.name} is not for the supervisor")

    def _greeted(self, slot: Slot, hello: Mapping[str, Any]) -> None:
        """It can serve: tell it all there is to know, and from now on all that comes."""
        slot.error = hello.get("error")
        if slot.error is None:
            assert slot.link is not None, "it has spoken"
            self._flush()
            rows = state_rows(self._app.router, self._app.keeper.failing, self._app.keeper.autoscaling)
            slot.link.send(Kind.FLEET, _json(rows))
            slot.link.send(Kind.SHARED, encode(self._sharing.everything()))
            slot.prefix, slot.address = hello["prefix"], hello["address"]
        slot.settled.set()

    def _counted(self, slot: Slot, report: dict[str, Any]) -> None:
        counts = unpack(report.pop("counts"))
        self._totals.add(counts, slot.counts)
        self._totals.gauges(slot.number, report["gauges"])
        slot.counts, slot.report = counts, report
        router = self._app.router
        for pick_id, found in report.pop("decisions"):
            reservation = router.ledger.find(pick_id)
            if reservation is not None:
                router.decisions.append(Logged(reservation, explanation_of(found)))

    async def _look_again(self, slot: Slot, pool: str, number: int) -> None:
        link = slot.link
        await self._app.keeper.look_again(pool)
        self._flush()
        if link is not None:
            link.send(Kind.LOOKED, orjson.dumps({"number": number}))

    # What they are told.

    def _tell(self, row: Row) -> None:
        if not self._rows:
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush)
        self._rows.append(row)

    def _news(self) -> None:
        asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._pass_on(frame(Kind.FLEET, _json(rows)))
        if self._sharing.waiting:
            self._pass_on(frame(Kind.SHARED, encode(self._sharing.take())))

    def _pass_on(self, framed: bytes, but: Slot | None = None) -> None:
        for slot in self._slots:
            if slot.prefix is not None and slot is not but and slot.link is not None:
                slot.link.pass_on(framed)

    async def _tell_drains(self) -> None:
        """Have all workers know of the drains as they are, and wait for that: who asked for one may rely on it."""
        for pool in self._app.router.pools:
            self._tell_if_new(drains_row(pool))
        self._flush()
        payload = b"%d" % next(self._numbers)
        waiting = []
        for slot in self._slots:
            if slot.prefix is not None and slot.link is not None:
                slot.syncs[payload] = asyncio.get_running_loop().create_future()
                waiting.append(slot.syncs[payload])
                slot.link.send(Kind.SYNC, payload)
        if waiting:
            await asyncio.wait(waiting, timeout=SYNC_S)
        for slot in self._slots:
            slot.syncs.pop(payload, None)

    def _synced(self, slot: Slot, payload: bytes) -> None:
        sync = slot.syncs.get(payload)
        if sync is not None and not sync.done():
            sync.set_result(None)

    async def _tick(self) -> None:
        """Tell what nobody tells us of when it changes."""
        while True:
            keeper, now = self._app.keeper, self._app.clock()
            for name, plan in self._app.router.plans.items():
                self._tell_if_new(drains_row(plan.pool))
                self._tell_if_new(failing_row(name, keeper.failing.get(name, {})))
            for name in keeper.autoscaling.names:
                found = keeper.autoscaling.get(name)
                if found is not self._recommended.get(name):
                    self._recommended[name] = found
                    self._tell(recommended_row(name, keeper.autoscaling))
            for slot in self._slots:
                self._end_if_silent(slot, now)
            await asyncio.sleep(TICK_S)

    def _tell_if_new(self, row: Row) -> None:
        key = row[0], row[1]
        if row != self._told.get(key, [*key, type(row[2])()]):
            self._told[key] = row
            self._tell(row)

    def _end_if_silent(self, slot: Slot, now: float) -> None:
        if not slot.alive or self._leaving:
            return
        silent_s = now - slot.heard_s
        if silent_s > (UP_S if slot.prefix is None else SILENT_S):
            log.error("worker %d has said nothing for %.0f s: it is ended", slot.number, silent_s)
            slot.heard_s = now
            slot.kill()

    async def _count_open(self) -> None:
        while True:
            await asyncio.sleep(CENSUS_S)
            census = self._sharing.census()
            if census:
                self._flush()
                self._pass_on(frame(Kind.SHARED, encode(census)))


def _json(rows: list[Row]) -> bytes:
    return orjson.dumps(rows)


def _ended_by(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
