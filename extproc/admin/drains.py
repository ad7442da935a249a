"""What may be asked of drains, and what is the answer? As JSON.

Here pools, the file of drains and the two clocks meet: the core counts in monotonic time, people and the file in the
wall clock's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from extproc.admin.drain_file import DrainFile, Saved
from extproc.admin.drain_view import absent, view
from extproc.endpoint import Address, split_host_port
from extproc.pool.deadline import Bounds, deadline_s, longest_s
from extproc.pool.drain import By, Drain, Phase
from extproc.pool.drains import Change
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.victim import SERVING, NoVictim, no_room, propose
from extproc.router import Router

log = logging.getLogger(__name__)

ASKED_HERE = frozenset({By.OPERATOR, By.SELF})  # the others follow from the endpoint, and are not kept
# The shortest deadline where none is given: an idle server must show twice that it is, and may answer scrapes late.
LEAST_S = 10.0
# A drain whose deadline passed while the service was away: until then its server can show that it is idle.
RESTORED_S = 3.0
# A saved drain whose server is in no pool is kept for so long: it may only be late.
KEPT_S = 86_400.0
_SHOWN = 20  # endpoints named in an error


class DrainError(Exception):
    """A question that has no answer; the message has the cure."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status  # HTTP


class DrainDesk:
    """Starts, shows and cancels drains, and keeps them in the file. All but `save` and `watch` is synchronous."""

    def __init__(
        self,
        router: Router,
        bounds: Bounds,
        *,
        floor: int = 1,
        server_requests: int | None = None,
        file: DrainFile | None = None,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Reads the file, and writes it once to see that it can be. Raises OSError if it cannot."""
        self._router = router
        self._bounds = bounds
        self._floor = floor
        self._server_requests = server_requests
        self._file = file
        self._clock = clock
        self._wall_clock = wall_clock
        self._started = wall_clock()
        self._writing = asyncio.Lock()
        self.tell: Callable[[], Awaitable[None]] | None = None  # waits until all who pick servers know; None: they do
        self._write_failed = False
        self._waiting: dict[tuple[str, Address], Saved] = {}  # saved, and their servers have not appeared yet
        self._written: tuple[Saved, ...] | None = None
        if file is not None:
            kept = [each for each in file.load() if self._started - each.started < KEPT_S]
            self._waiting = {(each.pool, each.endpoint): each for each in kept}
            self._written = tuple(kept)
            file.save(kept)

    # What is asked over HTTP.

    def start(
        self, endpoint: str, *, pool: str | None = None, deadline: float | None = None, by: By = By.OPERATOR
    ) -> dict[str, Any]:
        """Drain a server, or ask for its drain again. `deadline`: seconds from now; None: of one that has begun the one
        it has, else by its requests. Raises DrainError."""
        of, member = self._find(endpoint, pool)
        now = self._clock()
        until_s = None if deadline is None else now + deadline
        if until_s is None and (member.drain is None or member.drain.deadline_s is None):
            until_s = now + self._time_for(member, now)
        warning = None if member.out is not None else self._left_without(of, member, now)
        of.drains.ask(member, by, now, until_s)
        answer = self._view(of, member)
        if warning is not None:
            answer["warning"] = warning
            log.warning("pool %s: %s is drained as asked for, though %s", of.name, member.address, warning)
        return answer

    def cancel(self, endpoint: str, *, pool: str | None = None) -> dict[str, Any]:
        """Bring a server back. Raises DrainError, also where it stays out for another reason."""
        try:
            of, member = self._find(endpoint, pool)
        except DrainError:
            waiting = self._find_waiting(endpoint, pool)
            if waiting is None:
                raise
            del self._waiting[waiting.pool, waiting.endpoint]
            return absent(waiting, self._wall_clock(), phase=None) | self._service()
        of.drains.cancel(member, self._clock(), *ASKED_HERE)
        if member.drain is not None:
            if By.CONFIG in member.drain.asked:
                cure = "its configuration says drained: true; change it there"
            else:
                cure = "its platform is taking it down; that cannot be undone here"
            raise DrainError(409, f"{member.address} stays out: {cure}")
        return self._view(of, member)

    def show(self, endpoint: str, *, pool: str | None = None) -> dict[str, Any]:
        """How a server's drain stands. One that has left its pool is shown while requests run on it.

        Raises DrainError.
        """
        try:
            of, member = self._find(endpoint, pool, gone=True)
        except DrainError:
            waiting = self._find_waiting(endpoint, pool)
            if waiting is None:
                raise
            return absent(waiting, self._wall_clock(), phase=str(waiting.phase)) | self._service()
        return self._view(of, member)

    def every(self) -> list[dict[str, Any]]:
        """All servers that somebody wants out."""
        views = [self._view(pool, member) for pool in self._router.pools for member in pool.drains.members]
        now = self._wall_clock()
        return views + [absent(each, now, phase=str(each.phase)) | self._service() for each in self._waiting.values()]

    def victim(self, pool: str | None = None) -> dict[str, Any]:
        """Who should go, and why; nothing is done. Raises DrainError, also when none should."""
        names = list(self._router.plans)
        if pool is None and len(names) > 1:
            raise DrainError(400, f"there are several pools; name one (pool=), of: {', '.join(names)}")
        of = self._pool(pool if pool is not None else names[0])
        found = propose(
            of.members,
            self._clock(),
            alone_tokens=self._router.placements[of.name].alone_tokens,
            bounds=self._bounds,
            floor=self._floor,
            server_requests=self._server_requests,
        )
        if isinstance(found, NoVictim):
            raise DrainError(409, f"pool {of.name}: no server should go now: {found.why}")
        return self._view(of, found.member) | {
            "why": found.why,
            "tokens_in_flight": found.tokens,
            "alone_tokens": round(found.alone_tokens),
        }

    # What the service does beside.

    def appeared(self, pool: Pool) -> None:
        """The pool's members have changed: take up the saved drains of those that are there."""
        for member in pool.members:
            saved = self._waiting.pop((pool.name, member.address), None)
            if saved is None:
                continue
            if saved.uid != member.endpoint.uid:
                log.info("pool %s: %s is another server than the one that was draining", pool.name, member.address)
                continue
            pool.drains.restore(member, self._restored(saved), self._clock())

    async def save(self) -> None:
        """Bring the file up to date. Raises OSError."""
        if self._file is None:
            return
        async with self._writing:
            drains = self._saved()
            if drains != self._written:
                await asyncio.to_thread(self._file.save, drains)
                self._written = drains
                self._write_failed = False

    async def watch(self, every_s: float) -> None:
        """Let drains come to their ends, log what happens to them, and keep the file up to date."""
        while True:
            now = self._clock()
            for pool in self._router.pools:
                pool.drains.tick(now)
                while pool.drains.events:
                    event = pool.drains.events.popleft()
                    level = logging.WARNING if event.change is Change.EXPIRED else logging.INFO
                    log.log(level, "pool %s: %s", pool.name, event)
            try:
                await self.save()
            except OSError as error:
                if not self._write_failed:
                    self._write_failed = True
                    log.error("drain.state_file: drains would not survive a restart now: %s", error)
            await asyncio.sleep(every_s)

    def _saved(self) -> tuple[Saved, ...]:
        ahead = self._wall_clock() - self._clock()
        found = [
            _of(pool.name, member, ahead)
            for pool in self._router.pools
            for member in pool.drains.members
            if member.drain is not None and member.drain.asked & ASKED_HERE
        ]
        known = {(each.pool, each.endpoint, each.uid): each for each in self._written or ()}
        # The two clocks run apart by a little: that alone is no change.
        kept = [_unless_equal(known.get((each.pool, each.endpoint, each.uid)), each) for each in found]
        return (*kept, *self._waiting.values())

    def _restored(self, saved: Saved) -> Drain:
        now = self._clock()
        behind = now - self._wall_clock()
        until_s = None if saved.deadline is None else saved.deadline + behind
        if until_s is not None and saved.phase is Phase.DRAINING:
            until_s = max(until_s, now + RESTORED_S)
        return Drain.restored(
            saved.by,
            saved.phase,
            started_s=min(saved.started + behind, now),
            deadline_s=until_s,
            ended_s=None if saved.ended is None else saved.ended + behind,
            open_at_end=saved.open,
        )

    def _left_without(self, of: Pool, member: Member, now: float) -> str | None:
        """What speaks against taking this one out, for whoever asks for it by name; None: nothing."""
        serving = [each for each in of.members if each.state(now) in SERVING]
        rest = [each for each in serving if each is not member]
        if not rest:
            return f"no ready server is left in pool {of.name}: requests may be answered 503"
        tight = no_room(rest, serving, now, self._server_requests) if member in serving else None
        return None if tight is None else f"the others may have no room for its requests: {tight}"

    def _time_for(self, member: Member, now: float) -> float:
        """How long to wait where nobody says."""
        if member.fresh_sample(now) is None:
            return longest_s(self._bounds, member.token_interval.p99_s)
        return max(LEAST_S, deadline_s(member, self._bounds, now))

    def _pool(self, name: str) -> Pool:
        plan = self._router.plans.get(name)
        if plan is None:
            raise DrainError(404, f'no pool "{name}"; there are: {", ".join(self._router.plans)}')
        return plan.pool

    def _find(self, endpoint: str, pool: str | None, *, gone: bool = False) -> tuple[Pool, Member]:
        pools = self._router.pools if pool is None else [self._pool(pool)]
        host, port = _split(endpoint)
        all_ = [(each, member) for each in pools for member in each.members]
        found = [(each, member) for each, member in all_ if _is(member, host, port)]
        if not found and gone:
            found = [(each, member) for each in pools for member in each.leaving if _is(member, host, port)][-1:]
        if not found:
            known = [str(member.address) for _, member in all_]
            more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
            listed = ", ".join(known[:_SHOWN]) or "none"
            raise DrainError(404, f"no endpoint {endpoint}; there are: {listed}{more}")
        if len(found) > 1:
            names = sorted({each.name for each, _ in found})
            if len(names) > 1:
                raise DrainError(409, f"{endpoint} is in several pools; name one (pool=), of: {', '.join(names)}")
            addresses = ", ".join(str(member.address) for _, member in found)
            raise DrainError(409, f"{endpoint} stands for several servers; name one of them: {addresses}")
        return found[0]

    def _find_waiting(self, endpoint: str, pool: str | None) -> Saved | None:
        try:
            address = Address.parse(endpoint)
        except ValueError:
            return None
        found = [s for (name, at), s in self._waiting.items() if at == address and pool in (None, name)]
        return found[0] if len(found) == 1 else None

    def _view(self, pool: Pool, member: Member) -> dict[str, Any]:
        now = self._clock()
        ahead = self._wall_clock() - now
        return (
            {"endpoint": str(member.address), "pool": pool.name, "state": str(member.state(now))}
            | view(member, now, ahead)
            | self._service()
        )

    def _service(self) -> dict[str, Any]:
        return {
            "survives_restart": self._file is not None and not self._write_failed,
            "service_started": round(self._started, 3),
        }


def _of(pool: str, member: Member, ahead: float) -> Saved:
    drain = member.drain
    assert drain is not None

    def wall(at_s: float | None) -> float | None:
        return None if at_s is None else round(at_s + ahead, 3)

    return Saved(
        pool,
        member.address,
        member.endpoint.uid,
        drain.asked & ASKED_HERE,
        drain.phase,
        wall(drain.started_s) or 0.0,
        wall(drain.deadline_s),
        wall(drain.ended_s),
        drain.open_at_end,
    )


def _unless_equal(old: Saved | None, new: Saved) -> Saved:
    if old is None:
        return new
    same = (old.by, old.phase, old.open) == (new.by, new.phase, new.open)
    apart = [(old.started, new.started), (old.deadline, new.deadline), (old.ended, new.ended)]
    close = all(a == b or (a is not None and b is not None and abs(a - b) < 1.0) for a, b in apart)
    return old if same and close else new


def _split(endpoint: str) -> tuple[str, int]:
    """An address in its canonical spelling, or a name, and a port."""
    try:
        address = Address.parse(endpoint)
    except ValueError:
        try:
            return split_host_port(endpoint)
        except ValueError as error:
            raise DrainError(400, str(error)) from error
    return address.ip, address.port


def _is(member: Member, host: str, port: int) -> bool:
    return member.address.port == port and host in (member.address.ip, member.endpoint.hostname)
