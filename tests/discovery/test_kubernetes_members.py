"""From Kubernetes objects to endpoints, without Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.discovery.kubernetes.members import Members, of_pods, of_slices
from extproc.discovery.kubernetes.objects import InferencePool, Pod, Slice
from tests.support.kubernetes_api import inference_pool, pod, slice_endpoint, slice_of


def pods(*items: dict[str, Any], ports: tuple[int | str, ...] = (8000,), family: str = "v4_preferred") -> Members:
    return of_pods([Pod.of(item) for item in items], ports, family)


def slices(*items: dict[str, Any], ports: tuple[int | str, ...] = (), family: str = "v4_preferred") -> Members:
    return of_slices([Slice.of(item) for item in items], ports, family)


def addresses(members: Members) -> list[str]:
    return [endpoint.address.text for endpoint in members.endpoints]


def marked(members: Members) -> dict[str, tuple[str | None, bool]]:
    return {endpoint.address.text: (endpoint.uid, endpoint.leaving) for endpoint in members.endpoints}


def with_status(item: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {**item, "status": {**item["status"], **status}}


class TestPods:
    def test_a_pod_is_known_by_its_uid_and_leaves_with_its_deletion_timestamp(self) -> None:
        found = pods(pod("a", "10.0.0.1"), pod("b", "10.0.0.2", deletionTimestamp="2026-01-01T00:00:09Z"))
        assert marked(found) == {"10.0.0.1:8000": ("uid-a", False), "10.0.0.2:8000": ("uid-b", True)}

    def test_a_pod_that_is_not_ready_is_a_member_for_it_may_be_about_to_serve(self) -> None:
        starting = with_status(pod("a", "10.0.0.1"), phase="Pending", conditions=[{"type": "Ready", "status": "False"}])
        assert marked(pods(starting)) == {"10.0.0.1:8000": ("uid-a", False)}

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_a_pod_that_has_ended_is_none_though_its_object_and_ip_are_still_there(self, phase: str) -> None:
        assert pods(with_status(pod("a", "10.0.0.1"), phase=phase)) == Members(())

    def test_a_pod_without_an_ip_is_none_yet(self) -> None:
        assert pods(with_status(pod("a", None), phase="Pending")) == Members(())

    def test_ipv6_is_written_as_envoy_does_and_a_zone_is_refused(self) -> None:
        found = pods(pod("a", "fd00:0::10"), pod("b", "::ffff:10.0.0.1"), pod("c", "fe80::1%eth0"))
        assert addresses(found) == ["[::ffff:10.0.0.1]:8000", "[fd00::10]:8000"]
        assert found.problems == (
            'pod c: "fe80::1%eth0": an IPv6 zone id cannot be routed to by Envoy; leave out "%..."',
        )

    @pytest.mark.parametrize(
        ("family", "expected"),
        [
            ("v4_preferred", ["10.0.0.1:8000", "[fd00::2]:8000"]),
            ("v6_preferred", ["[fd00::1]:8000", "[fd00::2]:8000"]),
            ("v4_only", ["10.0.0.1:8000"]),
            ("v6_only", ["[fd00::1]:8000", "[fd00::2]:8000"]),
        ],
    )
    def test_a_pod_of_two_families_is_one_server(self, family: str, expected: list[str]) -> None:
        both = with_status(pod("a", "10.0.0.1"), podIPs=[{"ip": "fd00::1"}, {"ip": "10.0.0.1"}])
        assert addresses(pods(both, pod("b", "fd00::2"), family=family)) == expected

    def test_each_port_of_a_pod_is_a_server_of_its_own(self) -> None:
        found = pods(pod("a", "10.0.0.1"), ports=(8001, 8000))
        assert marked(found) == {"10.0.0.1:8000": ("uid-a", False), "10.0.0.1:8001": ("uid-a", False)}

    def test_a_port_is_found_by_name_also_in_a_sidecar_and_a_missing_one_is_told(self) -> None:
        proxied = pod("a", "10.0.0.1")
        proxied["spec"]["initContainers"] = [{"name": "proxy", "ports": [{"name": "front", "containerPort": 8080}]}]
        found = pods(proxied, pod("b", "10.0.0.2"), ports=("front",))
        assert addresses(found) == ["10.0.0.1:8080"]
        assert found.problems == ('pod b: no container has a port named "front" (there: http 8000)',)

    def test_of_two_pods_at_one_address_it_is_the_one_that_stays(self) -> None:
        """Host network: the new one has its IP before the old one has let go of the port."""
        old = pod("a", "192.168.0.1", deletionTimestamp="2026-01-01T00:00:09Z")
        new = with_status(pod("b", "192.168.0.1"), phase="Pending", conditions=[])
        assert marked(pods(old, new)) == marked(pods(new, old)) == {"192.168.0.1:8000": ("uid-b", False)}

    def test_what_the_annotations_say_counts(self) -> None:
        notes = {"weight": "0.5", "model": "a, b", "metrics-port": "9100", "drained": "true"}
        noted = pod("a", "10.0.0.1", annotations={f"extproc/{key}": value for key, value in notes.items()})
        (endpoint,) = pods(noted).endpoints
        assert (endpoint.weight, endpoint.models, endpoint.metrics_port, endpoint.drained) == (
            0.5,
            ("a", "b"),
            9100,
            True,
        )

    def test_a_bad_annotation_is_told_and_takes_nothing_away(self) -> None:
        notes = {"extproc/weight": "heavy", "extproc/metrics-port": "70000", "extproc/wieght": "2", "other/x": "1"}
        found = pods(pod("a", "10.0.0.1", annotations={**notes, "extproc/model": "m"}))
        (endpoint,) = found.endpoints
        assert (endpoint.weight, endpoint.metrics_port, endpoint.models) == (1.0, None, ("m",))
        assert found.problems == (
            'pod a: annotation extproc/weight: "heavy" does not count: input should be a valid number, unable to parse'
            " string as a number",
            'pod a: annotation extproc/metrics-port: "70000" does not count: input should be less than or equal to'
            " 65535",
            'pod a: annotation extproc/wieght is unknown; did you mean "weight"?',
        )

    def test_one_metrics_port_cannot_be_that_of_several_servers(self) -> None:
        found = pods(pod("a", "10.0.0.1", annotations={"extproc/metrics-port": "9100"}), ports=(8000, 8001))
        assert [endpoint.metrics_port for endpoint in found.endpoints] == [None, None]
        assert found.problems == (
            "pod a: annotation extproc/metrics-port does not count: each of the pod's several ports has its own"
            " metrics",
        )


class TestSlices:
    def test_an_endpoint_is_known_by_its_pods_uid_and_one_without_a_reference_by_its_address(self) -> None:
        found = slices(slice_of("vllm", "s", slice_endpoint("10.0.0.1", "u1"), slice_endpoint("10.0.0.2")))
        assert marked(found) == {"10.0.0.1:8000": ("u1", False), "10.0.0.2:8000": (None, False)}

    @pytest.mark.parametrize(
        "conditions",
        [
            {"ready": False, "serving": True, "terminating": True},
            {"ready": False, "serving": False, "terminating": True},
            {"ready": True, "serving": True, "terminating": True},  # the Service publishes not-ready addresses
        ],
    )
    def test_a_terminating_one_is_leaving_whatever_else_is_said(self, conditions: dict[str, bool]) -> None:
        found = slices(slice_of("vllm", "s", slice_endpoint("10.0.0.1", "u1", **conditions)))
        assert marked(found) == {"10.0.0.1:8000": ("u1", True)}

    def test_one_that_is_not_ready_is_a_member(self) -> None:
        item = slice_of("vllm", "s", slice_endpoint("10.0.0.1", "u1", ready=False, serving=False))
        assert marked(slices(item)) == {"10.0.0.1:8000": ("u1", False)}

    def test_conditions_that_are_not_told_are_no_ground_to_leave(self) -> None:
        item = slice_of("vllm", "s", {"addresses": ["10.0.0.1"], "conditions": {}}, {"addresses": ["10.0.0.2"]})
        assert marked(slices(item)) == {"10.0.0.1:8000": (None, False), "10.0.0.2:8000": (None, False)}

    def test_the_same_endpoint_in_two_slices_is_one_and_a_deletion_is_not_taken_back(self) -> None:
        one = slice_of("vllm", "s1", slice_endpoint("10.0.0.1", "u1"))
        two = slice_of("vllm", "s2", slice_endpoint("10.0.0.1", "u1", ready=False, terminating=True))
        assert marked(slices(one, two)) == marked(slices(two, one)) == {"10.0.0.1:8000": ("u1", True)}

    def test_of_two_pods_at_one_address_it_is_the_one_that_stays(self) -> None:
        old = slice_of("vllm", "s1", slice_endpoint("10.0.0.1", "old", ready=False, terminating=True))
        new = slice_of("vllm", "s2", slice_endpoint("10.0.0.1", "new", ready=False))
        assert marked(slices(old, new)) == marked(slices(new, old)) == {"10.0.0.1:8000": ("new", False)}

    @pytest.mark.parametrize(
        ("family", "expected"),
        [("v4_preferred", ["10.0.0.1:8000"]), ("v6_preferred", ["[fd00::1]:8000"]), ("v6_only", ["[fd00::1]:8000"])],
    )
    def test_a_pod_in_slices_of_both_families_is_one_server(self, family: str, expected: list[str]) -> None:
        four = slice_of("vllm", "s4", slice_endpoint("10.0.0.1", "u1"))
        six = slice_of("vllm", "s6", slice_endpoint("fd00::1", "u1"), kind="IPv6")
        assert addresses(slices(four, six, family=family)) == expected

    def test_only_the_first_of_several_addresses_counts_for_they_are_alike(self) -> None:
        item = slice_of("vllm", "s", {"addresses": ["10.0.0.1", "10.0.0.9"], "conditions": {"ready": True}})
        assert addresses(slices(item)) == ["10.0.0.1:8000"]

    def test_a_service_with_several_ports_needs_one_named(self) -> None:
        ports = [
            {"name": "http", "port": 8000},
            {"name": "probe", "port": 9},
            {"name": "u", "port": 5, "protocol": "UDP"},
        ]
        item = slice_of("vllm", "s", slice_endpoint("10.0.0.1", "u1"), ports=ports)
        unnamed = slices(item)
        assert unnamed.endpoints == ()
        assert unnamed.problems == (
            "slice s: the service has several ports (there: http 8000, probe 9); name one as `port`",
        )
        assert addresses(slices(item, ports=("http",))) == ["10.0.0.1:8000"]
        assert addresses(slices(item, ports=(8001,))) == ["10.0.0.1:8001"]
        assert slices(item, ports=("web",)).problems == (
            'slice s: the service has no port named "web" (there: http 8000, probe 9)',
        )

    def test_a_service_without_endpoints_has_a_slice_with_nulls(self) -> None:
        item = slice_of("vllm", "s")
        assert slices({**item, "endpoints": None, "ports": None}) == Members(())

    def test_slices_of_dns_names_are_told_and_left_out(self) -> None:
        found = slices(slice_of("vllm", "s", slice_endpoint("vllm.test"), kind="FQDN"))
        assert found == Members((), ("slice s: its addresses are DNS names, which are not followed",))


def test_an_inference_pool_says_which_pods_and_which_ports() -> None:
    found = InferencePool.of(inference_pool("p", {"b": "2", "a": "1"}, 8000, 8001))
    assert found == InferencePool("p", "a=1,b=2", (8000, 8001))


FIELDS = [
    "metadata",
    "spec",
    "status",
    "items",
    "endpoints",
    "addresses",
    "conditions",
    "ports",
    "containers",
    "podIPs",
    "podIP",
    "ip",
    "name",
    "uid",
    "port",
    "annotations",
    "targetRef",
    "selector",
    "matchLabels",
    "targetPorts",
    "number",
    "addressType",
]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status", "endpoints", "ports", "addressType"]), ODD))
def test_an_odd_object_is_read_as_if_the_odd_fields_were_not_there(item: dict[str, Any]) -> None:
    of_pods([Pod.of(item)], (8000, "http"), "v4_preferred")
    of_slices([Slice.of(item)], (), "v6_only")
    InferencePool.of(item)
