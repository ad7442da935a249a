"""What is Envoy told of a pool's servers?

Envoy's fallback policy chooses among healthy hosts; a pick that names a host is followed whatever its health is. So the
health said here decides where requests without a pick go, and no running stream ends by it:

* `DRAINING`: the operator or its platform takes it out of service. What runs there goes on.
* `UNHEALTHY`: we would not send it a request now.
* `HEALTHY`: all others, also a server that is only starting. To say otherwise of it would leave Envoy without a healthy
  host whenever this service has just started and has scraped none yet; whether a new server's port is open, Envoy's own
  health check and its retry find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest

from extproc.endpoint import Endpoint
from extproc.pb.core_pb2 import DRAINING, HEALTHY, UNHEALTHY, HealthStatus
from extproc.pb.endpoint_pb2 import ClusterLoadAssignment
from extproc.pool.member import Member, State

TYPE_URL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

# Envoy's weights are whole numbers and must not exceed 2^32 - 1 in sum, of thousands of hosts.
_UNIT = 100
_HEAVIEST = 1_000_000
_OUT_OF_SERVICE = frozenset({State.DRAINING, State.DRAINED, State.EXPIRED})

Seen = tuple[tuple[Endpoint, ...], tuple[HealthStatus, ...]]


class Assignment(NamedTuple):
    """The members of one cluster, ready to be sent."""

    version: str  # of the content: equal where the content is, in every process
    resource: bytes  # a ClusterLoadAssignment


def status(member: Member, now: float) -> HealthStatus:
    """The health that Envoy is told of one server."""
    if member.health.sound and member.out is None and not member.endpoint.leaving:
        return HEALTHY  # as most are: this is asked of all of them, many times a second
    state = member.state(now)
    if member.endpoint.leaving or state in _OUT_OF_SERVICE:
        return DRAINING
    return UNHEALTHY if state is State.UNHEALTHY else HEALTHY


def seen(members: Sequence[Member], now: float) -> Seen:
    """All that an assignment is made of. It is compared many times for each time that it has changed."""
    return tuple([member.endpoint for member in members]), tuple([status(member, now) for member in members])


def assignment(name: str, members: Seen) -> Assignment:
    """What is said under `name`, in the order of the addresses.

    Weights are said only where they differ: among hosts of equal weight least_request compares two at random, which
    it does not do among others.
    """
    message = ClusterLoadAssignment(cluster_name=name)
    hosts = sorted(zip(*members, strict=True), key=lambda host: host[0].address)
    if hosts:
        locality = message.endpoints.add()
        weighted = _differ(endpoint.weight for endpoint, _ in hosts)
        for endpoint, health in hosts:
            host = locality.lb_endpoints.add(health_status=health)
            socket = host.endpoint.address.socket_address
            socket.address, socket.port_value = endpoint.address.ip, endpoint.address.port
            if endpoint.hostname is not None:
                host.endpoint.hostname = endpoint.hostname
            if weighted:
                host.load_balancing_weight.value = min(max(1, round(endpoint.weight * _UNIT)), _HEAVIEST)
    resource = message.SerializeToString()
    return Assignment(xxh3_64_hexdigest(resource), resource)


def nobody(name: str) -> Assignment:
    """A cluster without hosts."""
    return assignment(name, ((), ()))


def _differ(weights: Iterable[float]) -> bool:
    return len(set(weights)) > 1
