"""What do the clients of a fleet ask, and when?

Open loop: all arrivals are drawn in advance from a seed, whatever the servers do, since a closed loop hides queues. A
prompt is a list of spans of numbered texts, so that equal beginnings are known without any text: two prompts share
exactly the tokens up to where their spans first differ.

The workloads are sized for a fleet by its *uncached capacity*: the prompt tokens a second that all servers together
compute with nothing cached. Each says at what part of that it arrives. When a run begins, as many conversations
and agents are under way as later, but what they said before is left out; their prompts reach full length after a minute
or two.

W7 is missing: it is any of these while servers come and go, so it is a matter of who runs them.
"""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from extproc.sim.spec import EngineSpec

_LEAD_S = 200.0  # longer than all but the rarest conversations last

Span = tuple[int, int]  # number of a text, tokens taken from its beginning


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `session` is what its client sends as a session id; None: nothing."""

    at_s: float
    spans: tuple[Span, ...]  # the prompt
    answer: int  # number of the text that is the answer; a later turn may contain it
    answer_tokens: int
    session: str | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.spans)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a workload has to fill: servers and the prompt tokens a second that one of them computes."""

    servers: int
    prefill_tokens_per_s: float

    @classmethod
    def of(cls, spec: EngineSpec, servers: int) -> Fleet:
        """`servers` engines, each at the rate at which it computes a prompt of 4,000 tokens, alone and in one step."""
        tokens = 4000
        per_token_s = spec.per_prompt_token_s + spec.per_prefill_token_s + spec.per_prefill_token_context_s * tokens / 2
        return cls(servers, tokens / (spec.base_step_s + spec.per_request_s + tokens * per_token_s))

    @property
    def uncached_capacity(self) -> float:
        return self.servers * self.prefill_tokens_per_s


class _Texts:
    """Numbers for texts that nothing else contains."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def new(self) -> int:
        return next(self._next)


def block_hashes(spans: tuple[Span, ...], block_tokens: int, seed: int = 0) -> list[int]:
    """The chained hashes of a prompt's full blocks: equal exactly where all text up to the block's end is equal."""
    out: list[int] = []
    parent, filled = seed, 0
    parts: list[tuple[int, int, int]] = []
    for text, tokens in spans:
        start = 0
        while start < tokens:
            take = min(block_tokens - filled, tokens - start)
            parts.append((text, start, take))
            start += take
            filled += take
            if filled == block_tokens:
                parent = hash((parent, *parts)) & 0x7FFF_FFFF_FFFF_FFFF
                out.append(parent)
                parts, filled = [], 0
    return out


def _poisson(rng: Random, per_s: float, seconds: float) -> Iterator[float]:
    now = 0.0
    while (now := now + rng.expovariate(per_s)) < seconds:
        yield now


def _around(rng: Random, mean: int, spread: float = 0.5) -> int:
    """A length: uniform within mean x (1 +- spread), at least 1."""
    return max(1, round(mean * rng.uniform(1 - spread, 1 + spread)))


def _groups(rng: Random, fleet: Fleet, seconds: float, *, load: float, zipf: float | None) -> list[Arrival]:
    """40 documents of 6,000 tokens; each request asks one of them something of its own."""
    texts = _Texts()
    documents = [texts.new() for _ in range(40)]
    weights = [1.0 if zipf is None else 1 / (rank + 1) ** zipf for rank in range(len(documents))]
    totals = list(itertools.accumulate(weights))
    per_s = load * fleet.uncached_capacity / 6100
    out = []
    for at_s in _poisson(rng, per_s, seconds):
        document = documents[bisect(totals, rng.random() * totals[-1])]
        spans = ((document, 6000), (texts.new(), _around(rng, 100)))
        out.append(Arrival(at_s, spans, texts.new(), _around(rng, 100)))
    return out


def _chats(rng: Random, fleet: Fleet, seconds: float) -> list[Arrival]:
    """Conversations of 4 to 12 turns whose prompts hold all that was said; 500 tokens of system prompt in common."""
    texts = _Texts()
    system = texts.new()
    per_conversation = 8
    mean_prompt = 500 + per_conversation * 500 / 2
    per_s = 0.7 * fleet.uncached_capacity / (mean_prompt * per_conversation)
    out = []
    for number, start_s in enumerate(_poisson(rng, per_s, seconds + _LEAD_S)):
        spans: tuple[Span, ...] = ((system, 500),)
        at_s = start_s - _LEAD_S
        for _ in range(rng.randint(4, 12)):
            if at_s >= seconds:
                break
            answer, answer_tokens = texts.new(), _around(rng, 200)
            if at_s >= 0:
                spans = (*spans, (texts.new(), _around(rng, 300)))
                out.append(Arrival(at_s, spans, answer, answer_tokens, session=f"chat-{number}"))
                spans = (*spans, (answer, answer_tokens))
            at_s += answer_tokens * 0.02 + rng.expovariate(1 / 6)  # the answer, then 6 s to read and write
    return sorted(out, key=lambda arrival: arrival.at_s)


def _one_system_prompt(rng: Random, fleet: Fleet, seconds: float) -> list[Arrival]:
    """4,000 tokens that all share, and about 800 of one's own: cached, the load is far below the uncached capacity."""
    texts = _Texts()
    system = texts.new()
    per_s = 0.7 * fleet.uncached_capacity / 800
    return [
        Arrival(at_s, ((system, 4000), (texts.new(), _around(rng, 800))), texts.new(), _around(rng, 60))
        for at_s in _poisson(rng, per_s, seconds)
    ]


