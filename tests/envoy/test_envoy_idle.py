"""What does a pause of the length after which vLLM closes a connection cost the next request?"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from tests.support.envoy_sims import MODEL, Sims
from tests.support.envoy_stack import Stack

CLIENTS = 200
TURNS = 3
CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 25}).encode()


@pytest.mark.slow
@pytest.mark.newest_only
async def test_turns_five_seconds_apart_meet_no_closed_connection(start: Any) -> None:
    """Case b11: vLLM closes connections idle for 5 s. Each of many clients sends requests 5.0 to 5.5 s apart.

    A turn takes a quarter of a second, so that the clients' requests overlap and Envoy pools many connections.
    """
    draw = random.Random(3)
    async with Sims("sim", 2, "--preset", "instant", "--base-step-s", "0.01") as sims:
        stack: Stack = await start(servers=list(sims.ports.values()), service="process")
        statuses: Counter[int] = Counter()

        async def converse() -> None:
            for turn in range(TURNS):
                if turn:
                    await asyncio.sleep(draw.uniform(5.0, 5.5))
                statuses[(await stack.request(body=CHAT)).status] += 1

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(converse())
        assert statuses == {200: CLIENTS * TURNS}
        stats = await stack.stats()
        assert stats["cluster.vllm.upstream_cx_total"] >= CLIENTS // 2, "many connections were pooled"
        assert stats["cluster.vllm.upstream_cx_idle_timeout"] >= CLIENTS // 2, "and Envoy itself closed them"
        assert stats["cluster.vllm.upstream_cx_destroy_remote_with_active_rq"] == 0
        await stack.nothing_in_flight()
