"""What clients send, without end and each time another: what is kept of it, and what it makes."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable

import pytest
from prometheus_client import generate_latest

from extproc.admin.metrics import RouterCollector, registry
from extproc.exchange.events import BodyMode, Event, Opening, Part
from extproc.exchange.exchange import MANY_CHUNKS, SMALL_BYTES, Exchange
from extproc.request import RawRequest, Route
from extproc.router import Router
from tests.admin.test_admin_pages import COUNTS
from tests.placement.fleet import PATH, fleet


def request(number: int) -> RawRequest:
    """Everything that a client can choose is another than in all requests before."""
    content = {
        "model": f"model-{number}",
        "messages": [{"role": "user", "content": f"prompt {number} " * 20}],
        "user": f"user-{number}",
        "previous_response_id": f"resp_{number}",
        "cache_salt": f"salt-{number}",
    }
    headers = {f"x-{number}": "v", "x-session-id": f"session-{number}", "x-profile": f"profile-{number}"}
    return RawRequest("POST", f"{PATH}?{number}", headers, json.dumps(content).encode(), Route(None, f"p-{number}"))


def ask(router: Router, numbers: range) -> None:
    """Each request is picked, and its stream ends."""
    for number in numbers:
        decision = router.route(request(number), float(number))
        router.settle()
        pick_id = getattr(decision, "pick_id", None)
        if pick_id is not None:
            router.stream_ended(pick_id, number + 0.5)


@pytest.mark.parametrize("profile", ["cache-aware", "session"])
def test_other_sessions_models_and_prompts_each_time_leave_memory_flat(profile: str) -> None:
    """With an index of its least size; 1,000 requests that were kept would be over 2 MB."""
    router = fleet(profile, 4, max_blocks=1000)
    tracemalloc.start()
    try:
        ask(router, range(1500))
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        ask(router, range(1500, 2500))
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 500_000, grown


def test_no_series_of_a_metric_is_named_by_a_client() -> None:
    router = fleet("cache-aware", 4)

    def series() -> set[str]:
        made = registry(
            RouterCollector(router, lambda: COUNTS, lambda: ([("+Inf", 0.0)], 0.0), lambda: True, lambda: 0.0)
        )
        return {line.rpartition(" ")[0] for line in generate_latest(made).decode().splitlines() if line[:1] != "#"}

    ask(router, range(20))
    before = series()
    ask(router, range(20, 220))
    assert series() == before


def collected(chunk: int, size: int) -> Exchange:
    """A full-duplex exchange that was sent a body of `size` bytes in chunks of `chunk`."""
    made = Exchange(
        Opening(request_body=BodyMode.FULL_DUPLEX_STREAMED),
        Part.REQUEST_HEADERS,
        max_body_bytes=1 << 24,
        close_early=True,
    )
    made.receive(Event(Part.REQUEST_HEADERS, headers={":method": "POST", ":path": PATH}))
    content = bytes(chunk)
    for _ in range(size // chunk):
        assert made.receive(Event(Part.REQUEST_BODY, body=bytes(content))) == []
    return made


@pytest.mark.parametrize("chunk", [1, 2, 7, 1000])
def test_a_body_in_tiny_pieces_takes_no_more_than_its_size(chunk: int) -> None:
    """A client's pieces come to us as Envoy gets them; of two bytes each they would take twenty times their size."""
    size = 100_000 if chunk < 10 else 1_000_000
    made = collected(chunk, size)
    assert made.collected_bytes == size // chunk * chunk
    assert len(made._chunks) <= MANY_CHUNKS + 2 * size // SMALL_BYTES


def test_pieces_without_content_are_not_kept() -> None:
    made = collected(1, 10)
    for _ in range(10_000):
        made.receive(Event(Part.REQUEST_BODY, body=b""))
    assert len(made._chunks) <= MANY_CHUNKS + 1


HEADERS: dict[str, Callable[[], dict[str, str]]] = {
    "many": lambda: {f"x-{number}": "v" for number in range(50_000)},
    "long": lambda: {"x-session-id": "s" * 10_000_000, "x-long": "v" * 1_000_000},
}


@pytest.mark.parametrize("kind", HEADERS)
def test_many_or_long_headers_are_not_kept(kind: str) -> None:
    router = fleet("session", 4)
    ask(router, range(10))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        decision = router.route(RawRequest("POST", PATH, HEADERS[kind](), b"{}"), 1.0)
        router.stream_ended(getattr(decision, "pick_id"), 2.0)  # noqa: B009
        del decision
        router.settle()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()
