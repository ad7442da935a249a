"""Do many streams, and many long prompts, leave the service quick for the next one?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from random import Random
from typing import Any

from extproc.decision import Decision
from extproc.note import Note
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.server.processor import LONG_BYTES
from tests.support import fleet
from tests.support.ext_proc_client import BUFFERED, DUPLEX, Client, Service, body, destination, headers
from tests.support.waiting import eventually

SHORT = b'{"model": "m", "prompt": "hello"}'
MANY = 350  # more than 100 and more than 256, the usual limits of HTTP/2 servers and proxies


async def test_streams_held_open_on_one_connection_do_not_keep_the_next_one_waiting(
    service: Service, client: Client
) -> None:
    """Cases g07, g08: a stream is open as long as its answer is generated; neither grpc nor HTTP/2 may bound them."""
    held = [client.stream() for _ in range(MANY)]
    await asyncio.gather(*(stream.send(body(SHORT, first_with_mode=BUFFERED)) for stream in held))
    assert all([destination(await stream.read()) for stream in held])
    assert service.processor.open_streams == MANY
    assert sum(fleet.in_flight(service.router)) == MANY
    assert await client.stream().ask(body(SHORT, first_with_mode=BUFFERED))
    for stream in held:
        assert await stream.end() == "OK"
    await eventually(lambda: service.processor.open_streams == 1, "the gauge follows")


class Turns(Router):
    """Counts the decisions on long bodies since the event loop last came round."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.most = self.decided = self._in_this_turn = 0
        self._again: Callable[[], None] | None = None

    def route(self, raw: RawRequest, now: float, note: Note | None = None) -> Decision:
        if len(raw.body) > LONG_BYTES:
            if self._again is None:
                self._again = self._next_turn
                asyncio.get_running_loop().call_soon(self._again)
            self._in_this_turn += 1
            self.decided += 1
            self.most = max(self.most, self._in_this_turn)
        return super().route(raw, now, note)

    def _next_turn(self) -> None:
        self._in_this_turn, self._again = 0, None


async def _long_prompts(messages: Callable[[bytes], list[Any]]) -> Turns:
    """Sixty-four prompts at once, each well above `LONG_BYTES`."""
    router = Turns([PoolPlan(fleet.pool(4), PROFILES["cache-aware"], 3)], rng=Random(1))
    fleet.observe_all(router, 0.0)
    async with Service(router, clock=lambda: 0.0).serve() as service, service.client() as client:
        prompts = [json.dumps({"model": "m", "prompt": f"{n} " + "text " * 40_000}).encode() for n in range(64)]
        streams = [client.stream() for _ in prompts]
        await asyncio.gather(*(s.send(*messages(p)) for s, p in zip(streams, prompts, strict=True)))
        assert all([destination(await stream.read()) for stream in streams])
    assert router.decided == len(prompts)
    return router


async def test_long_prompts_are_decided_on_one_a_turn_of_the_event_loop() -> None:
    """Case g10: between two of them health checks are answered and short requests decided on."""
    router = await _long_prompts(lambda prompt: [body(prompt, first_with_mode=BUFFERED)])
    assert router.most == 1


async def test_so_are_those_that_come_in_parts() -> None:
    def parts(prompt: bytes) -> list[Any]:
        return [headers(DUPLEX), body(prompt[:100_000], end=False), body(prompt[100_000:])]

    router = await _long_prompts(parts)
    assert router.most == 1
