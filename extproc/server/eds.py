"""The pools' members, served to Envoy (EDS): who is there, and who is out of service.

Envoy then needs no list of hosts of its own, and its list and ours cannot differ. While an Envoy listens the states of
all members are looked at each `LOOK_S`; a change of who is there is said at once, so that Envoy knows a new server
before it is picked. Between two pushes are `GAP_S`: what happens meanwhile is one. No request waits for any of that.

**Not knowing is not "nobody".** Until a pool's source has spoken, and for `SETTLE_S` after that while something of it
fails (a name that does not resolve), nothing is said of the pool: an Envoy that was there before keeps its hosts. One
that has just started waits, at most its `initial_fetch_timeout`, and `WAIT_S` if that is longer or endless.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from extproc.pb.discovery_pb2 import DiscoveryRequest
from extproc.pool.pool import Pool
from extproc.rpc.call import Call, Handler
from extproc.rpc.status import AbortedError, Code
from extproc.server.assignment import Assignment, Seen, assignment, seen
from extproc.server.subscription import Subscription, UnknownTypeError

log = logging.getLogger(__name__)

SERVICE = "envoy.service.endpoint.v3.EndpointDiscoveryService"
LOOK_S = 0.1
GAP_S = 0.05
SETTLE_S = 10.0
WAIT_S = 30.0
_MOST_LOGGED = 100  # unknown names that are logged; Envoys choose them


class _Stream:
    """One Envoy's stream for one of its clusters."""

    def __init__(self, since_s: float) -> None:
        self.subscription = Subscription()
        self.since_s = since_s
        self.look = asyncio.Event()  # there may be something to say
        self.over = False


class EndpointDiscovery:
    """Serves `EndpointDiscoveryService.StreamEndpoints`. One instance serves all streams of a process."""

    def __init__(
        self,
        pools: Mapping[str, Pool],
        *,
        failing: Callable[[str], bool] = lambda name: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pools`: by the name that Envoy asks for. `failing`: whether a part of the members of that name cannot be
        found out at present."""
        self.pushes = 0  # answers sent
        self.refused = 0  # of those, the ones that an Envoy refused
        self.undecodable = 0
        self._pools = dict(pools)
        self._failing = failing
        self._clock = clock
        self._streams: set[_Stream] = set()
        self._said_at_s: dict[str, float] = {}  # when the source first spoke
        self._seen: dict[str, Seen] = {}
        self._known: dict[str, Assignment] = {}
        self._logged: set[str] = set()
        self._others = asyncio.Event()  # members came or left
        for name, pool in self._pools.items():
            pool.watch(partial(self._spoke, name))

    @property
    def streams(self) -> int:
        """Open now: one for each Envoy and cluster."""
        return len(self._streams)

    def status(self) -> dict[str, Any]:
        """What `/status` shows."""
        self._refresh()
        return {
            "pushes": self.pushes,
            "refused": self.refused,
            "versions": {name: found.version for name, found in sorted(self._known.items())},
            "streams": [
                {
                    "node": each.subscription.node,
                    "cluster": each.subscription.cluster,
                    "names": sorted(each.subscription.names),
                    "unknown": sorted(self._unknown(each.subscription.names)),
                    "sent": each.subscription.sent,
                    "accepted": each.subscription.accepted,
                    "refusal": each.subscription.refusal,
                }
                for each in sorted(self._streams, key=lambda each: (each.subscription.node, each.since_s))
            ],
        }

    async def run(self) -> None:
        """Look for changes, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._others.wait(), LOOK_S)
            self._others.clear()
            if self._streams:
                self._refresh()
                if len(self._known) < len(self._pools):
                    self._wake()  # somebody may have waited long enough
                await asyncio.sleep(GAP_S)

    async def stream(self, call: Call) -> None:
        """One stream. It ends when Envoy goes away, or with an error status at a request that cannot be read."""
        stream = _Stream(self._clock())
        self._streams.add(stream)
        reading = asyncio.create_task(self._read(stream, call), name="read a discovery stream")
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())  # of a stream that broke: no news
        try:
            await self._write(stream, call)
            await reading
        except DecodeError as error:
            self.undecodable += 1
            raise AbortedError(Code.INVALID_ARGUMENT, "message does not decode") from error
        except UnknownTypeError as error:
            raise AbortedError(Code.INVALID_ARGUMENT, str(error)) from error
        finally:
            self._streams.discard(stream)
            reading.cancel()

    async def _read(self, stream: _Stream, call: Call) -> None:
        try:
            async for raw in call:
                self._receive(stream, DiscoveryRequest.FromString(raw))
        finally:
            stream.over = True
            stream.look.set()

    async def _write(self, stream: _Stream, call: Call) -> None:
        while True:
            await stream.look.wait()
            stream.look.clear()
            if stream.over:
                return
            overdue = self._clock() - stream.since_s > WAIT_S
            unsure = self._pools.keys() - self._known.keys()
            answer = stream.subscription.answer(self._known, unsure, overdue=overdue)
            if answer is not None:
                self.pushes += 1
                await call.write(answer)

    def _receive(self, stream: _Stream, request: DiscoveryRequest) -> None:
        subscription = stream.subscription
        before, refusal = subscription.names, subscription.refusal
        if not subscription.receive(request):
            return
        if request.HasField("error_detail"):
            self.refused += 1
            if subscription.refusal != refusal:
                log.error("Envoy %r refuses the endpoints sent to it: %s", subscription.node, subscription.refusal)
        for name in sorted(self._unknown(subscription.names - before) - self._logged):
            if len(self._logged) < _MOST_LOGGED:
                self._logged.add(name)
                log.warning(
                    "Envoy %r asks for the endpoints of %r, which is no pool here: of %s",
                    subscription.node,
                    name,
                    ", ".join(self._pools) or "none",
                )
        self._refresh()
        stream.look.set()

    def _unknown(self, names: Set[str]) -> Set[str]:
        return names - self._pools.keys() - {"*"}

    def _spoke(self, name: str, _added: object, _removed: object) -> None:
        self._said_at_s.setdefault(name, self._clock())
        self._others.set()

    def _wake(self) -> None:
        for each in self._streams:
            each.look.set()

    def _refresh(self) -> None:
        """Bring `_known` up to date; when that changes it, there may be something to say."""
        changed = False
        now = self._clock()
        for name, pool in self._pools.items():
            if name not in self._known and not self._is_sure(name, pool, now):
                continue
            found = seen(pool.members, now)
            if found != self._seen.get(name):
                self._seen[name] = found
                self._known[name] = assignment(name, found)
                changed = True
        if changed:
            self._wake()

    def _is_sure(self, name: str, pool: Pool, now: float) -> bool:
        said_at_s = self._said_at_s.get(name)
        if said_at_s is None:
            return False
        return not self._failing(name) or (bool(pool.members) and now - said_at_s > SETTLE_S)


def handlers(discovery: EndpointDiscovery) -> dict[str, Handler]:
    return {f"/{SERVICE}/StreamEndpoints": discovery.stream}
