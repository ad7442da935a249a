"""The whole decision: pick or rejection, and what comes with it."""

from __future__ import annotations

from random import Random

import pytest

from extproc.decision import Pick, Rejection, RejectionReason
from extproc.endpoint import Address, Endpoint
from extproc.pool.health import EJECT_S
from extproc.pool.pool import Pool
from extproc.request import RawRequest, Route
from extproc.router import PoolPlan, Router
from extproc.scheduling.profiles import PROFILES
from tests.support.fleet import (
    STALE_AFTER_S,
    address,
    ended,
    endpoint,
    in_flight,
    member,
    pool,
    route,
    router,
    sample,
    sampled_router,
)


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "DELETE", "BREW", ""])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "//x?y", "", "/\udc80"])
@pytest.mark.parametrize("body", [b"", b"{}", b'{"model": "m"', b"\xff\xfe\x00", b"RIFF...."])
def test_any_path_method_and_body_is_routed(method: str, path: str, body: bytes) -> None:
    """cases c13, c17, c18, a15, a23"""
    fleet = sampled_router(2)
    raw = RawRequest(method, path, {"content-type": "multipart/form-data"}, body)
    assert isinstance(fleet.route(raw, 0.0), Pick)


def test_a_pick_names_the_first_choice_then_the_fallbacks_in_order_of_load() -> None:
    """R3, case b05"""
    fleet = sampled_router(4)
    for number, waiting in ((1, 3.0), (2, 0.0), (3, 1.0), (4, 2.0)):
        fleet.observe("vllm", address(number), sample(0.0, waiting=waiting), 0.0)
    pick = route(fleet, 0.0)
    assert (pick.address, pick.fallbacks) == (address(2), (address(3), address(4)))
    assert pick.destination == "10.0.0.2:8000,10.0.0.3:8000,10.0.0.4:8000"


def test_ipv6_stands_in_brackets_in_the_destination() -> None:
    """case b03"""
    fleet = Pool("p", stale_after_s=STALE_AFTER_S)
    fleet.set_endpoints([Endpoint(Address.of("fd00::10", 8000))])
    assert route(router(fleet), 0.0).destination == "[fd00::10]:8000"


def test_a_pool_of_one_is_named_alone() -> None:
    assert route(sampled_router(1), 0.0).destination == "10.0.0.1:8000"


def test_nobody_to_pick_is_a_503_that_says_when_to_come_back_and_is_counted() -> None:
    """case f09"""
    fleet = router(pool(0))
    decision = fleet.route(RawRequest(path="/secret", body=b"secret"), 0.0)
    assert isinstance(decision, Rejection)
    assert (decision.status, decision.reason, decision.retry_after_s) == (503, RejectionReason.NO_ENDPOINTS, 1)
    assert "secret" not in decision.message
    assert fleet.ledger.rejections == {RejectionReason.NO_ENDPOINTS: 1}
    assert not fleet.ledger.picks


def test_an_empty_or_unknown_subset_is_a_503() -> None:
    """case b08"""
    fleet = sampled_router(2)
    for hint in (frozenset[str](), frozenset({"10.9.9.9"})):
        assert isinstance(fleet.route(RawRequest(subset=hint), 0.0), Rejection)


def test_fallbacks_too_stay_inside_the_subset_and_off_drained_and_broken_servers() -> None:
    """Envoy's override_host does not look at health: whoever is named is used"""
    fleet = sampled_router(5, hosts=5)
    fleet.pools[0].set_endpoints(endpoint(number, drained=number == 1) for number in range(1, 6))
    for _ in range(3):
        member(fleet, 2).health.request_fault(0.0)
    pick = route(fleet, 0.0, subset=["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"])
    assert {pick.address, *pick.fallbacks} == {address(3), address(4)}


def test_the_route_chooses_the_pool_and_an_unnamed_or_unknown_one_is_the_default() -> None:
    fleet = Router(
        [PoolPlan(pool(1, name), PROFILES["least-loaded"], 1) for name in ("a", "b")], default_pool="b", rng=Random(1)
    )
    for asked in ("a", "b", None, "nope"):
        fleet.route(RawRequest(route=Route(asked)), 0.0)
    assert fleet.ledger.picks == {"a": 1, "b": 3}


CHAT = b'{"model": "m", "user": "u", "messages": [{"role": "user", "content": "hello"}]}'


