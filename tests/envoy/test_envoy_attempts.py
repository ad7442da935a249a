"""Where Envoy tries a request on several servers: does each attempt count where it was made, as what it was, once?"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

import aiohttp
import pytest

from extproc.pool.health import Health
from extproc.pool.ledger import ATTEMPT_WAIT_S
from tests.support import envoy_config, envoy_upstream
from tests.support.envoy_stack import Stack, eventually
from tests.support.envoy_upstream import Held, Upstream

pytestmark = pytest.mark.newest_only

SHAPES = pytest.mark.parametrize("shape", envoy_config.SHAPES)
FLUSHES_S = 0.75  # three times the log's flush interval
FAILURES = {  # how the first server fails, and what that is
    "refuses": "fault",
    "resets": "fault",
    "answers 500": "fault",
    "answers 503": "full",
    "answers 429": "full",
}


class Counted:
    """What has counted for each server's health, by port, in its order: `ok`, `fault`, `full` or `declined`."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._calls: list[tuple[Health, str]] = []

    def listen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for kind in ("ok", "fault", "full", "declined"):
            monkeypatch.setattr(Health, f"request_{kind}", self._counting(kind, getattr(Health, f"request_{kind}")))

    def _counting(self, kind: str, method: Any) -> Any:
        def count(health: Health, *arguments: Any) -> Any:
            self._calls.append((health, kind))
            return method(health, *arguments)

        return count

    @property
    def by_port(self) -> dict[int, list[str]]:
        found: defaultdict[int, list[str]] = defaultdict(list)
        for member in self._stack.app.router.pools[0].members:
            for health, kind in self._calls:
                if health is member.health:
                    found[member.address.port].append(kind)
        return dict(found)

    async def settles(self, wanted: dict[int, list[str]]) -> None:
        """Raises AssertionError: this is not what has counted when nothing more can come."""
        try:
            await eventually(lambda: self.by_port == wanted, f"counted {wanted}", timeout_s=20)
        except AssertionError as error:
            raise AssertionError(f"{error}; counted: {self.by_port}") from None
        await asyncio.sleep(max(FLUSHES_S, ATTEMPT_WAIT_S))
        self._stack.app.router.ledger.stream_ended("none", time.monotonic())
        assert self.by_port == wanted


def _retries_all(config: Any) -> None:
    """Also what the shipped files do not repeat, so that every failure is one of an attempt that another follows."""
    for host in envoy_config.connection_manager(config)["route_config"]["virtual_hosts"]:
        policy = host["retry_policy"]
        policy["retry_on"] += ",reset"
        policy["retriable_status_codes"] = [429, 500, 503]


async def _fail(server: Upstream, how: str) -> None:
    if how == "refuses":
        await server.stop()
    elif how == "resets":
        server.respond = envoy_upstream.reset
    else:
        server.respond = envoy_upstream.status(int(how.split()[1]))


async def _first_choice(stack: Stack) -> Upstream:
    await stack.until_access_log_is_connected()
    first = stack.only(0)
    await stack.until_waiting_is_known()
    return first


@SHAPES
@pytest.mark.parametrize("how", FAILURES)
async def test_a_failed_attempt_counts_where_it_failed_as_what_it_was(
    start: Any, monkeypatch: pytest.MonkeyPatch, shape: str, how: str
) -> None:
    """Cases b05, e15. The request's own entry may come before or after the attempt's."""
    stack: Stack = await start(shape=shape, profile="least-loaded", change=_retries_all)
    first = await _first_choice(stack)
    counted = Counted(stack)
    counted.listen(monkeypatch)
    await _fail(first, how)
    answer = await stack.request()
    assert answer.status == 200
    await counted.settles({first.port: [FAILURES[how]], answer.port: ["ok"]})
    requests = (await stack.status())["requests"]
    assert (requests["moved"], requests["served_elsewhere"]) == (1, 0)
    assert await stack.outcomes() == {"ok": 2}


