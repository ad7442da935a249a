"""Names that routes and headers ask for and that do not exist: routed by the default, counted, told once."""

from __future__ import annotations

from random import Random

import pytest

from extproc.decision import Pick
from extproc.request import ANY_ROUTE, RawRequest, Route
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from extproc.unknown import MOST_NAMES, NAME_CHARS, NamedBy
from tests.support.fleet import pool


def fleet() -> Router:
    return Router([PoolPlan(pool(1), PROFILES["least-loaded"], 1, profile_header="x-profile")], rng=Random(1))


@pytest.mark.parametrize(
    ("route", "headers", "counted"),
    [
        (ANY_ROUTE, {}, {}),
        (Route("vllm", "session"), {"x-profile": "prefix-hash"}, {}),
        (Route("nope"), {}, {NamedBy.ROUTE_POOL: 1}),
        (Route("nope", "nope"), {}, {NamedBy.ROUTE_POOL: 1, NamedBy.ROUTE_PROFILE: 1}),
        (Route(None, "nope"), {"x-profile": "nope"}, {NamedBy.ROUTE_PROFILE: 1, NamedBy.HEADER_PROFILE: 1}),
        (ANY_ROUTE, {"x-profile": "nope"}, {NamedBy.HEADER_PROFILE: 1}),
        (ANY_ROUTE, {"x-profile": ""}, {}),
    ],
)
def test_an_unknown_name_is_counted_by_what_named_it(
    route: Route, headers: dict[str, str], counted: dict[NamedBy, int]
) -> None:
    router = fleet()
    assert isinstance(router.route(RawRequest(headers=headers, route=route), 0.0), Pick)
    assert router.unknown.counts == counted


def test_asking_for_an_explanation_counts_nothing() -> None:
    router = fleet()
    router.explain(RawRequest(route=Route("nope", "nope")), 0.0)
    assert not router.unknown.counts


def test_each_name_of_a_route_is_told_once_and_a_clients_never() -> None:
    router, told = fleet(), []
    router.unknown.on_new = lambda by, name: told.append((str(by), name))
    for _ in range(3):
        router.route(RawRequest(headers={"x-profile": "secret"}, route=Route("a", "b")), 0.0)
    assert told == [("route_pool", "a"), ("route_profile", "b")]
    assert router.unknown.names == {(NamedBy.ROUTE_POOL, "a"): 3, (NamedBy.ROUTE_PROFILE, "b"): 3}
    assert router.unknown.counts[NamedBy.HEADER_PROFILE] == 3
    assert "secret" not in str(router.unknown.names)


def test_names_without_end_are_all_counted_and_few_are_kept() -> None:
    router, told = fleet(), []
    router.unknown.on_new = lambda by, name: told.append(name)
    for number in range(10 * MOST_NAMES):
        router.route(RawRequest(route=Route(f"{number:03}" + "x" * 10_000)), 0.0)
    assert router.unknown.counts == {NamedBy.ROUTE_POOL: 10 * MOST_NAMES}
    assert len(told) == len(router.unknown.names) == MOST_NAMES
    assert max(map(len, told)) == NAME_CHARS
