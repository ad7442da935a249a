"""What workers have counted, added up."""

from __future__ import annotations

import json
from random import Random

import orjson

from extproc.admin.explain import as_json
from extproc.decision import Pick, RejectionReason
from extproc.endpoint import Endpoint
from extproc.front import COUNTED
from extproc.pool.pool import Pool
from extproc.request import RawRequest, Route
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.server.durations import Durations
from extproc.unknown import NamedBy
from extproc.workers.counts import Totals, counted, explained, explanation_of, pack, unpack
from tests.support.fleet import address


def router(servers: int) -> Router:
    pool = Pool("vllm", stale_after_s=3.0)
    pool.set_endpoints([Endpoint(address(n)) for n in range(1, servers + 1)])
    return Router([PoolPlan(pool, PROFILES["cache-aware"], 2)], rng=Random(1), id_prefix=f"{servers}-")


def ask(of: Router, route: Route = Route()) -> None:  # noqa: B008 - a value
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "words " * 200}]}).encode()
    of.route(RawRequest("POST", "/v1/chat/completions", {}, body, route), 1.0)


def test_counts_of_all_workers_are_added_also_of_those_that_are_gone() -> None:
    supervisor, busy, empty = router(2), router(2), router(0)
    totals = Totals(supervisor, COUNTED)
    durations = Durations()
    durations.add(0.003)
    before: dict[tuple[str, ...], float] = {}
    for _ in range(3):
        ask(busy)
        ask(busy, Route("no such pool"))
        now = unpack(orjson.loads(orjson.dumps(pack(counted(busy, {"streams": 5, "open_streams": 2}, durations)))))
        totals.add(now, before)
        before = now
    totals.gauges(0, {"open_streams": 2})
    ask(empty)
    totals.add(counted(empty, {"streams": 1, "open_streams": 1}, Durations()), {})
    totals.gauges(1, {"open_streams": 1})
    tally, theirs = supervisor.placements["vllm"].tally, busy.placements["vllm"].tally
    assert tally.ways == theirs.ways
    assert {api: (c.picks, c.prompt_tokens, c.held_tokens) for api, c in tally.apis.items()} == {
        api: (c.picks, c.prompt_tokens, c.held_tokens) for api, c in theirs.apis.items()
    }
    assert supervisor.unknown.counts == {NamedBy.ROUTE_POOL: 3}
    assert supervisor.unknown.names == {(NamedBy.ROUTE_POOL, "no such pool"): 3}
    assert supervisor.ledger.rejections == {RejectionReason.NO_ENDPOINTS: 1}
    assert supervisor.ledger.requests("vllm") == 1  # turned away; of picks it hears otherwise
    assert totals.service()["streams"] == 6
    assert totals.service()["open_streams"] == 3
    assert totals.durations.cumulative() == durations.cumulative()
    totals.gauges(0, {})  # it has ended
    assert totals.service()["streams"] == 6
    assert totals.service()["open_streams"] == 1
    totals.add(counted(router(0), {"streams": 2}, Durations()), {})  # another in its place
    assert totals.service()["streams"] == 8


def test_the_reasons_of_a_decision_survive_the_way() -> None:
    busy = router(3)
    ask(busy)
    logged = busy.decisions[-1]
    pick_id, found = orjson.loads(orjson.dumps(explained(logged)))
    assert isinstance(logged.reservation.pick, Pick)
    assert pick_id == logged.reservation.pick.pick_id
    assert explanation_of(found) == logged.explanation
    assert as_json(explanation_of(found)) == as_json(logged.explanation)
