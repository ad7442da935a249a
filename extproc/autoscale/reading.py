"""What does one look at a pool give?"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from extproc.pool.sample import Histogram


class ServerState(StrEnum):
    """What a server counts as."""

    READY = "ready"  # it serves, and its load is known
    STARTING = "starting"  # not seen to serve yet
    DRAINING = "draining"  # it gets no new requests and will go: no capacity
    STALE = "stale"  # it is there, and nothing is known of its load: no fresh page, or it does not answer


@dataclass(frozen=True, slots=True)
class ServerReading:
    """One server. None is unknown, never 0."""

    key: str  # which server it is: another one at the same address has another key
    state: ServerState
    age_s: float | None = None  # of its last sample; None: there was none
    waiting: float | None = None  # requests
    running: float | None = None  # requests
    kv_usage_ratio: float | None = None  # 0..1
    preemptions: float | None = None  # since the engine started
    ttft: Histogram | None = None  # since the engine started


@dataclass(frozen=True, slots=True)
class Offered:
    """What came for the pool, counted since some start. None: not counted.

    Requests are counted by the router. With several routers in front of one pool this must be the sum over all of
    them: each knows only its own arrivals. The rest is what the servers tell: they count tokens, nobody else does.
    """

    requests: float | None = None  # those that nobody could serve included
    begun: float | None = None  # answers that began
    prompt_tokens: float | None = None  # of those
    uncached_tokens: float | None = None  # of the prompts, what the servers had to compute
    output_tokens: float | None = None  # generated


@dataclass(frozen=True, slots=True)
class PoolReading:
    """All of a pool, at one moment. The order of the servers says nothing."""

    at_s: float  # monotonic clock
    servers: tuple[ServerReading, ...] = ()
    known: bool = True  # its source has said which servers there are
    offered: Offered = Offered()
    starts_s: tuple[float, ...] = ()  # how long servers took from first seen to first ready, the newest last

    def count(self, state: ServerState) -> int:
        return sum(server.state is state for server in self.servers)
