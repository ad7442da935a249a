"""What do the clients of an open loop see?

Each request is sent at its time, whether or not those before it were answered. Times are those of the workload: the
real ones divided by the factor by which the run is stretched. The time to first token counts from when the request was
due, so a generator that falls behind cannot hide it, to the first piece of the answer's text.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from bench.routing.requests import ChatRequest

_TEXT = re.compile(rb'"content":\s*"[^"]')
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')
_TAIL_BYTES = 2048  # the usage and the end of a stream are in its last bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request as its client saw it, in seconds of the workload's time."""

    ttft_s: float | None  # None: no text came; of an unfinished request the time waited, a lower bound
    answer_tokens: int  # received
    ended_at_s: float
    late_s: float  # sent so long after it was due
    error: str | None  # None: a whole answer
    unfinished: bool = False  # given up when the run's time was over


class _Watch:
    """What has come of one answer so far."""

    __slots__ = ("late_s", "tail", "ttft_s")

    def __init__(self) -> None:
        self.ttft_s: float | None = None
        self.late_s = 0.0
        self.tail = b""


async def replay(port: int, requests: Sequence[ChatRequest], factor: float, patience_s: float) -> list[Outcome]:
    """Send all requests to 127.0.0.1:`port` and gather the answers.

    Args:
        factor: real seconds to a second of the workload.
        patience_s: workload time after the last arrival at which what is still open is given up.
    """
    loop = asyncio.get_running_loop()
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)  # below the servers' 5 s: no race with their close
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False) as http:
        start_s = loop.time()

        def now_s() -> float:
            return (loop.time() - start_s) / factor

        tasks = []
        for request in requests:
            if (wait_s := request.at_s - now_s()) > 0:
                await asyncio.sleep(wait_s * factor)
            tasks.append(asyncio.create_task(_one(http, port, request, start_s, factor)))
        end_s = (requests[-1].at_s if requests else 0.0) + patience_s
        _, late = await asyncio.wait(tasks, timeout=max(0.0, end_s - now_s()) * factor)
        for task in late:
            task.cancel()
        return list(await asyncio.gather(*tasks))


async def _one(http: aiohttp.ClientSession, port: int, request: ChatRequest, start_s: float, factor: float) -> Outcome:
    loop = asyncio.get_running_loop()

    def now_s() -> float:
        return (loop.time() - start_s) / factor

    watch = _Watch()
    watch.late_s = now_s() - request.at_s
    headers = {"content-type": "application/json", "x-session-id": request.session}
    error: str | None = None
    unfinished = False
    try:
        async with http.post(
            f"http://127.0.0.1:{port}/v1/chat/completions", data=request.body, headers=headers
        ) as response:
            if response.status == 200:
                async for piece in response.content.iter_any():
                    watch.tail += piece
                    if watch.ttft_s is None and _TEXT.search(watch.tail):
                        watch.ttft_s = now_s() - request.at_s
                    if watch.ttft_s is not None:
                        watch.tail = watch.tail[-_TAIL_BYTES:]
            else:
                error = f"status {response.status}: {(await response.text())[:200]}"
    except (aiohttp.ClientError, OSError) as problem:
        error = repr(problem)
    except asyncio.CancelledError:
        error, unfinished = "unfinished", True
    tokens = _tokens(watch.tail)
    if error is None and (tokens != request.answer_tokens or b"[DONE]" not in watch.tail):
        error = f"the stream ended early: {tokens} of {request.answer_tokens} tokens"
    if unfinished and watch.ttft_s is None:
        watch.ttft_s = now_s() - request.at_s
    return Outcome(watch.ttft_s, tokens, now_s(), watch.late_s, error, unfinished)


def _tokens(tail: bytes) -> int:
    """The answer's tokens as the usage at the end of the stream tells them; 0: there is none."""
    found = _COMPLETION_TOKENS.findall(tail)
    return int(found[-1]) if found else 0
