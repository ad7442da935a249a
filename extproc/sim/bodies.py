"""Which request would a client send for this arrival?

Spans become text of four-byte words, each span a message, so that prompts share their beginnings as the spans do. What
was an answer comes back as the assistant's message. The text of a span depends on its number alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from random import Random

import orjson

from extproc.request import RawRequest
from extproc.sim.workloads import Arrival

SESSION_HEADER = "x-session-id"
MODEL = "sim"
_WORDS = tuple(a + b + c + " " for a in "bcdfghjklmnpqrstvwz" for b in "aeiouy" for c in "bdfgklmnprstvx")


class BodyWriter:
    """Writes the requests of one workload."""

    def __init__(self, arrivals: Iterable[Arrival]) -> None:
        self._answers = {arrival.answer for arrival in arrivals}

    def request(self, arrival: Arrival) -> RawRequest:
        """What the router is handed: a chat, with the session in a header."""
        messages = [
            {"role": self._role(place, text, len(arrival.spans)), "content": _text(text, tokens)}
            for place, (text, tokens) in enumerate(arrival.spans)
        ]
        body = {"model": MODEL, "messages": messages, "max_tokens": arrival.answer_tokens, "stream": True}
        headers = {"content-type": "application/json"}
        if arrival.session is not None:
            headers[SESSION_HEADER] = arrival.session
        return RawRequest("POST", "/v1/chat/completions", headers, orjson.dumps(body))

    def _role(self, place: int, text: int, spans: int) -> str:
        if text in self._answers:
            return "assistant"
        return "system" if place == 0 and spans > 1 else "user"


@lru_cache(maxsize=4096)
def _text(number: int, tokens: int) -> str:
    """The first `tokens` words of a text: a shorter one is a beginning of a longer one."""
    return "".join(Random(number).choices(_WORDS, k=tokens))
