"""Which ports are taken, and which does an envoy.yaml want?"""

from __future__ import annotations

import socket

from extproc.cli._ports import free_port, taken, wanted


def test_a_port_shared_by_so_reuseport_counts_as_taken() -> None:
    """Envoy opens its ports so: a second one would start without a word and get a share of the connections."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert taken("127.0.0.1", port)
        assert taken("0.0.0.0", port)
        assert free_port(port) != port
    assert not taken("127.0.0.1", port)
    assert free_port(port) == port


def test_an_address_of_another_machine_is_left_to_whoever_opens_it() -> None:
    assert not taken("192.0.2.1", 8080)


def test_a_port_to_avoid_is_not_given() -> None:
    port = free_port(0)
    assert free_port(port, avoid=frozenset({port})) != port


def test_an_envoy_yaml_wants_its_listeners_and_its_admin() -> None:
    def address(port: int) -> dict[str, object]:
        return {"socket_address": {"address": "0.0.0.0", "port_value": port}}

    document = {
        "admin": {"address": address(9901)},
        "static_resources": {
            "listeners": [
                {"name": "a", "address": address(8080)},
                {"name": "any free one", "address": address(0)},
                {"name": "unix", "address": {"pipe": {"path": "/run/x"}}},
                {"name": "udp", "address": {"socket_address": {"protocol": "UDP", "address": "::", "port_value": 443}}},
            ]
        },
    }
    assert list(wanted(document)) == [("listener a", "0.0.0.0", 8080), ("admin", "0.0.0.0", 9901)]
    assert list(wanted({})) == []
