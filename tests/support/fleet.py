"""A router over a made-up fleet, for tests with values in and out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from extproc.decision import Completion, Pick
from extproc.endpoint import Address, Endpoint
from extproc.pool.member import Member
from extproc.pool.pool import Pool
from extproc.pool.sample import LoadSample
from extproc.request import RawRequest
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES

STALE_AFTER_S = 3.0


def endpoint(number: int, *, drained: bool = False) -> Endpoint:
    """The server 10.0.0.`number`:8000."""
    return Endpoint(address(number), drained=drained)


def address(number: int) -> Address:
    return Address.of(f"10.0.0.{number}", 8000)


def sample(
    at_s: float,
    *,
    waiting: float | None = 0.0,
    running: float | None = 0.0,
    kv: float | None = 0.0,
    sleeping: bool | None = None,
) -> LoadSample:
    return LoadSample(taken_at_s=at_s, waiting=waiting, running=running, kv_usage_ratio=kv, sleeping=sleeping)


def pool(size: int, name: str = "vllm") -> Pool:
    """Servers 10.0.0.1 to 10.0.0.`size`, none of them sampled yet."""
    made = Pool(name, stale_after_s=STALE_AFTER_S)
    made.set_endpoints(endpoint(number + 1) for number in range(size))
    return made


def router(*pools: Pool, seed: int = 1, hosts: int = 3) -> Router:
    return Router([PoolPlan(each, PROFILES["least-loaded"], hosts) for each in pools], rng=Random(seed))


def sampled_router(size: int, *, seed: int = 1, hosts: int = 3, at_s: float = 0.0) -> Router:
    """A router over one pool whose servers all said at `at_s` that they are idle."""
    made = router(pool(size), seed=seed, hosts=hosts)
    observe_all(made, at_s)
    return made


def observe_all(to: Router, at_s: float, **load: float | None) -> None:
    for each in to.pools:
        for member in each.members:
            to.observe(each.name, member.address, sample(at_s, **load), at_s)


def member(of: Router, number: int) -> Member:
    found = of.pools[0].member(address(number))
    assert found is not None
    return found


def in_flight(of: Router) -> list[int]:
    return [each.in_flight for pool in of.pools for each in pool.members]


def route(by: Router, now: float, *, subset: Iterable[str] | None = None) -> Pick:
    """Route a request that must be picked."""
    decision = by.route(RawRequest(subset=None if subset is None else frozenset(subset)), now)
    assert isinstance(decision, Pick)
    return decision


def ended(
    pick: Pick,
    *,
    served: Address | None = None,
    status: int | None = 200,
    flags: Sequence[str] = (),
    attempts: int = 1,
    final: bool = True,
) -> Completion:
    """The access log's word on a pick; served by the first choice unless said otherwise."""
    return Completion(
        pick_id=pick.pick_id,
        served=served or pick.address,
        final=final,
        status=status,
        flags=tuple(flags),
        attempts=attempts,
    )