def _long_prompts(rng: Random, fleet: Fleet, seconds: float) -> list[Arrival]:
    """8 to 32 thousand tokens, nothing shared, one token of answer."""
    texts = _Texts()
    per_s = 0.7 * fleet.uncached_capacity / 20_000
    return [
        Arrival(at_s, ((texts.new(), rng.randint(8000, 32_000)),), texts.new(), 1)
        for at_s in _poisson(rng, per_s, seconds)
    ]


def _nothing_shared(rng: Random, fleet: Fleet, seconds: float) -> list[Arrival]:
    """Prompts of very different lengths, 50 to 8,000 tokens, and answers of 20 to 400."""
    texts = _Texts()
    lengths = (50, 200, 1000, 8000)
    per_s = 0.75 * fleet.uncached_capacity / (sum(lengths) / len(lengths))
    return [
        Arrival(at_s, ((texts.new(), _around(rng, rng.choice(lengths))),), texts.new(), rng.randint(20, 400))
        for at_s in _poisson(rng, per_s, seconds)
    ]


def _bursts(rng: Random, fleet: Fleet, seconds: float) -> list[Arrival]:
    """16 requests within 50 ms that share a prefix nobody has seen: 4,000 tokens, and 400 of their own."""
    texts = _Texts()
    per_s = 0.6 * fleet.uncached_capacity / (16 * 4400)
    out = []
    for start_s in _poisson(rng, per_s, seconds):
        prefix = texts.new()
        for _ in range(16):
            spans = ((prefix, 4000), (texts.new(), _around(rng, 400)))
            out.append(Arrival(start_s + rng.uniform(0, 0.05), spans, texts.new(), _around(rng, 100)))
    return sorted(out, key=lambda arrival: arrival.at_s)


def _agents(rng: Random, fleet: Fleet, seconds: float) -> list[Arrival]:
    """Agents of 5 types (each with 3,000 tokens of tools), 10 to 30 calls a run; each call adds a tool's 600 tokens."""
    texts = _Texts()
    types = [texts.new() for _ in range(5)]
    mean_prompt = 3000 + 20 * 700 / 2
    per_s = 1.0 * fleet.uncached_capacity / (mean_prompt * 20)
    out = []
    for number, start_s in enumerate(_poisson(rng, per_s, seconds + _LEAD_S)):
        spans: tuple[Span, ...] = ((rng.choice(types), 3000), (texts.new(), 200))
        at_s = start_s - _LEAD_S
        for _ in range(rng.randint(10, 30)):
            if at_s >= seconds:
                break
            answer, answer_tokens = texts.new(), _around(rng, 80)
            if at_s >= 0:
                out.append(Arrival(at_s, spans, answer, answer_tokens, session=f"agent-{number}"))
                spans = (*spans, (answer, answer_tokens), (texts.new(), _around(rng, 600)))
            at_s += answer_tokens * 0.015 + rng.expovariate(1 / 1.5)  # the answer, then 1.5 s for the tool
    return sorted(out, key=lambda arrival: arrival.at_s)


Workload = Callable[[Random, Fleet, float], list[Arrival]]

WORKLOADS: Mapping[str, Workload] = {
    "W1": lambda rng, fleet, seconds: _groups(rng, fleet, seconds, load=0.9, zipf=None),
    "W1z": lambda rng, fleet, seconds: _groups(rng, fleet, seconds, load=0.9, zipf=1.0),
    "W1h": lambda rng, fleet, seconds: _groups(rng, fleet, seconds, load=4.5, zipf=None),
    "W2": _chats,
    "W3": _one_system_prompt,
    "W4": _long_prompts,
    "W5": _nothing_shared,
    "W6": _bursts,
    "W8": _nothing_shared,  # over a fleet with one server at half speed
    "W9": _agents,
}

SLOW_SERVERS: Mapping[str, int] = {"W8": 1}  # servers at half speed, the first of the fleet


def draw(name: str, seed: int, fleet: Fleet, seconds: float) -> list[Arrival]:
    """The arrivals of a workload, in order of time. Raises KeyError on a name that is not in WORKLOADS.

    A longer run of the same seed is another draw, not a continuation.
    """
    return WORKLOADS[name](Random(f"{name} {seed}"), fleet, seconds)
