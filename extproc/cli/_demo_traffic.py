"""What do the demo's clients send, and what did they get?

Requests come at random times, whether or not earlier ones have ended, as from many independent users. Most go through
the `openai` package without its retries, so that nothing is smoothed over; some are read as raw bytes.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import aiohttp
from openai import APIError, APIStatusError, AsyncOpenAI

from extproc.cli._demo_fleet import MODEL
from extproc.cli._demo_prompts import Conversations, Document, Message, filler

RATE_PER_S = 7.0
_MOST_OPEN = 60  # a bound for machines that cannot keep up; in a healthy demo some 10 are open
_TIMEOUT_S = 60.0
# Dealt like cards, so that even a short run has some of each.
_DECK = {"chat, streamed": 7, "turn": 7, "chat": 2, "long prompt": 2, "completion": 3, "raw stream": 2, "models": 2}


@dataclass(slots=True)
class Sent:
    """One request, as its client saw it."""

    number: int
    kind: str
    phase: str
    started_s: float  # monotonic
    lie: str | None = None  # the host it named in x-gateway-destination-endpoint
    body_sha256: str | None = None  # None: it has no body, or was not sent
    server: str | None = None  # who answered, by its x-vllm-sim header; None: nobody
    ended_s: float | None = None  # None: still open
    complete: bool = False  # the answer has its proper end
    error: str | None = None
    before: str | None = None  # who answered the turn before; None: it is the first, or no turn
    prompt_tokens: int = 0  # by the answer's `usage`; only of turns and questions
    cached_tokens: int = 0  # of these, what the server had cached

    @property
    def ok(self) -> bool:
        return self.complete and self.error is None


class Traffic:
    """A bounded stream of mixed requests to one gateway."""

    def __init__(self, base_url: str, *, seed: int = 1) -> None:
        self.sent: list[Sent] = []
        self.phase = ""
        self.lie: str | None = None  # while set, every other request names this host in the gateway's header
        self._base_url = base_url
        self._rng = random.Random(seed)
        self._deck: list[str] = []
        self._conversations = Conversations(self._rng)
        self._document = Document(self._rng)
        self._openai = AsyncOpenAI(base_url=f"{base_url}/v1", api_key="unused", max_retries=0, timeout=_TIMEOUT_S)
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        self._source: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._source = asyncio.create_task(self._run(), name="traffic")

    async def finish(self) -> None:
        """Send no more, and wait for what is open."""
        if self._source is not None:
            self._source.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def close(self) -> None:
        """Send no more, give up what is open."""
        if self._source is not None:
            self._source.cancel()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._openai.close()
        await self._http.close()

    async def ask(self, questions: int) -> list[Sent]:
        """Send so many questions about one document at once, and wait for the answers."""
        first = len(self.sent)
        tasks = [asyncio.create_task(self._send("question")) for _ in range(questions)]
        self._open.update(tasks)
        for task in tasks:
            task.add_done_callback(self._open.discard)
        await asyncio.wait(tasks)
        return [sent for sent in self.sent[first:] if sent.kind == "question"]

    def of(self, *phases: str) -> list[Sent]:
        return [sent for sent in self.sent if sent.phase in phases]

    @property
    def open_count(self) -> int:
        return len(self._open)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(RATE_PER_S))
            if len(self._open) < _MOST_OPEN:
                task = asyncio.create_task(self._send(self._next_kind()))
                self._open.add(task)
                task.add_done_callback(self._open.discard)

    def _next_kind(self) -> str:
        if not self._deck:
            self._deck = [kind for kind, count in _DECK.items() for _ in range(count)]
            self._rng.shuffle(self._deck)
        return self._deck.pop()

    async def _send(self, kind: str) -> None:
        number = len(self.sent) + 1
        lie = self.lie if number % 2 == 0 else None
        sent = Sent(number, kind, self.phase, time.monotonic(), lie)
        self.sent.append(sent)
        headers = {"x-gateway-destination-endpoint": lie} if lie else {}
        try:
            await self._exchange(sent, headers)
        except APIStatusError as error:
            sent.server = error.response.headers.get("x-vllm-sim")
            sent.error = f"status {error.status_code}: {error.message}"
        except APIError as error:
            sent.error = f"{error} ({type(error.__cause__ or error).__name__})"
        except (aiohttp.ClientError, TimeoutError) as error:
            sent.error = f"{type(error).__name__}: {error}"
        except Exception as error:  # the HTTP client under `openai` lets some of its own errors through in a stream
            sent.error = f"{type(error).__name__}: {error}"
        sent.ended_s = time.monotonic()

    async def _exchange(self, sent: Sent, headers: dict[str, str]) -> None:
        if sent.kind == "turn":
            await self._turn(sent, headers)
        elif sent.kind == "question":
            await self._whole_chat(sent, self._document.question(sent.number), headers)
        else:
            await self._single(sent, headers)

    async def _single(self, sent: Sent, headers: dict[str, str]) -> None:
        """A request that has nothing in common with another."""
        prompt, tokens = self._prompt(sent), self._rng.randint(15, 50)
        chat: Any = {
            "model": MODEL,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "extra_headers": headers,
        }
        match sent.kind:
            case "chat":
                raw = await self._openai.chat.completions.with_raw_response.create(**chat)
                _note(sent, raw.http_response)
                sent.complete = raw.parse().choices[0].finish_reason is not None
            case "chat, streamed" | "long prompt":
                stream = await self._openai.chat.completions.create(**chat, stream=True)
                _note(sent, stream.response)
                async for chunk in stream:
                    sent.complete = sent.complete or bool(chunk.choices and chunk.choices[0].finish_reason)
            case "completion":
                text = await self._openai.completions.with_raw_response.create(
                    model=MODEL, prompt=prompt, max_tokens=tokens, extra_headers=headers
                )
                _note(sent, text.http_response)
                sent.complete = text.parse().choices[0].finish_reason is not None
            case "raw stream":
                await self._raw_stream(sent, prompt, tokens, headers)
            case _:
                models = await self._openai.models.with_raw_response.list(extra_headers=headers)
                sent.server = models.headers.get("x-vllm-sim")
                sent.complete = any(model.id == MODEL for model in models.parse().data)

    async def _turn(self, sent: Sent, headers: dict[str, str]) -> None:
        conversation = self._conversations.turn()
        sent.before = conversation.server
        try:
            conversation.answered(await self._whole_chat(sent, conversation.messages, headers), sent.server)
        finally:
            self._conversations.over(conversation, ok=sent.complete)

    async def _whole_chat(self, sent: Sent, messages: list[Message], headers: dict[str, str]) -> str:
        """A chat that is not streamed, with what its answer says of the cache; gives the answer's text."""
        chat: Any = {"model": MODEL, "messages": messages, "max_tokens": self._rng.randint(15, 30)}
        raw = await self._openai.chat.completions.with_raw_response.create(**chat, extra_headers=headers)
        _note(sent, raw.http_response)
        answer = raw.parse()
        sent.complete = answer.choices[0].finish_reason is not None
        usage = answer.usage
        if usage is not None and usage.prompt_tokens_details is not None:
            sent.prompt_tokens = usage.prompt_tokens
            sent.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
        return answer.choices[0].message.content or ""

    async def _raw_stream(self, sent: Sent, prompt: str, tokens: int, headers: dict[str, str]) -> None:
        """A streamed chat without any library's help: its last bytes must be the end mark."""
        # White space and escapes as no JSON library writes them: the bytes must arrive as they are.
        body = (
            f'{{ "model" : "{MODEL}",\r\n "messages":[ {{"role":"user","content":"\\u0063af\u00e9 {prompt}"}} ] ,'
            f' "stream":true, "max_tokens": {tokens} }}\n'
        ).encode()
        sent.body_sha256 = sha256(body).hexdigest()
        url = f"{self._base_url}/v1/chat/completions"
        async with self._http.post(url, data=body, headers={"content-type": "application/json", **headers}) as response:
            sent.server = response.headers.get("x-vllm-sim")
            answer = await response.read()
            if response.status != 200:
                sent.error = f"status {response.status}: {answer[:200].decode(errors='replace')}"
            sent.complete = answer.endswith(b"data: [DONE]\n\n")

    def _prompt(self, sent: Sent) -> str:
        words = self._rng.randint(2000, 5000) if sent.kind == "long prompt" else self._rng.randint(10, 120)
        return f"request {sent.number}: {filler(self._rng, words)}"


def _note(sent: Sent, response: Any) -> None:
    """Who answered, and what exactly was sent to it."""
    sent.server = response.headers.get("x-vllm-sim")
    sent.body_sha256 = sha256(response.request.content).hexdigest()
