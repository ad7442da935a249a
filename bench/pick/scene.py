"""Over which fleet, and with which requests, is a pick measured?

A router as the service builds it, with the profile `cache-aware`: every server sampled, with its own load, requests of
ours in flight everywhere, and an index that is full, so that each new prompt evicts as much as it adds. Half of each
prompt is shared by all requests of its size, and held by every server to another depth; the other half is its own.
"""

from __future__ import annotations

import random
from collections import deque

import orjson

from extproc.decision import Completion, Pick
from extproc.endpoint import Address, Endpoint
from extproc.openai.understand import understand
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.prefix.approximate import ApproximateIndex
from extproc.prefix.turns import prompt_blocks
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES

POOL = "vllm"
PATH = "/v1/chat/completions"
HEADERS = {"content-type": "application/json"}
MODEL = "bench/model"
SAMPLE_EVERY_S = 0.5  # as configured by default
HOSTS = 3  # named per pick, as configured by default
_IN_FLIGHT = 4  # requests a server
_CHAIN = 200  # blocks of a prompt the index is filled with: 12,800 tokens
_MARK = "@"
_WORDS = ("the", "of", "prompt", "server", "cache", "request,", "token", "because", "routing.", "\n")


class Bodies:
    """Chat completion requests of about one size: the first half of the prompt is shared, the second its own."""

    def __init__(self, size_bytes: int, shared: int = 0) -> None:
        """`shared`: another number, another text that they share."""
        own = f"{_MARK} " + _text(size_bytes // 2 - 150, "own")
        messages = [
            {"role": "system", "content": _text(size_bytes // 2, f"shared {shared}")},
            {"role": "user", "content": own},
        ]
        self._before, _, self._after = (
            orjson.dumps({"model": MODEL, "messages": messages, "stream": True}).decode().partition(_MARK)
        )

    def body(self, number: int) -> bytes:
        return f"{self._before}{number:012d}{self._after}".encode()


def _text(size: int, seed: str) -> str:
    return " ".join(random.Random(seed).choices(_WORDS, k=size // 4))[:size]


def fill(index: ApproximateIndex, slots: list[int], blocks: int, rng: random.Random) -> None:
    """Bring the index to its bound, with blocks of prompts that nobody asks for again."""
    number = 0
    while index.stats().blocks < blocks:
        index.insert(slots[number % len(slots)], [rng.getrandbits(64) for _ in range(_CHAIN)])
        number += 1


class Scene:
    """A router over `endpoints` servers, whose time goes on by one request a millisecond."""

    def __init__(self, endpoints: int, indexed_blocks: int) -> None:
        self._rng = random.Random(endpoints)
        addresses = [Address.of(f"10.0.{n // 250}.{n % 250 + 1}", 8000) for n in range(endpoints)]
        self.pool = Pool(POOL, stale_after_s=3.0)
        self.pool.set_endpoints([Endpoint(address) for address in addresses])
        plan = PoolPlan(self.pool, PROFILES["cache-aware"], HOSTS, indexed_blocks, session_headers=("x-session-id",))
        self.router = Router([plan], rng=random.Random(1))
        self.placement = self.router.placements[POOL]
        self.index = self.placement.index
        self.slots = [member.slot for member in self.pool.members]
        self.mask = sum(1 << slot for slot in self.slots)
        self.now = 0.0
        self._sampled = 0.0  # of the members' turns
        self._turn = 0
        self._out: deque[str] = deque()
        for _ in addresses:
            self._sample_next()
        fill(self.index, self.slots, indexed_blocks, self._rng)

    def share(self, bodies: Bodies) -> None:
        """Let the servers hold the shared half of these requests, each to another depth."""
        request = understand(RawRequest("POST", PATH, HEADERS, bodies.body(0)))
        hashes = prompt_blocks(request, model=request.model).hashes
        shared = len(hashes) // 2
        for number, slot in enumerate(self.slots):
            self.index.insert(slot, hashes[: 1 + number * shared // len(self.slots)])

    def tick(self) -> None:
        """Between two requests: time passes, samples come, and the oldest requests end."""
        self.now += 0.001
        self._sampled += len(self.pool.members) * 0.001 / SAMPLE_EVERY_S
        while self._sampled >= 1.0:
            self._sampled -= 1.0
            self._sample_next()
        while len(self._out) > _IN_FLIGHT * len(self.pool.members):
            pick_id = self._out.popleft()
            self.router.stream_ended(pick_id, self.now)
            self.router.complete(Completion(pick_id, None, status=200), self.now)

    def sent(self, pick: Pick) -> None:
        """The request is in flight; `tick` ends it in its turn."""
        self._out.append(pick.pick_id)

    def _sample_next(self) -> None:
        member = self.pool.members[self._turn % len(self.pool.members)]
        self._turn += 1
        running = float(self._rng.randint(0, 40))
        sample = LoadSample(self.now, running, float(self._rng.randint(0, 2)), kv_usage_ratio=0.02 * running)
        self.router.observe(POOL, member.address, sample, self.now)
