"""Drains over HTTP: idempotent, with errors that name the cure, and in a file that outlives the process."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from extproc.admin import drain_pages
from extproc.admin.drain_file import DrainFile
from extproc.admin.drains import KEPT_S, LEAST_S, DrainDesk
from extproc.endpoint import Address, Endpoint
from extproc.pool.deadline import Bounds, longest_s
from extproc.pool.pool import Pool
from extproc.router import Router
from tests.support.fleet import STALE_AFTER_S, address, endpoint, observe_all, pool, route, router, sample

START = 100.0
WALL = 1.7e9


class World:
    """A desk over some pools, at a time that the test sets. `restart` is what a new process finds."""

    def __init__(self, *pools: Pool, file: Path | None = None) -> None:
        self.file = file
        self.now = START
        self.wall_ahead = WALL
        self._take(router(*pools or (pool(2),)))

    def _take(self, fleet: Router) -> None:
        self.router = fleet
        self.pool = fleet.pools[0]
        file = None if self.file is None else DrainFile(str(self.file))
        self.desk = DrainDesk(
            fleet, Bounds(), file=file, clock=lambda: self.now, wall_clock=lambda: self.now + self.wall_ahead
        )

    def restart(self, *, after_s: float, endpoints: list[Endpoint]) -> None:
        """Another process, whose monotonic clock begins anew."""
        self.wall_ahead += self.now + after_s - 5.0
        self.now = 5.0
        self._take(router(pool(0)))
        self.appear(endpoints)

    def appear(self, endpoints: list[Endpoint]) -> None:
        self.pool.set_endpoints(endpoints)
        self.desk.appeared(self.pool)

    def idle(self) -> None:
        for _ in range(2):
            self.now += 1.0
            observe_all(self.router, self.now)
        self.pool.drains.tick(self.now)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Callable[..., Any]]:
        app = web.Application()
        app.add_routes(drain_pages.routes(self.desk))
        async with TestClient(TestServer(app)) as client:

            async def ask(method: str, path: str, **options: Any) -> tuple[int, Any]:
                async with client.request(method, path, **options) as answer:
                    return answer.status, await answer.json()

            yield ask


ONE = "/v1/endpoints/10.0.0.1:8000/drain"


async def test_a_drain_from_its_start_to_its_end_and_back() -> None:
    world = World()
    observe_all(world.router, START)
    pick = route(world.router, world.now, subset=["10.0.0.1"])
    async with world.served() as ask:
        _, before = await ask("GET", ONE)
        assert (before["state"], before["phase"], before["by"], before["deadline_s"]) == ("ready", None, None, None)
        code, started = await ask("POST", ONE)
        assert code == 200
        assert started["deadline_s"] == pytest.approx(longest_s(Bounds()), abs=0.1)
        told = {"endpoint": "10.0.0.1:8000", "pool": "vllm", "state": "draining", "phase": "draining"}
        told |= {"by": "operator", "in_flight": 1, "blocked_by": "in_flight", "started": WALL + START}
        assert started | told == started
        world.now += 10.0
        _, again = await ask("POST", ONE)
        assert again["started"] == started["started"], "asked twice, it has begun once"
        assert again["deadline_s"] == pytest.approx(started["deadline_s"] - 10.0)
        _, tighter = await ask("POST", f"{ONE}?deadline_s=20")
        assert (tighter["started"], tighter["deadline_s"]) == (started["started"], 20.0)
        world.router.stream_ended(pick.pick_id, world.now)
        _, waiting = await ask("GET", ONE)
        assert (waiting["in_flight"], waiting["blocked_by"]) == (0, "no fresh sample")
        world.idle()
        _, drained = await ask("GET", ONE)
        assert (drained["state"], drained["blocked_by"], drained["open_at_end"]) == ("drained", None, 0)
        assert [each["endpoint"] for each in (await ask("GET", "/v1/drains"))[1]] == ["10.0.0.1:8000"]
        for _ in range(2):
            code, back = await ask("DELETE", ONE)
            assert (code, back["state"], back["phase"]) == (200, "ready", None)
        assert (await ask("GET", "/v1/drains"))[1] == []


async def test_the_deadline_where_none_is_given_is_by_what_runs_there_and_leaves_time_to_see_that_nothing_does() -> (
    None
):
    world = World()
    async with world.served() as ask:
        _, unknown = await ask("POST", ONE)
        assert unknown["deadline_s"] == pytest.approx(longest_s(Bounds()))
        observe_all(world.router, START)
        _, idle = await ask("POST", "/v1/endpoints/10.0.0.2:8000/drain")
        assert idle["deadline_s"] == pytest.approx(LEAST_S)


@pytest.mark.parametrize(
    ("method", "path", "code", "words"),
    [
        ("GET", "/v1/endpoints/10.0.0.9:8000/drain", 404, "there are: 10.0.0.1:8000, 10.0.0.2:8000"),
        ("POST", "/v1/endpoints/10.0.0.1/drain", 400, "has no port; write host:port"),
        ("POST", "/v1/endpoints/fd00::1:8000/drain", 400, "put an IPv6 address in brackets"),
        ("POST", f"{ONE}?deadline=5", 400, 'unknown parameter "deadline"; there are: by, deadline_s, pool'),
        ("POST", f"{ONE}?deadline_s=soon", 400, 'deadline_s: "soon" is not a number of seconds'),
        ("POST", f"{ONE}?deadline_s=-1", 400, "is not a number of seconds"),
        ("POST", f"{ONE}?deadline_s=nan", 400, "is not a number of seconds"),
        ("POST", f"{ONE}?by=me", 400, "by must be operator or self"),
        ("POST", f"{ONE}?pool=vlm", 404, 'no pool "vlm"; there are: vllm'),
        ("GET", "/v1/drain-victim?pool=vlm", 404, 'no pool "vlm"'),
        ("GET", "/v1/drains?pool=x", 400, "none is taken here"),
    ],
)
async def test_mistakes_are_told_with_their_cure(method: str, path: str, code: int, words: str) -> None:
    async with World().served() as ask:
        status, answer = await ask(method, path)
    assert (status, list(answer)) == (code, ["error"])
    assert words in answer["error"]


async def test_what_would_not_be_read_is_refused() -> None:
    async with World().served() as ask:
        assert (await ask("POST", ONE, json={"deadline_s": 5}))[1]["error"].startswith("a body is not read")
        assert (await ask("GET", ONE))[1]["phase"] is None


async def test_an_endpoint_of_several_pools_needs_the_pool() -> None:
    world = World(pool(1), pool(1, "other"))
    async with world.served() as ask:
        status, answer = await ask("POST", ONE)
        assert (status, answer["error"]) == (
            409,
            "10.0.0.1:8000 is in several pools; name one (pool=), of: other, vllm",
        )
        assert (await ask("POST", f"{ONE}?pool=other"))[1]["pool"] == "other"
        assert world.pool.members[0].drain is None
        status, answer = await ask("GET", "/v1/drain-victim")
        assert (status, answer["error"]) == (400, "there are several pools; name one (pool=), of: vllm, other")


@pytest.mark.parametrize("written", ["[fd00::10]:8000", "[FD00:0::10]:8000", "server.example:8000"])
async def test_an_endpoint_is_found_however_it_is_written(written: str) -> None:
    one = Pool("vllm", stale_after_s=STALE_AFTER_S)
    one.set_endpoints([Endpoint(Address.of("fd00::10", 8000), hostname="server.example")])
    async with World(one).served() as ask:
        for spelt in (written, quote(written, safe="")):
            code, answer = await ask("POST", f"/v1/endpoints/{spelt}/drain")
            assert (code, answer["endpoint"]) == (200, "[fd00::10]:8000")


async def test_a_name_of_several_servers_is_not_enough() -> None:
    two = Pool("vllm", stale_after_s=STALE_AFTER_S)
    two.set_endpoints([replace(endpoint(number), hostname="server.example") for number in (1, 2)])
    async with World(two).served() as ask:
        status, answer = await ask("POST", "/v1/endpoints/server.example:8000/drain")
    assert (status, answer["error"].partition(": ")[2]) == (409, "10.0.0.1:8000, 10.0.0.2:8000")


@pytest.mark.parametrize(
    ("options", "words"), [({"drained": True}, "drained: true"), ({"leaving": True}, "its platform is taking it down")]
)
async def test_what_is_not_asked_here_cannot_be_withdrawn_here(options: dict[str, bool], words: str) -> None:
    world = World()
    world.appear([replace(endpoint(1), **options), endpoint(2)])
    async with world.served() as ask:
        await ask("POST", ONE)
        status, answer = await ask("DELETE", ONE)
        assert status == 409
        assert words in answer["error"]
        assert (await ask("GET", ONE))[1]["by"] in ("config", "platform")


async def test_the_last_server_may_be_drained_by_name_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    observe_all(world.router, START)
    async with world.served() as ask:
        assert "warning" not in (await ask("POST", ONE))[1]
        _, last = await ask("POST", "/v1/endpoints/10.0.0.2:8000/drain")
        assert last["warning"] == "no ready server is left in pool vllm: requests may be answered 503"
        assert "no ready server is left" in caplog.text
        assert "warning" not in (await ask("POST", ONE))[1], "it is told when it happens"


async def test_it_is_told_when_the_others_have_no_room() -> None:
    """case f11; but who names a server is obeyed"""
    world = World()
    observe_all(world.router, START, kv=0.6)
    async with world.served() as ask:
        _, answer = await ask("POST", ONE)
    assert (answer["phase"], answer["warning"]) == (
        "draining",
        "the others may have no room for its requests: what runs would fill 120% of the others' KV caches",
    )


async def test_a_server_that_has_left_is_shown_while_requests_run_on_it() -> None:
    world = World()
    pick = route(world.router, world.now, subset=["10.0.0.1"])
    async with world.served() as ask:
        await ask("POST", ONE)
        world.appear([endpoint(2)])
        assert (await ask("GET", ONE))[1]["state"] == "gone"
        assert (await ask("POST", ONE))[0] == 404
        world.router.stream_ended(pick.pick_id, world.now)
        assert (await ask("GET", ONE))[0] == 404


async def test_a_drain_survives_a_restart_and_its_deadline_goes_on_meanwhile(tmp_path: Path) -> None:
    world = World(file=tmp_path / "drains.json")
    async with world.served() as ask:
        _, before = await ask("POST", f"{ONE}?deadline_s=60")
        assert before["survives_restart"]
    world.restart(after_s=20.0, endpoints=[endpoint(1), endpoint(2)])
    async with world.served() as ask:
        _, after = await ask("GET", ONE)
        assert (after["phase"], after["by"], after["started"]) == ("draining", "operator", before["started"])
        assert after["deadline_s"] == pytest.approx(40.0)
        assert route(world.router, world.now).address == address(2)
        world.idle()
        assert (await ask("GET", ONE))[1]["phase"] == "drained"
        await world.desk.save()
    world.restart(after_s=1.0, endpoints=[endpoint(1), endpoint(2)])
    async with world.served() as ask:
        assert (await ask("GET", ONE))[1]["phase"] == "drained"
        await ask("DELETE", ONE)
    world.restart(after_s=1.0, endpoints=[endpoint(1), endpoint(2)])
    assert world.pool.members[0].drain is None


async def test_a_deadline_that_passed_while_the_service_was_away_leaves_time_for_two_samples(tmp_path: Path) -> None:
    world = World(file=tmp_path / "drains.json")
    async with world.served() as ask:
        await ask("POST", f"{ONE}?deadline_s=10")
    world.restart(after_s=100.0, endpoints=[endpoint(1), endpoint(2)])
    world.pool.drains.tick(world.now)
    world.idle()
    assert str(world.pool.members[0].state(world.now)) == "drained"


async def test_what_still_runs_at_a_deadline_is_told_by_the_server_when_we_cannot_know(tmp_path: Path) -> None:
    world = World(file=tmp_path / "drains.json")
    async with world.served() as ask:
        await ask("POST", f"{ONE}?deadline_s=10")
        world.restart(after_s=5.0, endpoints=[endpoint(1), endpoint(2)])
    world.now += 5.5
    world.router.observe("vllm", address(1), sample(world.now, running=3.0), world.now)
    world.pool.drains.tick(world.now)
    async with world.served() as ask:
        _, expired = await ask("GET", ONE)
    assert (expired["phase"], expired["open_at_end"]) == ("expired", 3)


async def test_a_drain_waits_for_a_server_that_appears_late_and_not_for_another_one(tmp_path: Path) -> None:
    world = World(file=tmp_path / "drains.json")
    world.appear([replace(endpoint(1), uid="a"), replace(endpoint(2), uid="b")])
    async with world.served() as ask:
        for number in (1, 2):
            await ask("POST", f"/v1/endpoints/10.0.0.{number}:8000/drain")
    world.restart(after_s=1.0, endpoints=[])
    async with world.served() as ask:
        _, absent = await ask("GET", ONE)
        assert (absent["state"], absent["phase"], absent["blocked_by"]) == ("absent", "draining", "no fresh sample")
        assert len((await ask("GET", "/v1/drains"))[1]) == 2
    await world.desk.save()
    world.restart(after_s=1.0, endpoints=[replace(endpoint(1), uid="a"), replace(endpoint(2), uid="c")])
    assert [member.drain is not None for member in world.pool.members] == [True, False]
    world.restart(after_s=KEPT_S, endpoints=[replace(endpoint(1), uid="a")])
    assert world.pool.members[0].drain is None, "that was long ago"


async def test_an_absent_servers_drain_can_be_cancelled(tmp_path: Path) -> None:
    world = World(file=tmp_path / "drains.json")
    async with world.served() as ask:
        await ask("POST", ONE)
    world.restart(after_s=1.0, endpoints=[])
    async with world.served() as ask:
        code, answer = await ask("DELETE", ONE)
        assert (code, answer["phase"]) == (200, None)
        assert (await ask("GET", ONE))[0] == 404


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b'{"version": 2, "drains": []}', b'{"version": 1, "drains": [{}]}', b'{"version": 1}', b"\xff"],
)
def test_a_file_that_is_no_list_of_drains_is_moved_aside(
    text: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "drains.json"
    file.write_bytes(text)
    world = World(file=file)
    assert world.desk.every() == []
    [aside] = tmp_path.glob("drains.json.unreadable-*")
    assert aside.read_bytes() == text
    assert json.loads(file.read_bytes()) == {"version": 1, "drains": []}
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "no drain is restored, start them again" in record.getMessage()


def test_a_directory_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        World(file=tmp_path / "missing" / "drains.json")


async def test_a_write_that_fails_leaves_the_old_file_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "drains.json"
    world = World(file=file)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("extproc.whole_file.os.fsync", full)
    async with world.served() as ask:
        code, answer = await ask("POST", ONE)
    assert (code, answer["phase"], answer["survives_restart"]) == (200, "draining", False)
    assert "No space left on device" in answer["warning"]
    assert file.read_bytes() == before


async def test_the_victim_is_proposed_and_nothing_is_done() -> None:
    world = World(pool(3))
    observe_all(world.router, START)
    route(world.router, START, subset=["10.0.0.1"])
    async with world.served() as ask:
        for method in ("GET", "POST"):
            code, answer = await ask(method, "/v1/drain-victim")
            assert (code, answer["endpoint"], answer["state"]) == (200, "10.0.0.2:8000", "ready")
            assert (answer["tokens_in_flight"], answer["alone_tokens"]) == (0, 0)
        await ask("POST", ONE)
        code, answer = await ask("GET", "/v1/drain-victim")
        assert code == 409
        assert answer["error"] == "pool vllm: no server should go now: 10.0.0.1:8000 is draining; one at a time"
