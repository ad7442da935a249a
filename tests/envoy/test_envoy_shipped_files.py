"""Do the shipped files route, with nothing changed but ports?"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import envoy_config
from tests.support.envoy_stack import BODY, DESTINATION, digest, eventually

pytestmark = pytest.mark.parametrize("shape", envoy_config.SHAPES)


async def test_a_request_goes_where_the_pick_says_and_is_counted_until_its_end(start: Any, shape: str) -> None:
    """R1, R2. The destination that the server sees is the pick, the server is its first host."""
    stack = await start(
        shape=shape, quick=False, change=lambda config: envoy_config.settings_of(config).update(shutdown_notice_s=0)
    )
    for number in range(1, 6):
        answer = await stack.request()
        assert answer.status == 200
        assert answer.json()["sha256"] == digest(BODY)
        assert await stack.picks() == number
        recent = (await stack.status())["recent"][0]
        assert recent["picked"] == f"127.0.0.1:{answer.port}"
        seen = stack.by_port(answer.port).seen[-1]
        assert seen.headers[DESTINATION] == ",".join([recent["picked"], *recent["fallbacks"]])
    await stack.nothing_in_flight()

    async def all_known() -> bool:
        return await stack.outcomes() == {"ok": 5}

    await eventually(all_known, "the access log told the end of all five")
    assert (await stack.status())["requests"]["served_elsewhere"] == 0


async def test_least_waiting_wins(start: Any, shape: str) -> None:
    """R3, R4: the server without a queue gets the requests, whichever it is."""
    stack = await start(shape=shape, profile="least-loaded")
    for index in range(3):
        favourite = stack.only(index)
        await stack.until_waiting_is_known()
        assert {(await stack.request()).port for _ in range(3)} == {favourite.port}
    await stack.nothing_in_flight()