def profile_used(fleet: Router, route: str | None, header: str | None) -> str:
    headers = {} if header is None else {"x-profile": header}
    raw = RawRequest("POST", "/v1/chat/completions", headers, CHAT, Route(profile=route))
    fleet.route(raw, 10.0 * len(fleet.decisions))  # far apart, so that each is in the decision log
    assert fleet.explain(raw, 0.0).profile == fleet.decisions[-1].explanation.profile
    return fleet.decisions[-1].explanation.profile


@pytest.mark.parametrize(
    ("allowed", "route", "header", "used"),
    [
        (False, None, None, "session"),
        (False, "least-loaded", None, "least-loaded"),
        (False, "cache-aware", "prefix-hash", "cache-aware"),
        (False, None, "prefix-hash", "session"),  # clients have no say
        (True, None, "prefix-hash", "prefix-hash"),
        (True, "cache-aware", "prefix-hash", "prefix-hash"),
        (True, "cache-aware", None, "cache-aware"),
        (True, "cache-aware", "nonsense", "cache-aware"),
        (True, "nonsense", "", "session"),
    ],
)
def test_header_before_route_before_pool(allowed: bool, route: str | None, header: str | None, used: str) -> None:
    plan = PoolPlan(pool(3), PROFILES["session"], 1, profile_header="x-profile" if allowed else None)
    assert profile_used(Router([plan], rng=Random(1)), route, header) == used


def test_pick_ids_are_unique_and_carry_the_prefix_of_the_process() -> None:
    fleet = Router([PoolPlan(pool(1), PROFILES["least-loaded"], 1)], rng=Random(1), id_prefix="ab12-")
    ids = [route(fleet, 0.0).pick_id for _ in range(100)]
    assert len(set(ids)) == 100
    assert all(each.startswith("ab12-") for each in ids)


def test_a_router_without_pools_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="at least one pool"):
        Router([], rng=Random(1))


def test_the_same_seed_and_the_same_fleet_make_the_same_picks() -> None:
    picks = [[route(fleet, 0.0).destination for _ in range(50)] for fleet in (sampled_router(6), sampled_router(6))]
    assert picks[0] == picks[1]


def test_the_first_in_the_list_is_not_favoured() -> None:
    """2,000 requests one at a time over four idle servers; 5 standard deviations are 97"""
    fleet = sampled_router(4)
    counts = dict.fromkeys((address(number) for number in range(1, 5)), 0)
    for _ in range(2_000):
        pick = route(fleet, 0.0)
        counts[pick.address] += 1
        fleet.stream_ended(pick.pick_id, 0.0)
    assert all(abs(count - 500) < 97 for count in counts.values())


def test_with_all_samples_stale_routing_goes_on_by_our_own_requests_in_flight() -> None:
    """case d10: a pool of four, and a pool of one"""
    fleet = sampled_router(4)
    for _ in range(40):
        route(fleet, STALE_AFTER_S + 60)
    assert in_flight(fleet) == [10, 10, 10, 10]
    single = sampled_router(1)
    for _ in range(20):
        route(single, STALE_AFTER_S + 60)
    assert single.ledger.panics.total() == 0


def test_panic_is_counted_and_lasts_only_as_long_as_its_cause() -> None:
    """case e15"""
    fleet = sampled_router(2)
    for number in (1, 2):
        for _ in range(3):
            member(fleet, number).health.request_fault(0.0)
    assert {route(fleet, 1.0).address for _ in range(4)} == {address(1), address(2)}
    assert fleet.ledger.panics == {"vllm": 4}
    route(fleet, EJECT_S)
    assert fleet.ledger.panics == {"vllm": 4}


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 503])
def test_a_client_error_and_a_full_server_eject_nobody(status: int) -> None:
    """case e15"""
    fleet = sampled_router(2)
    for _ in range(20):
        fleet.complete(ended(route(fleet, 0.0, subset=["10.0.0.1"]), status=status), 0.0)
    assert member(fleet, 1).health.problem(0.0) is None


@pytest.mark.parametrize("status", [400, 429, 503])
def test_a_client_error_and_a_full_server_do_not_hide_faults_either(status: int) -> None:
    """case e15: a front that still refuses politely is no proof that the engine works"""
    fleet = sampled_router(2)
    for _ in range(3):
        fleet.complete(ended(route(fleet, 0.0, subset=["10.0.0.1"]), status=500), 0.0)
        fleet.complete(ended(route(fleet, 0.0, subset=["10.0.0.1"]), status=status), 0.0)
    assert member(fleet, 1).health.problem(0.0) == "errors in a row"
