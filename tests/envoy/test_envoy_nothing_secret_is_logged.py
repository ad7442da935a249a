"""Does a client's secret come into a log on its way through Envoy and the service? See tests/security."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.support.envoy_stack import Stack
from tests.support.whole_log import whole_log

CANARY = "c4n4ry"
HEADERS = {
    "content-type": "application/json",
    "authorization": f"Bearer {CANARY}",
    "cookie": f"session={CANARY}",
    "x-session-id": CANARY,
}
GOOD = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"my secret is {CANARY}" * 100}]}).encode()
BODIES: list[tuple[bytes, dict[str, str]]] = [
    (GOOD, {}),
    (GOOD[:-9], {}),
    (b'{"prompt": "' + CANARY.encode() + b'\xff"}', {}),
    (gzip.compress(GOOD)[:-9], {"content-encoding": "gzip"}),
]


@pytest.mark.newest_only
@pytest.mark.parametrize("shape", ["A", "C"])
async def test_not_of_a_request_that_is_served(start: Any, shape: str) -> None:
    """At level debug, in the log of the service and in Envoy's as it is shipped, and on the service's pages."""
    with whole_log() as log:
        stack: Stack = await start(shape=shape)
        for body, more in BODIES:
            path = f"/v1/chat/completions?api_key={CANARY}"
            assert (await stack.request(path=path, body=body, headers=HEADERS | more)).status == 200
        assert await stack.picks() == len(BODIES)
        assert [seen.headers["authorization"] for seen in stack.seen()] == [f"Bearer {CANARY}"] * len(BODIES)
        status = json.dumps(await stack.status())
    assert "metrics are read" in log.text, "nothing was taken down"
    for text in (log.text, status, "\n".join(stack.log)):
        assert CANARY not in text
