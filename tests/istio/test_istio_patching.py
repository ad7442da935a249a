"""Is the model of EnvoyFilter's semantics, on which the other tests of this folder stand, Istio's?

The expectations are those of Istio's reference (EnvoyFilter) and of its analysis message IST0151.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.istio.istiod import http_filters, listener
from tests.istio.patching import MANAGER, Generated, Proxy, UnsupportedError, in_order, merge, patched

Json = dict[str, Any]

GATEWAY = Proxy("GATEWAY", "istio-system", {"istio": "ingressgateway"})


def envoy_filter(name: str, *patches: Json, **spec: Any) -> Json:
    meta = {"name": name, "namespace": spec.pop("namespace", "istio-system")}
    if "created" in spec:
        meta["creationTimestamp"] = spec.pop("created")
    return {"metadata": meta, "spec": {**spec, "configPatches": list(patches)}}


def http_patch(operation: str, value: str, at: str | None = None, context: str = "GATEWAY") -> Json:
    chain: Json = {"filter": {"name": MANAGER}}
    if at is not None:
        chain["filter"]["subFilter"] = {"name": at}
    match = {"context": context, "listener": {"filterChain": chain}}
    return {"applyTo": "HTTP_FILTER", "match": match, "patch": {"operation": operation, "value": {"name": value}}}


def generated() -> Generated:
    routes: list[Json] = [
        {"name": "http.8080", "virtual_hosts": [{"name": "*:80", "routes": [{"name": "a"}, {"name": "b"}]}]}
    ]
    clusters: list[Json] = [{"name": "outbound|8000||vllm.llm.svc.cluster.local"}, {"name": "BlackHoleCluster"}]
    return Generated(
        [listener(8080, "http.8080", direction="gateway", filters=copy.deepcopy(http_filters()))], routes, clusters
    )


def names(made: Generated) -> list[str]:
    (chain,) = made.listeners[0]["filter_chains"]
    return [each["name"] for each in chain["filters"][0]["typed_config"]["http_filters"]]


BEFORE = names(generated())
ROUTER = "envoy.filters.http.router"


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (http_patch("INSERT_BEFORE", "x", ROUTER), [*BEFORE[:-1], "x", ROUTER]),
        (http_patch("INSERT_AFTER", "x", BEFORE[0]), [BEFORE[0], "x", *BEFORE[1:]]),
        (http_patch("INSERT_FIRST", "x"), ["x", *BEFORE]),
        (http_patch("ADD", "x"), [*BEFORE, "x"]),
        (http_patch("INSERT_BEFORE", "x"), ["x", *BEFORE]),
        (http_patch("INSERT_AFTER", "x"), [*BEFORE, "x"]),
        (http_patch("REMOVE", "x", "istio.stats"), [name for name in BEFORE if name != "istio.stats"]),
        (http_patch("REPLACE", "x", "istio.stats"), [name if name != "istio.stats" else "x" for name in BEFORE]),
        # An anchor that is not there, another context: nothing happens, and nothing is said.
        (http_patch("INSERT_BEFORE", "x", "envoy.filters.http.jwt_authn"), BEFORE),
        (http_patch("INSERT_BEFORE", "x", ROUTER, "SIDECAR_INBOUND"), BEFORE),
    ],
)
def test_where_a_filter_comes(patch: Json, expected: list[str]) -> None:
    made, (told,) = patched(generated(), [envoy_filter("one", patch)], GATEWAY)
    assert names(made) == expected
    assert told.applied == (expected != BEFORE)


def test_each_insertion_before_the_router_stands_next_to_it() -> None:
    patches = [http_patch("INSERT_BEFORE", name, ROUTER) for name in ("one", "two", "three")]
    made, _ = patched(generated(), [envoy_filter("all", *patches)], GATEWAY)
    assert names(made)[-4:] == ["one", "two", "three", ROUTER]


def test_the_order_of_envoy_filters() -> None:
    """Priority, then the root namespace, then time of creation, then name."""
    filters = [
        envoy_filter("late", created="2026-02-01", namespace="llm"),
        envoy_filter("early", created="2026-01-01", namespace="llm"),
        envoy_filter("root", created="2026-03-01"),
        envoy_filter("last", created="2025-01-01", priority=10),
        envoy_filter("first", created="2026-04-01", priority=-1, namespace="llm"),
        envoy_filter("elsewhere", namespace="shop"),
        envoy_filter("of others", workloadSelector={"labels": {"istio": "egressgateway"}}),
        envoy_filter("b", created="2026-02-01", namespace="llm"),
    ]
    proxy = Proxy("GATEWAY", "llm", {"istio": "ingressgateway"})
    order = [each["metadata"]["name"] for each in in_order(filters, proxy)]
    assert order == ["first", "root", "early", "b", "late", "last"]


def test_an_anchor_that_a_later_filter_adds_is_not_found() -> None:
    anchored = envoy_filter("ours", http_patch("INSERT_BEFORE", "x", "auth"), created="2026-01-01")
    adding = envoy_filter("auth", http_patch("INSERT_BEFORE", "auth", ROUTER), created="2026-02-01")
    made, _ = patched(generated(), [adding, anchored], GATEWAY)
    assert "x" not in names(made)
    anchored["spec"]["priority"] = 1
    made, _ = patched(generated(), [adding, anchored], GATEWAY)
    assert names(made)[-3:] == ["x", "auth", ROUTER]


def test_a_merge_into_a_filter_merges_what_is_in_its_any() -> None:
    patch: Json = http_patch("MERGE", ROUTER, ROUTER)
    type_of = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    patch["patch"]["value"]["typed_config"] = {"@type": type_of, "upstream_log": [{"name": "x"}]}
    made, _ = patched(generated(), [envoy_filter("one", patch), envoy_filter("two", copy.deepcopy(patch))], GATEWAY)
    router = made.listeners[0]["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][-1]
    assert router["typed_config"] == {"@type": type_of, "upstream_log": [{"name": "x"}, {"name": "x"}]}


def test_a_listener_is_matched_by_its_own_port() -> None:
    def patch(port: int) -> Json:
        match = {"context": "GATEWAY", "listener": {"portNumber": port}}
        value = {"operation": "MERGE", "value": {"per_connection_buffer_limit_bytes": 1}}
        return {"applyTo": "LISTENER", "match": match, "patch": value}

    made, told = patched(generated(), [envoy_filter("one", patch(80), patch(8080))], GATEWAY)
    assert [each.applied for each in told] == [0, 1]
    assert made.listeners[0]["per_connection_buffer_limit_bytes"] == 1


def test_routes_and_clusters_are_matched_by_name() -> None:
    route: Json = {"applyTo": "HTTP_ROUTE", "patch": {"operation": "MERGE", "value": {"x": 1}}}
    route["match"] = {"routeConfiguration": {"vhost": {"route": {"name": "b"}}}}
    cluster: Json = {"applyTo": "CLUSTER", "patch": {"operation": "MERGE", "value": {"x": 1}}}
    cluster["match"] = {"cluster": {"service": "vllm.llm.svc.cluster.local", "portNumber": 8000}}
    made, told = patched(generated(), [envoy_filter("one", route, cluster)], GATEWAY)
    assert made.routes[0]["virtual_hosts"][0]["routes"] == [{"name": "a"}, {"name": "b", "x": 1}]
    assert [each.get("x") for each in made.clusters] == [1, None]
    assert [each.applied for each in told] == [1, 1]
    cluster["match"]["cluster"]["portNumber"] = 8001
    assert patched(generated(), [envoy_filter("one", cluster)], GATEWAY)[1][0].applied == 0


def test_merging_is_protobufs() -> None:
    into: Json = {"a": 1, "list": [1], "message": {"x": 1, "y": 1}, "typed_per_filter_config": {"f": {"x": 1}}}
    into["typed_config"] = {"@type": "t", "x": 1}
    value: Json = {"a": 2, "list": [2], "message": {"y": 2}, "typed_per_filter_config": {"f": {"y": 1}, "g": {}}}
    value["typed_config"] = {"@type": "t", "y": 1}
    merge(into, value)
    assert into == {
        "a": 2,
        "list": [1, 2],
        "message": {"x": 1, "y": 2},
        "typed_per_filter_config": {"f": {"y": 1}, "g": {}},  # entries of a map are replaced whole
        "typed_config": {"@type": "t", "y": 1},  # and so is an Any
    }
    assert value["list"] == [2]


@pytest.mark.parametrize(
    "patch",
    [
        {**http_patch("MERGE_UNKNOWN", "x", ROUTER)},
        {"applyTo": "BOOTSTRAP", "patch": {"operation": "MERGE", "value": {}}},
        {"applyTo": "LISTENER", "patch": {"operation": "ADD", "value": {}}},
        {"applyTo": "CLUSTER", "patch": {"operation": "MERGE", "value": {"transport_socket": {}}}},
        {"applyTo": "CLUSTER", "match": {"proxy": {"proxyVersion": "1.*"}}, "patch": {"operation": "MERGE"}},
    ],
)
def test_what_is_not_modelled_is_an_error(patch: Json) -> None:
    with pytest.raises(UnsupportedError):
        patched(generated(), [envoy_filter("one", patch)], GATEWAY)
