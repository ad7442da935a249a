"""From members to the ClusterLoadAssignment that Envoy gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.endpoint import Address, Endpoint
from extproc.pb.core_pb2 import DRAINING, HEALTHY, UNHEALTHY, HealthStatus
from extproc.pb.endpoint_pb2 import ClusterLoadAssignment, LbEndpoint
from extproc.pool.member import Member, State
from extproc.server.assignment import assignment, nobody, seen, status
from tests.support.fleet import STALE_AFTER_S, address, endpoint, sample


def member(of: Endpoint) -> Member:
    return Member(of, stale_after_s=STALE_AFTER_S)


def ready(number: int) -> Member:
    made = member(endpoint(number))
    made.observe(sample(0.0))
    return made


def hosts(*members: Member) -> list[LbEndpoint]:
    told = ClusterLoadAssignment.FromString(assignment("vllm", seen(members, 0.0)).resource)
    assert told.cluster_name == "vllm"
    return [host for locality in told.endpoints for host in locality.lb_endpoints]


def refusing() -> Member:
    made = member(endpoint(1))
    for at_s in (0.0, 0.5):
        made.health.scrape_failed("refused", at_s, answered=False, refused=True)
    return made


def returning() -> Member:
    made = ready(1)
    for _ in range(3):
        made.health.request_fault(-20.0)
    assert made.state(0.0) is State.RETURNING
    return made


def sleeping() -> Member:
    made = member(endpoint(1))
    made.observe(sample(0.0, sleeping=True))
    return made


@pytest.mark.parametrize(
    ("of", "health"),
    [
        (ready(1), HEALTHY),
        (returning(), HEALTHY),
        (refusing(), UNHEALTHY),
        (sleeping(), UNHEALTHY),
        (member(endpoint(1, drained=True)), DRAINING),
        (member(replace(endpoint(1), leaving=True)), DRAINING),
    ],
    ids=["ready", "returning", "refusing", "sleeping", "drained by its operator", "leaving"],
)
def test_the_health_that_envoy_is_told(of: Member, health: HealthStatus) -> None:
    """case f02"""
    assert status(of, 0.0) == health


def test_a_server_that_only_starts_is_healthy_until_it_refuses() -> None:
    """case b06: of a service that has just started all members are starting, and Envoy must have somebody to go to"""
    made = member(endpoint(1))
    assert made.state(0.0) is State.STARTING
    assert status(made, 0.0) == HEALTHY
    assert status(refusing(), 0.0) == UNHEALTHY


@pytest.mark.parametrize("state", [state for state in State if state is not State.GONE])
def test_each_state_has_a_health(state: State) -> None:
    class At(Member):
        __slots__ = ()

        def state(self, now: float) -> State:
            return state

    said = {State.UNHEALTHY: UNHEALTHY}.get(state, HEALTHY)
    if state in (State.DRAINING, State.DRAINED, State.EXPIRED):
        said = DRAINING
    assert status(At(endpoint(1), stale_after_s=STALE_AFTER_S), 0.0) == said


def test_hosts_are_told_in_one_order_whatever_the_source_s_is() -> None:
    """Two services say the same, and a source that shuffles its answers makes no push."""
    members = [ready(number) for number in (3, 1, 12, 2)]
    told = assignment("vllm", seen(members, 0.0))
    assert told == assignment("vllm", seen(members[::-1], 0.0))
    assert [host.endpoint.address.socket_address.address for host in hosts(*members)] == sorted(
        member.address.ip for member in members
    )


def test_an_address_is_told_as_a_pick_would_name_it() -> None:
    """case b03"""
    v6 = member(Endpoint(Address.parse("[FD00:0::10]:8000"), hostname="vllm-0.example"))
    (host,) = hosts(v6)
    assert (host.endpoint.address.socket_address.address, host.endpoint.hostname) == ("fd00::10", "vllm-0.example")
    assert host.endpoint.address.socket_address.port_value == 8000


def test_weights_are_told_where_they_differ() -> None:
    equal = [member(replace(endpoint(number), weight=3.0)) for number in (1, 2)]
    assert [host.HasField("load_balancing_weight") for host in hosts(*equal)] == [False, False]
    weights = {1: 1.0, 2: 2.5, 3: 0.0001, 4: 1e9}
    different = [member(replace(endpoint(number), weight=weight)) for number, weight in weights.items()]
    assert [host.load_balancing_weight.value for host in hosts(*different)] == [100, 250, 1, 1_000_000]


def test_nobody_is_a_cluster_without_hosts() -> None:
    assert hosts() == []
    assert nobody("vllm") == assignment("vllm", seen((), 0.0))


def test_a_version_is_of_the_content() -> None:
    one, two = ready(1), ready(2)
    versions = [
        assignment(name, seen(members, 0.0)).version
        for name, members in (("a", [one]), ("a", [one, two]), ("b", [one]), ("a", [member(endpoint(1, drained=True))]))
    ]
    assert len(set(versions)) == 4
    assert assignment("a", seen([ready(1)], 99.0)).version == versions[0]
    assert one.address == address(1)
