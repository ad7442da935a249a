"""Which bytes does a workload send, and when?

The spans of a workload become real text: four-byte words, which the simulated servers count as one token each, so a
prompt has the tokens that the workload says, plus two to four for the head of each message. What a later turn repeats
as the assistant's message is what the server will have answered: its answers depend on the prompt alone, so they are
known in advance, and an open loop can send a turn at its time whatever became of the last one.

Every request has a session id. One that is no part of a conversation is a session of its own; without any id
vllm-router 0.1.17's consistent_hash sends everything to one server, which says nothing of hashing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from extproc.sim.spec import A100_8B
from extproc.sim.text import Conversation, render_chat, seed_hash
from extproc.sim.workloads import Arrival, Fleet, draw

MODEL = "sim"
SPEC = A100_8B
SERVERS = 8
FLEET = Fleet.of(SPEC, SERVERS)
_WORDS = tuple(a + b + c + " " for a in "bcdfghjklmnpqrstvwz" for b in "aeiouy" for c in "bdfgklmnprstvx")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request: its bytes, the same for every arm."""

    at_s: float  # of the workload's time
    body: bytes
    answer_tokens: int
    session: str  # sent as x-session-id


def requests(workload: str, seed: int, seconds: float) -> list[ChatRequest]:
    """Everything that a workload sends, in order of time."""
    return list(_requests(draw(workload, seed, FLEET, seconds), f"{workload} {seed}"))


def warm_up(count: int) -> list[ChatRequest]:
    """Short requests that share nothing with each other or any workload, 20 ms apart."""
    arrivals = [Arrival(number * 0.02, ((2 * number, 200),), 2 * number + 1, 4) for number in range(count)]
    return list(_requests(arrivals, "warm-up"))


def _requests(arrivals: Sequence[Arrival], key: str) -> Iterator[ChatRequest]:
    answers: dict[int, str] = {}  # by number of text
    for number, arrival in enumerate(arrivals):
        messages = []
        for place, (text, tokens) in enumerate(arrival.spans):
            if text in answers:
                messages.append({"role": "assistant", "content": answers[text]})
            else:
                role = "system" if place == 0 and len(arrival.spans) > 1 else "user"
                messages.append({"role": role, "content": _text(f"{key} {text}", tokens)})
        if arrival.session is not None:  # only sessions come back with what was said
            answers[arrival.answer] = answer_to(messages, arrival.answer_tokens)
        session = arrival.session if arrival.session is not None else f"single-{number}"
        yield ChatRequest(arrival.at_s, _encode(messages, arrival.answer_tokens), arrival.answer_tokens, session)


def answer_to(messages: Sequence[dict[str, str]], tokens: int) -> str:
    """What a simulated server answers to these messages."""
    prompt = render_chat({"messages": messages})
    return Conversation(prompt, SPEC.block_size_tokens, chain_seed=seed_hash(MODEL, "")).words(0, tokens)


@lru_cache(maxsize=1024)  # system prompts and documents come again and again
def _text(key: str, tokens: int) -> str:
    """The first `tokens` words of the text named `key`."""
    return "".join(Random(key).choices(_WORDS, k=tokens))


def _encode(messages: Sequence[dict[str, str]], answer_tokens: int) -> bytes:
    body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": answer_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(body, separators=(",", ":")).encode()
