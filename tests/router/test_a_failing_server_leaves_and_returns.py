"""How much does a server get that answers with errors, and when does it get its share again after it is well?

A small model in virtual time: servers that take `SERVICE_S` for an answer or fail at once, a metrics page and a probe
every half second, and an access log that is told every quarter of a second, as the shipped Envoy does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest

from extproc.decision import Completion, Pick
from extproc.endpoint import Address
from extproc.pool.health import EJECT_MAX_S, FULL_MAX_S
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from tests.support.fleet import address, pool, sample

SERVERS = 4
PER_S = 40
SERVICE_S = 0.5
FLUSH_S = 0.25
SCRAPE_S = 0.5
STEP_S = 1 / PER_S
BAD = address(1)

Fault = dict[str, Any]  # what the log says of it
FAULTS: dict[str, Fault] = {
    "500": {"status": 500},
    "breaks its streams": {"status": 200, "flags": ("upstream_remote_reset",)},
    "resets": {"status": 503, "flags": ("upstream_connection_termination",)},
    "refuses, to the end": {"status": 503, "flags": ("upstream_connection_failure",)},
}
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}'


class Model:
    """Time goes on by `run`. `fault`: what the bad server answers, None: it is well. `probe`: what its /health says."""

    def __init__(self, profile: str = "least-loaded", *, probed: bool = True) -> None:
        fleet = pool(SERVERS)
        self.router = Router([PoolPlan(fleet, PROFILES[profile], 3)], rng=Random(1))
        self.members = fleet.members
        self.now = 0.0
        self.fault: Fault | None = None
        self.hung = False  # it answers nothing at all
        self.dead = False  # its /health says so
        self.picks: Counter[Address] = Counter()
        self.first_s: dict[Address, float] = {}  # when it was picked first
        self._probed = probed
        self._number = 0
        self._running: list[tuple[float, int, Pick, Fault]] = []
        self._untold: list[Completion] = []

    @property
    def share(self) -> float:
        return self.picks[BAD] / self.picks.total()

    def run(self, for_s: float) -> None:
        """Counts picks from its beginning on."""
        self.picks.clear()
        self.first_s.clear()
        for _ in range(round(for_s * PER_S)):
            self.now += STEP_S
            while self._running and self._running[0][0] <= self.now:
                self._end(*heappop(self._running)[1:])
            self._every(FLUSH_S, self._flush)
            self._every(SCRAPE_S, self._look)
            self._request()

    def _every(self, length_s: float, what: Callable[[], None]) -> None:
        if round(self.now / STEP_S) % round(length_s / STEP_S) == 0:
            what()

    def _request(self) -> None:
        self._number += 1
        body = CHAT % (b"%d " % self._number * 100)
        pick = self.router.route(RawRequest("POST", "/v1/chat/completions", {}, body), self.now)
        assert isinstance(pick, Pick)
        self.picks[pick.address] += 1
        self.first_s.setdefault(pick.address, self.now)
        fault = self.fault if pick.address == BAD else None
        if self.hung and pick.address == BAD:
            return
        after_s = SERVICE_S if fault is None else 0.002
        heappush(self._running, (self.now + after_s, self._number, pick, fault or {"status": 200}))

    def _end(self, _number: int, pick: Pick, told: Fault) -> None:
        self.router.stream_ended(pick.pick_id, self.now)
        self._untold.append(Completion(pick.pick_id, pick.address, **told))

    def _flush(self) -> None:
        for completion in self._untold:
            self.router.complete(completion, self.now)
        self._untold.clear()

    def _look(self) -> None:
        for member in self.members:
            hung = self.hung and member.address == BAD
            if self._probed and member.health.to_probe(self.now):
                if self.dead and member.address == BAD:
                    member.health.probe_failed("/health answers 503", self.now, certain=True)
                elif not hung:
                    member.health.probe_passed(self.now)
            if hung:
                member.health.scrape_failed("timeout", self.now, answered=False, refused=False)
                continue
            running = sum(pick.address == member.address for _, _, pick, _ in self._running)
            self.router.observe("vllm", member.address, sample(self.now, running=float(running)), self.now)

    def until_fair(self, within_s: float) -> float:
        """Seconds until the bad one gets at least half of its share, over two seconds; a failure if later."""
        began_s = self.now
        while self.now - began_s <= within_s:
            self.run(2.0)
            if self.share >= 0.5 / SERVERS:
                return self.now - began_s
        raise AssertionError(f"share {self.share:.2f} after {within_s} s")


@pytest.mark.parametrize(
    ("profile", "fault", "probed"),
    [
        *[("least-loaded", fault, True) for fault in FAULTS],
        ("least-loaded", "500", False),
        ("cache-aware", "500", True),
        ("prefix-hash", "500", True),
    ],
)
def test_a_black_hole_gets_under_five_percent_and_its_share_when_it_is_well(
    profile: str, fault: str, probed: bool
) -> None:
    """case e15"""
    model = Model(profile, probed=probed)
    model.run(10.0)
    assert 0.15 < model.share < 0.35
    model.fault = FAULTS[fault]
    model.run(2 * FLUSH_S)  # what is under way before we hear of it
    assert model.picks[BAD] <= 2 * FLUSH_S * PER_S
    model.run(120.0)
    assert model.share < 0.01
    assert model.picks[BAD] <= 6, "one for each time that it may show itself: after 5, 10, 20, 40, and each 60 s"
    model.fault = None
    model.until_fair(EJECT_MAX_S + 10.0)


def test_one_that_says_it_is_dead_costs_no_more_answers_and_returns_soon() -> None:
    """case e15: an ejection is prolonged by probes only while it is dead"""
    model = Model()
    model.run(1.0)
    model.fault, model.dead = FAULTS["500"], True
    model.run(1.0)
    model.run(300.0)
    assert model.picks[BAD] == 0
    model.fault, model.dead = None, False
    model.until_fair(10.0)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_the_clients_errors_never_take_a_server_out(status: int) -> None:
    """case e15"""
    model = Model()
    model.fault = {"status": status}
    model.run(30.0)
    assert model.share > 1 / SERVERS  # it is the quickest
    assert model.members[0].health.sound


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_server_rests_for_seconds_and_is_never_ejected(status: int) -> None:
    """case e15"""
    model = Model()
    model.run(5.0)
    model.fault = {"status": status}
    model.run(60.0)
    assert model.share < 0.05
    assert model.members[0].problem(model.now) is None
    model.fault = None
    model.until_fair(FULL_MAX_S + 4.0)


def test_a_hung_server_delays_no_other_leaves_and_returns() -> None:
    """case e16"""
    model = Model()
    model.run(5.0)
    model.hung = True
    model.run(10.0)
    assert model.share < 0.1, "its requests in flight add up, and its sample is stale"
    model.run(21.0)
    model.run(30.0)
    assert model.picks[BAD] == 0
    assert all(model.picks[member.address] > 0 for member in model.members[1:])
    model.hung = False
    model.run(2.0)
    assert model.members[0].problem(model.now) is None