@pytest.mark.parametrize("how", ["refuses", "answers 503"])
async def test_a_failed_attempt_is_told_while_the_request_still_runs(
    start: Any, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stack: Stack = await start(profile="least-loaded")
    first = await _first_choice(stack)
    counted = Counted(stack)
    counted.listen(monkeypatch)
    held = Held(head_first=False)
    for upstream in stack.upstreams[1:]:
        upstream.respond = held
    await _fail(first, how)
    request = asyncio.create_task(stack.request())
    await eventually(lambda: counted.by_port == {first.port: [FAILURES[how]]}, "the attempt is told")
    assert not request.done()
    held.release()
    serving = (await request).port
    await counted.settles({first.port: [FAILURES[how]], serving: ["ok"]})


@SHAPES
@pytest.mark.parametrize("how", ["refuses", "answers 503"])
async def test_where_all_fail_each_counts_once_and_the_request_once(
    start: Any, monkeypatch: pytest.MonkeyPatch, shape: str, how: str
) -> None:
    stack: Stack = await start(shape=shape)
    await stack.until_access_log_is_connected()
    counted = Counted(stack)
    counted.listen(monkeypatch)
    for upstream in stack.upstreams:
        await _fail(upstream, how)
    assert (await stack.request()).status == 503
    await counted.settles({upstream.port: [FAILURES[how]] for upstream in stack.upstreams})
    requests = (await stack.status())["requests"]
    assert (requests["moved"], requests["served_elsewhere"]) == (1, 0)
    assert await stack.outcomes() == {"ok": 1, "failed" if how == "refuses" else "backpressure": 1}


@SHAPES
async def test_a_failure_that_is_not_repeated_counts_once(
    start: Any, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """Both the attempt's entry and the request's own tell of it."""
    stack: Stack = await start(shape=shape, servers=1)
    await stack.until_access_log_is_connected()
    counted = Counted(stack)
    counted.listen(monkeypatch)
    (server,) = stack.upstreams
    for how, status in (("answers 500", 500), ("answers 429", 429), ("resets", 503)):
        await _fail(server, how)
        assert (await stack.request()).status == status
        await asyncio.sleep(FLUSHES_S)
    await counted.settles({server.port: ["fault", "full", "fault"]})
    assert (await stack.status())["access_log"]["entries"] == 1 + 2 * 3
    assert await stack.outcomes() == {"ok": 1, "failed": 2, "backpressure": 1}


@SHAPES
async def test_what_ends_an_attempt_otherwise_is_told_by_the_requests_own_entry(
    start: Any, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """A client that leaves before the response counts for nobody; a stream that breaks has status 200."""
    stack: Stack = await start(shape=shape, servers=1)
    await stack.until_access_log_is_connected()
    counted = Counted(stack)
    counted.listen(monkeypatch)
    (server,) = stack.upstreams
    server.respond = held = Held(head_first=False)
    request = asyncio.create_task(stack.request())
    await eventually(lambda: held.waiting == 1, "the request runs")
    request.cancel()
    await stack.nothing_in_flight()
    await counted.settles({})
    server.respond = held = Held(head_first=True, ending="reset")
    held.release()
    with pytest.raises(aiohttp.ClientPayloadError):
        await stack.request()
    await counted.settles({server.port: ["fault"]})
    assert (await stack.status())["access_log"]["entries"] == 1 + 2 + 1
    assert await stack.outcomes() == {"ok": 1, "cancelled": 1, "failed": 1}


@SHAPES
async def test_a_request_that_the_first_server_answers_sends_one_entry(start: Any, shape: str) -> None:
    """The attempts' log costs nothing where nothing fails, and a client's own mistake is no failure."""
    stack: Stack = await start(shape=shape)
    await stack.until_access_log_is_connected()
    for _ in range(10):
        assert (await stack.request()).status == 200
    for upstream in stack.upstreams:
        upstream.respond = envoy_upstream.status(400)
    assert (await stack.request()).status == 400
    await asyncio.sleep(FLUSHES_S)
    log = (await stack.status())["access_log"]
    assert (log["connected"], log["entries"]) == (1, 12)
