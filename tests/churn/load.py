"""What do clients ask, and did each get its whole answer? Chats, streamed, with the openai package.

A closed loop: so many conversations are always under way. How long each answer is comes from the seed.
"""

from __future__ import annotations

import asyncio
import math
import time
from random import Random
from typing import Any

import openai

from tests.churn.servers import MODEL
from tests.churn.verdict import Outcome

_WORDS = (
    "server",
    "fleet",
    "stream",
    "the",
    "of",
    "ended",
    "by",
    "itself",
    "and",
    "another",
    "began",
    "where",
    "it",
    "was",
)


def _prose(rng: Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words))


class Load:
    """Streams through Envoy, from `start` to `stop`."""

    def __init__(
        self,
        url: str,
        *,
        seed: int,
        streams: int,
        shortest_s: float,
        longest_s: float,
        token_s: float,
        srv_share: float,
    ) -> None:
        """`shortest_s`, `longest_s`: of an answer. `srv_share`: of the requests, those that go to the pool by SRV."""
        self.outcomes: list[Outcome] = []
        self.running = 0
        self._seed, self._streams, self._srv_share = seed, streams, srv_share
        self._shortest_s, self._longest_s, self._token_s = shortest_s, longest_s, token_s
        self._client = openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=longest_s * 3 + 60
        )
        self._workers: list[asyncio.Task[None]] = []
        self._number = 0
        self._stopping = False
        rng = Random(f"prompts {seed}")
        self._system = _prose(rng, 200)
        self._chats = [_prose(rng, 150) for _ in range(4 * streams)]

    def start(self) -> None:
        self._workers = [
            asyncio.create_task(self._work(Random(f"load {self._seed} {n}"), n), name=f"client {n}")
            for n in range(self._streams)
        ]

    async def stop(self) -> None:
        """No more requests; wait for those that run to end."""
        self._stopping = True
        await asyncio.gather(*self._workers)
        await self._client.close()

    def check(self) -> None:
        """Raises what a client died of."""
        for worker in self._workers:
            if worker.done():
                worker.result()

    async def _work(self, rng: Random, number: int) -> None:
        await asyncio.sleep(number * self._shortest_s / self._streams)
        while not self._stopping:
            # Evenly over the logarithm: short ones are as usual as long ones.
            low, high = math.log(self._shortest_s), math.log(self._longest_s)
            seconds = math.exp(rng.uniform(low, high))
            await self.ask(rng.randrange(len(self._chats)), max(1, round(seconds / self._token_s)),
                           srv=rng.random() < self._srv_share)  # fmt: skip

    def body(self, chat: int, tokens: int, *, prompt: str | None = None) -> dict[str, Any]:
        """What is asked: a turn of a chat, or this prompt alone."""
        messages = [{"role": "user", "content": self._chats[chat] if prompt is None else prompt}]
        if prompt is None:
            messages.insert(0, {"role": "system", "content": self._system})
        options = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": MODEL, "messages": messages, "max_tokens": tokens, **options}

    async def ask(self, chat: int, tokens: int, *, srv: bool = False, prompt: str | None = None) -> Outcome:
        """One request to its end, however that is."""
        self._number += 1
        request = f"churn-{self._number}"
        headers = {"x-request-id": request, "x-session-id": f"chat-{chat}"} | ({"x-pool": "srv"} if srv else {})
        started_s, server, status, error = time.time(), None, None, None
        self.running += 1
        try:
            raw = await self._client.chat.completions.with_raw_response.create(
                **self.body(chat, tokens, prompt=prompt), extra_headers=headers
            )
            server, status = raw.headers.get("x-vllm-sim"), raw.status_code
            finish, counted = None, None
            async for chunk in raw.parse():
                if chunk.usage is not None:
                    counted = chunk.usage.completion_tokens
                if chunk.choices and chunk.choices[0].finish_reason is not None:
                    finish = chunk.choices[0].finish_reason
            if finish != "length" or counted != tokens:
                error = f"the stream ended early: finish_reason {finish}, {counted} tokens of {tokens}"
        except openai.APIStatusError as failure:
            status, error = failure.status_code, f"{failure.status_code}: {failure.message}"
        except Exception as failure:  # whatever the package raises, of its own or of the HTTP client below it
            error = f"{type(failure).__name__}: {failure}"
        finally:
            self.running -= 1
        outcome = Outcome(request, started_s, time.time(), error, server, status)
        self.outcomes.append(outcome)
        return outcome
