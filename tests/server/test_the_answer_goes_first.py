"""What a pick teaches the prefix index is not waited for by the request."""

from __future__ import annotations

import asyncio
import json

import pytest

from extproc.rpc.call import EOF
from extproc.server import decode
from extproc.server.processor import Processor
from tests.placement.fleet import fleet
from tests.support.ext_proc_client import BUFFERED, HEADERS, body, headers

WORDS = "a prompt of some blocks " * 100
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": WORDS}]}).encode()


class Watched:
    """A stream of one request."""

    def __init__(self, *, whole: bool) -> None:
        first = body(BODY, first_with_mode=BUFFERED)
        for name, value in HEADERS.items():
            fields = first.attributes["envoy.filters.http.ext_proc"].fields
            fields["request." + name[1:] if name[0] == ":" else f"request.headers['{name}']"].string_value = value
        self._messages = [first] if whole else [headers(BUFFERED), body(BODY)]
        self.written = 0

    async def read(self) -> object:
        return self._messages.pop(0).SerializeToString() if self._messages else EOF

    async def write(self, reply: bytes) -> None:
        self.written += 1

    def metadata(self, _name: bytes) -> None:
        return None

    def keep(self, _size: int) -> None:
        pass


@pytest.mark.parametrize("whole", [True, False], ids=["by the short way", "by the state machine"])
async def test_the_index_learns_of_a_pick_when_all_is_written_without_anybody_asking(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decode.is_whole_body(body(BODY, first_with_mode=BUFFERED))
    router = fleet("cache-aware", 3)
    index = router.placements["vllm"].index
    stream = Watched(whole=whole)
    settled_after: list[int] = []
    settle = router.settle
    monkeypatch.setattr(router, "settle", lambda: (settled_after.append(stream.written), settle()))
    await Processor(router, max_body_bytes=1 << 20, close_early=lambda: False, clock=lambda: 0.0).process(stream)  # type: ignore[arg-type]
    assert index.stats().blocks == 0
    await asyncio.sleep(0)
    assert index.stats().blocks > 0
    assert settled_after == [1 if whole else 2], "all that there was to say"
