"""How long does each step of a pick take?

The steps of `Router.route` are done one after the other, as there, each with the clock read around it, on a request
that was never seen before; then another request goes through `Router.route` as a whole, and what the answer does not
wait for through `Router.settle`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from statistics import median
from time import perf_counter, thread_time_ns

from bench.pick.scene import HEADERS, HOSTS, MODEL, PATH, POOL, Bodies, Scene
from extproc.decision import Pick
from extproc.openai.understand import understand
from extproc.placement import TOKENS_UP_TO
from extproc.pool.reservation import Reservation
from extproc.prefix.turns import learn, match_prompt, prompt_blocks
from extproc.request import RawRequest
from extproc.scheduling.costs import first_token_s
from extproc.scheduling.filters import eligible
from extproc.scheduling.pickers import cheapest_s
from extproc.scheduling.work import Work

# Up to `total` the answer waits for it.
STAGES = ("parse", "hash", "match", "cost", "pick", "reserve", "total", "learn")
_SHARED_BY = 100  # requests
_SESSION_HEADERS = ("x-session-id",)


@dataclass(frozen=True, slots=True)
class Row:
    """One step of a pick, over one fleet and for one size of body."""

    endpoints: int
    body_kb: int
    indexed_blocks: int
    stage: str  # of STAGES
    us: float  # median
    min_us: float
    repetitions: int


def measure(scene: Scene, body_kb: int, *, seconds: float, least: int = 50) -> list[Row]:
    """Repeat for so long, and at least so often."""
    requests = _requests(scene, body_kb)
    times: dict[str, list[int]] = {stage: [] for stage in STAGES}
    end_s = perf_counter() + seconds
    rng = Random(2)
    while perf_counter() < end_s or len(times["total"]) < least:
        scene.tick()
        steps = _steps(scene, next(requests), rng)
        for stage, ns in steps.items():
            times[stage].append(ns)
        scene.tick()
        whole = _whole(scene, next(requests))
        for stage, ns in whole.items():
            times[stage].append(ns)
    blocks = scene.index.stats().blocks
    return [
        Row(
            len(scene.pool.members),
            body_kb,
            blocks,
            stage,
            round(median(each) / 1e3, 2),
            round(min(each) / 1e3, 2),
            len(each),
        )
        for stage, each in times.items()
    ]


def _requests(scene: Scene, body_kb: int) -> Iterator[RawRequest]:
    """No two alike. The shared half is another one from time to time: whoever is picked holds all of it from then on,
    so after some hundred requests all servers would hold as much."""
    for number in itertools.count():
        if number % _SHARED_BY == 0:
            bodies = Bodies(body_kb * 1024, number)
            scene.share(bodies)
        yield RawRequest("POST", PATH, HEADERS, bodies.body(number + 1))


def _whole(scene: Scene, raw: RawRequest) -> dict[str, int]:
    route, settle, now = scene.router.route, scene.router.settle, scene.now
    clock: Callable[[], int] = thread_time_ns
    t0 = clock()
    pick = route(raw, now)
    t1 = clock()
    settle()
    t2 = clock()
    assert isinstance(pick, Pick)
    scene.sent(pick)
    return {"total": t1 - t0, "learn": t2 - t1}


def _steps(scene: Scene, raw: RawRequest, rng: Random) -> dict[str, int]:
    now, index = scene.now, scene.index
    clock: Callable[[], int] = thread_time_ns
    t0 = clock()
    request = understand(raw, session_headers=_SESSION_HEADERS)
    t1 = clock()
    blocks = prompt_blocks(request, model=request.model)
    t2 = clock()
    held = match_prompt(index, blocks, scene.mask, TOKENS_UP_TO)
    t3 = clock()
    candidates = eligible(scene.pool.members, now, all_ready=scene.pool.all_ready).candidates
    t4 = clock()
    work = Work(len(request.prompt) / 4, held)
    costs_s = first_token_s(candidates, work, now, complete=True)
    t5 = clock()
    order = cheapest_s(costs_s, candidates, HOSTS, rng)
    t6 = clock()
    members = [candidates[i] for i in order]
    addresses = [member.endpoint.address for member in members]
    pick = Pick(
        f"steps-{len(request.prompt)}-{t0:x}",
        addresses[0],
        tuple(addresses[1:]),
        ",".join([address.text for address in addresses]),
    )
    uncached = work.uncached_at(members[0].slot)
    scene.router.ledger.add(Reservation(pick, members[0], POOL, raw.path, now, uncached))
    t7 = clock()
    learn(index, members[0].slot, blocks)
    scene.sent(pick)
    assert request.model == MODEL, "the body was understood"
    return {
        "parse": t1 - t0,
        "hash": t2 - t1,
        "match": t3 - t2,
        "cost": t5 - t4,
        "pick": (t4 - t3) + (t6 - t5),
        "reserve": t7 - t6,
    }
