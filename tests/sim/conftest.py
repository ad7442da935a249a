"""Small engines, and the ways tests drive them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from extproc.sim.engine import Engine
from extproc.sim.events import Event
from extproc.sim.spec import EngineSpec

# 16 usable blocks of 4 tokens, times that are easy to add up.
SMALL = EngineSpec(
    base_step_s=0.010,
    per_prefill_token_s=0.001,
    per_decode_seq_s=0.0005,
    per_prefill_token_context_s=1e-5,
    per_decode_context_token_s=1e-5,
    block_size_tokens=4,
    num_gpu_blocks=17,
    max_num_seqs=4,
    max_num_batched_tokens=16,
    max_model_len=64,
)
# The same scheduling over HTTP: a step of a millisecond, room for long streams.
BRISK = EngineSpec(
    base_step_s=0.001,
    per_prefill_token_s=1e-6,
    per_decode_seq_s=1e-6,
    num_gpu_blocks=4001,
    max_num_seqs=8,
    max_model_len=32_768,
)


def run_dry(engine: Engine) -> list[Event]:
    """Let the engine do all it has, waking it as it asks for."""
    events: list[Event] = []
    for _ in range(1_000_000):
        due_s = engine.next_event_at()
        if due_s is None:
            return events
        events += engine.advance(due_s)
    raise AssertionError("the engine never becomes idle")


async def eventually(condition: Callable[[], bool], what: str, within_s: float = 10.0) -> None:
    """Wait for a condition; fail with `what` if it does not come true."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline_s, f"not within {within_s} s: {what}"
        await asyncio.sleep(0.005)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client with a bound on every wait."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        yield session
