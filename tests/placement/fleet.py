"""A router of any profile over a made-up fleet, and requests to ask it about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from extproc.decision import Pick
from extproc.endpoint import Endpoint
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.prefill import Prefill
from extproc.pool.sample import Histogram, LoadSample
from extproc.request import RawRequest
from extproc.router import Considered, PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from tests.support.fleet import STALE_AFTER_S, address

PATH = "/v1/chat/completions"
AWARE = ("session", "prefix-hash", "cache-aware")


def fleet(
    profile: str,
    size: int,
    *,
    seed: int = 1,
    weights: Mapping[int, float] | None = None,
    order: Sequence[int] | None = None,
    idle: bool = True,
    max_blocks: int = 100_000,
) -> Router:
    """Servers 10.0.0.1 to 10.0.0.`size`. `idle`: each has said so at time 0."""
    pool = Pool("vllm", stale_after_s=STALE_AFTER_S)
    numbers = order or range(1, size + 1)
    pool.set_endpoints(Endpoint(address(number), weight=(weights or {}).get(number, 1.0)) for number in numbers)
    made = Router([PoolPlan(pool, PROFILES[profile], 3, max_blocks)], rng=Random(seed))
    if idle:
        say_all(made, 0.0)
    return made


def page(at_s: float, **told: object) -> LoadSample:
    """An idle server's sample, but for what is told."""
    return LoadSample(at_s, **{"running": 0.0, "waiting": 0.0, "kv_usage_ratio": 0.0, **told})  # type: ignore[arg-type]


def ttft(count: float, sum_s: float) -> Histogram:
    return Histogram((float("inf"),), (count,), sum_s)


def say(to: Router, number: int, sample: LoadSample) -> None:
    to.observe("vllm", address(number), sample, sample.taken_at_s)


def say_all(to: Router, at_s: float, **told: object) -> None:
    """All servers say the same. By default that they are idle, whatever was sent to them."""
    for each in to.pools[0].members:
        to.observe("vllm", each.address, page(at_s, **told), at_s)


def set_members(of: Router, numbers: Iterable[int]) -> None:
    """Make these the servers; those that come say that they are idle."""
    known = {each.address for each in of.pools[0].members}
    of.pools[0].set_endpoints(Endpoint(address(number)) for number in numbers)
    for each in of.pools[0].members:
        if each.address not in known:
            of.observe("vllm", each.address, page(0.0), 0.0)


def chat(text: str, *, system: str = "", session: str | None = None, **fields: object) -> RawRequest:
    messages = [{"role": "system", "content": system}] if system else []
    body: dict[str, object] = {"model": "m", "messages": [*messages, {"role": "user", "content": text}], **fields}
    if session is not None:
        body["user"] = session
    return RawRequest("POST", PATH, {}, json.dumps(body).encode())


def text(tokens: int, name: object) -> str:
    """About so many tokens at 4 bytes each, like no other text from its first bytes on."""
    return (f"{name}: " + "word " * tokens)[: 4 * tokens]


def send(by: Router, raw: RawRequest, now: float = 0.0) -> Pick:
    decision = by.route(raw, now)
    assert isinstance(decision, Pick)
    return decision


def serve(by: Router, raw: RawRequest, now: float = 0.0) -> int:
    """Send a request, let it end at once and its prompt be computed; the number of the server that had it."""
    pick = send(by, raw, now)
    by.stream_ended(pick.pick_id, now)
    return number_of(pick)


def number_of(pick: Pick) -> int:
    return int(pick.address.ip.rpartition(".")[2])


def server(of: Router, number: int) -> Member:
    found = of.pools[0].member(address(number))
    assert found is not None
    return found


def owe(member: Member, tokens: float, now: float) -> Prefill:
    """So many prompt tokens more are to be computed there."""
    prefill = member.prefill.add(tokens, now)
    member.restand()
    return prefill


def held_tokens(by: Router, raw: RawRequest, now: float = 0.0) -> dict[int, float]:
    """What the servers are believed to hold of a request's prompt, by their numbers; who holds none is left out."""
    considered: Considered = by.consider(raw, now)
    assert considered.placed is not None
    held = considered.placed.work.held
    return {
        int(each.address.ip.rpartition(".")[2]): held[each.slot] for each in considered.candidates if each.slot in held
    }
