"""What do the clients of the autoscaling demo send, how much of it, and what did they get?

Streams with prompts of their own, at random times whose rate follows a curve, whether or not earlier ones have ended.
Each is read as raw bytes to its end.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

import aiohttp

from extproc.cli._demo_autoscale_fleet import ANSWER_TOKENS, PROMPT_TOKENS
from extproc.cli._demo_fleet import MODEL

_TIMEOUT_S = 120.0
_TICK_S = 0.02
_STALL_S = 0.15  # a tick that comes so late: this machine has stood still, and with it all that is measured
_BYTES_PER_TOKEN = 4  # of the simulated server
_TEMPLATE_TOKENS = 12  # that a chat adds to its text, about
_DONE = b"data: [DONE]\n\n"
_TOKEN = b'"delta":{"content":"'  # a piece of the answer; what comes before tells only the role


@dataclass(slots=True)
class Sent:
    """One stream, as its client saw it."""

    number: int
    started_s: float  # monotonic
    server: str | None = None  # who answers, by its x-vllm-sim header; None: nobody yet
    first_s: float | None = None  # when its first token came
    ended_s: float | None = None  # None: still open
    done: bool = False  # it ended with [DONE]
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.started_s

    @property
    def failed(self) -> bool:
        return self.ended_s is not None and not self.done


class Load:
    """An open loop to one gateway. `rate_per_s` now; it moves to where `towards` says."""

    def __init__(self, base_url: str, *, seed: int = 1) -> None:
        self.sent: list[Sent] = []
        self.rate_per_s = 0.0
        self.stalls: list[tuple[float, float]] = []  # from, until; monotonic
        self._url = f"{base_url}/v1/chat/completions"
        self._rng = random.Random(seed)
        self._curve = (0.0, 0.0, 0.0, 0.0)  # from when, until when, from which rate, to which
        self._numbers = count(1)
        self._open: set[asyncio.Task[None]] = set()
        self._source: asyncio.Task[None] | None = None
        connector = aiohttp.TCPConnector(limit=0)
        self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))

    def start(self) -> None:
        self._source = asyncio.create_task(self._run(), name="load")

    def towards(self, rate_per_s: float, within_s: float) -> None:
        """Change the rate steadily."""
        now = time.monotonic()
        self._curve = (now, now + within_s, self.rate_per_s, rate_per_s)

    @property
    def open_count(self) -> int:
        return len(self._open)

    async def finish(self) -> None:
        """Send no more, and wait for what is open."""
        self._end_source()
        if self._open:
            await asyncio.wait(self._open)

    async def close(self) -> None:
        """Send no more, give up what is open."""
        self._end_source()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._http.close()

    def _end_source(self) -> None:
        self.rate_per_s = 0.0
        if self._source is not None:
            self._source.cancel()

    async def _run(self) -> None:
        """Arrivals of a Poisson process whose rate follows the curve: each comes when enough of it has passed."""
        left, before = self._rng.expovariate(1.0), time.monotonic()
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self.rate_per_s = self._rate(now)
            left -= self.rate_per_s * (now - before)
            if now - before > _TICK_S + _STALL_S:
                self.stalls.append((before, now))
            before = now
            while left <= 0.0:
                left += self._rng.expovariate(1.0)
                task = asyncio.create_task(self._send())
                self._open.add(task)
                task.add_done_callback(self._open.discard)

    def _rate(self, now: float) -> float:
        since, until, low, high = self._curve
        if now >= until:
            return high
        return low + (high - low) * (now - since) / (until - since)

    async def _send(self) -> None:
        sent = Sent(next(self._numbers), time.monotonic())
        self.sent.append(sent)
        try:
            async with self._http.post(self._url, json=self._body(sent.number)) as response:
                sent.server = response.headers.get("x-vllm-sim")
                if response.status != 200:
                    sent.error = f"status {response.status}: {(await response.read())[:200].decode(errors='replace')}"
                    return
                tail = b""
                async for chunk in response.content.iter_any():
                    if sent.first_s is None and _TOKEN in tail + chunk:
                        sent.first_s = time.monotonic()
                    tail = (tail + chunk)[-256:]
                sent.done = tail.endswith(_DONE)
                if not sent.done:
                    sent.error = "its stream ended without [DONE]"
        except (aiohttp.ClientError, TimeoutError) as error:
            sent.error = f"{type(error).__name__}: {error}"
        finally:
            sent.ended_s = time.monotonic()

    def _body(self, number: int) -> dict[str, Any]:
        tokens = self._rng.randint(*PROMPT_TOKENS) - _TEMPLATE_TOKENS
        text = f"request {number}: "
        text += "".join(self._rng.choices("abcdefghijklmnopqrstuvwxyz     ", k=tokens * _BYTES_PER_TOKEN - len(text)))
        answer = self._rng.randint(*ANSWER_TOKENS)
        return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": answer, "stream": True}
