"""Addresses and endpoints: values that cannot be built wrong."""

from __future__ import annotations

import ipaddress
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.endpoint import Address, Endpoint, split_host_port


@pytest.mark.parametrize(
    ("ip", "text"),
    [
        ("10.0.0.1", "10.0.0.1:8000"),
        ("fd00::10", "[fd00::10]:8000"),
        ("[fd00::11]", "[fd00::11]:8000"),
        ("FD00:0:0:0:0:0:0:10", "[fd00::10]:8000"),
        ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]:8000"),
        ("::ffff:a00:1", "[::ffff:10.0.0.1]:8000"),
    ],
)
def test_an_address_has_one_spelling_with_brackets_only_around_ipv6(ip: str, text: str) -> None:
    """case b03"""
    assert str(Address.of(ip, 8000)) == text
    assert Address.parse(text) == Address.of(ip, 8000)


@given(
    st.one_of(
        st.ip_addresses(v=6),
        st.integers(0, 2**33).map(ipaddress.IPv6Address),  # those around an IPv4 address
        st.integers(0, 2**32 - 1).map(lambda n: ipaddress.IPv6Address(0xFFFF << 32 | n)),
        st.lists(st.sampled_from([0, 0, 1, 0xABCD]), min_size=8, max_size=8).map(
            lambda words: ipaddress.IPv6Address(b"".join(word.to_bytes(2) for word in words))
        ),
    )
)
def test_ipv6_is_spelled_as_envoy_spells_it(ip: ipaddress.IPv6Address) -> None:
    """Envoy writes its hosts with inet_ntop and finds a pick among them as text (case b03)."""
    assert Address.of(str(ip), 1).ip == socket.inet_ntop(socket.AF_INET6, ip.packed)


@pytest.mark.parametrize(
    "ip", ["fe80::1%eth0", "vllm-0.svc", "", "10.0.0.256", "010.0.0.1", "fd00::10:8000:1:2:3:4:5:6"]
)
def test_what_envoy_could_not_connect_to_is_no_address(ip: str) -> None:
    """case b03: zone ids too"""
    with pytest.raises(ValueError):
        Address.of(ip, 8000)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_out_of_range_is_no_address(port: int) -> None:
    with pytest.raises(ValueError, match="port"):
        Address.of("10.0.0.1", port)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.1:80", "10.0.0.1", 80),
        (" [fd00::10]:8000 ", "fd00::10", 8000),
        ("vllm-0.svc:65535", "vllm-0.svc", 65535),
    ],
)
def test_host_and_port_are_split(text: str, host: str, port: int) -> None:
    assert split_host_port(text) == (host, port)


@pytest.mark.parametrize(
    ("text", "cure"),
    [
        ("10.0.0.1", "has no port"),
        ("10.0.0.1:", "has no port"),
        ("[fd00::10]", "has no port"),
        ("fd00::10:8000", "in brackets"),
        (":8000", "has no host"),
        ("[]:8000", "has no host"),
        ("h:0", "from 1 to 65535"),
        ("h:65536", "from 1 to 65535"),
        ("h:+1", "from 1 to 65535"),
        ("h:８０", "from 1 to 65535"),  # full-width digits
        ("h:8000/x", "from 1 to 65535"),
    ],
)
def test_the_error_about_a_host_and_port_names_the_text_and_the_cure(text: str, cure: str) -> None:
    with pytest.raises(ValueError, match=cure) as error:
        split_host_port(text)
    assert text in str(error.value)


def test_port_zero_is_for_listening_only() -> None:
    assert split_host_port("127.0.0.1:0", lowest_port=0) == ("127.0.0.1", 0)


@given(st.text(max_size=30))
def test_no_text_makes_anything_but_a_pair_or_a_value_error(text: str) -> None:
    try:
        host, port = split_host_port(text)
    except ValueError:
        return
    assert host
    assert 1 <= port <= 65535


@pytest.mark.parametrize("weight", [0.0, -1.0, float("inf"), float("nan")])
def test_a_weight_must_be_positive_and_finite(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Endpoint(Address.of("10.0.0.1", 1), weight=weight)


def test_metrics_are_on_the_serving_port_unless_told() -> None:
    ip = Address.of("fd00::1", 8000)
    assert Endpoint(ip).metrics_host_port == "[fd00::1]:8000"
    assert Endpoint(ip, metrics_port=9000).metrics_host_port == "[fd00::1]:9000"
    with pytest.raises(ValueError, match="metrics_port"):
        Endpoint(ip, metrics_port=0)
