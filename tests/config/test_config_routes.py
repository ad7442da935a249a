"""Does the check know which route a call takes, and what the layers of per-route configuration make of it there?"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from extproc.config import load, wire
from extproc.config.calls import CALLS, calls_by_route
from extproc.config.check import check
from tests.support import envoy_config
from tests.support.envoy_docs import yaml_under

CHAT = "/v1/chat/completions"
EXT_PROC = "envoy.filters.http.ext_proc"
BUFFER = "envoy.filters.http.buffer"
TYPE = "type.googleapis.com/envoy."
OFF: dict[str, Any] = {"@type": f"{TYPE}config.route.v3.FilterConfig", "disabled": True}
Json = dict[str, Any]


def found(config: Json) -> list[tuple[str, str]]:
    """Code and message of each problem of a configuration."""
    return [(problem.code, problem.message) for problem in check(json.dumps(config, indent=1), "envoy.yaml")]


def override(**fields: Any) -> Json:
    return {"@type": f"{TYPE}extensions.filters.http.ext_proc.v3.ExtProcPerRoute", "overrides": fields}


def names_pool(pool: str) -> Json:
    return override(grpc_initial_metadata=[{"key": "x-extproc-pool", "value": pool}])


def virtual_host(config: Json) -> Json:
    host: Json = envoy_config.connection_manager(config)["route_config"]["virtual_hosts"][0]
    return host


def main_route(config: Json) -> Json:
    route: Json = next(r for r in virtual_host(config)["routes"] if r["name"] == "inference")
    return route


def add_cluster(config: Json, name: str, *, half: bool = True) -> None:
    """A copy of the pool with servers of its own, or (not `half`) with the same."""
    first = envoy_config.cluster(config, "vllm")
    second = copy.deepcopy(first)
    second["name"] = second["load_assignment"]["cluster_name"] = name
    config["static_resources"]["clusters"].append(second)
    if half:
        for cluster, part in ((first, slice(0, 2)), (second, slice(2, 4))):
            group = cluster["load_assignment"]["endpoints"][0]
            group["lb_endpoints"] = group["lb_endpoints"][part]
    envoy_config.settings_of(config)["default_pool"] = "vllm"
    main_route(config)["route"]["retry_policy"] = {**virtual_host(config)["retry_policy"], "num_retries": 3}


# Which route a call takes.


def calls(*routes: Json) -> list[tuple[str, ...]]:
    cls = wire.message_class("envoy.config.route.v3", "Route")
    return calls_by_route([cls.from_dict(route) for route in routes])


REST: Json = {"match": {"prefix": "/"}}


@pytest.mark.parametrize(
    "match",
    [
        {"prefix": "/v1/chat"},
        {"path_separated_prefix": "/v1/chat"},
        {"path": CHAT},
        {"path": CHAT.upper(), "case_sensitive": False},
        {"safe_regex": {"regex": "/v1/chat/.*"}},
        {"prefix": "/v1/chat", "headers": [{"name": ":method", "string_match": {"exact": "POST"}}]},
    ],
)
def test_a_call_takes_the_first_route_that_matches(match: Json) -> None:
    assert calls({"match": match}, REST) == [(CHAT,), tuple(c for c in CALLS if c != CHAT)]


@pytest.mark.parametrize(
    "match",
    [
        {"path_separated_prefix": "/v1/realtime"},
        {"path_separated_prefix": "/v1/chat/comp"},
        {"path": "/v1/chat"},
        {"path": CHAT.upper()},
        {"safe_regex": {"regex": "/v1/chat"}},
        {"safe_regex": {"regex": "(?P<re2>.*)\\z("}},
        {"prefix": "/", "headers": [{"name": "upgrade", "string_match": {"exact": "websocket"}}]},
        {"prefix": "/", "headers": [{"name": ":method", "string_match": {"exact": "GET"}}]},
        {"prefix": "/", "headers": [{"name": ":method", "string_match": {"exact": "POST"}, "invert_match": True}]},
        {"prefix": "/", "query_parameters": [{"name": "debug", "present_match": True}]},
        {"prefix": "/", "runtime_fraction": {"default_value": {"numerator": 5}}},
        {"prefix": "/", "grpc": {}},
    ],
)
def test_a_route_for_something_else_takes_no_call(match: Json) -> None:
    assert calls({"match": match}, REST) == [(), CALLS]


def test_a_route_that_cuts_a_prefix_off_takes_the_calls_under_it() -> None:
    under = {"match": {"prefix": "/llm/"}, "route": {"cluster": "vllm", "prefix_rewrite": "/"}}
    assert calls(under, {"match": {"prefix": "/docs"}}) == [tuple(f"/llm{call}" for call in CALLS), ()]


# What is off there.


def test_routes_that_take_no_call_may_have_the_filters_off() -> None:
    config = envoy_config.shipped("A")
    off = {"typed_per_filter_config": {EXT_PROC: OFF, BUFFER: OFF}, "route": {"cluster": "vllm", "timeout": "0s"}}
    for path in ("/health", "/docs", "/v1/models", "/metrics"):
        virtual_host(config)["routes"].insert(0, {"match": {"path_separated_prefix": path}, **off})
    assert found(config) == []


def test_a_route_to_a_cluster_that_is_no_pool_may_have_the_filters_off() -> None:
    config = envoy_config.shipped("A")
    other = copy.deepcopy(envoy_config.cluster(config, "extproc")) | {"name": "other"}
    config["static_resources"]["clusters"].append(other)
    route = {"match": {"path": CHAT}, "route": {"cluster": "other"}, "typed_per_filter_config": {EXT_PROC: OFF}}
    virtual_host(config)["routes"].insert(0, route)
    assert found(config) == []


def test_what_the_route_says_counts_more_than_what_the_virtual_host_says() -> None:
    config = envoy_config.shipped("A")
    virtual_host(config)["typed_per_filter_config"] = {EXT_PROC: OFF}
    assert [code for code, _ in found(config)] == ["route-ext-proc-off"]
    main_route(config)["typed_per_filter_config"] = {EXT_PROC: names_pool("vllm")}
    assert found(config) == []


def test_a_filter_that_is_off_by_default_may_be_switched_on_by_the_route() -> None:
    config = envoy_config.shipped("A")
    next(f for f in envoy_config.connection_manager(config)["http_filters"] if f["name"] == EXT_PROC)["disabled"] = True
    assert [code for code, _ in found(config)] == ["route-ext-proc-off"]
    main_route(config)["typed_per_filter_config"] = {EXT_PROC: names_pool("vllm")}
    assert found(config) == []


def test_where_ext_proc_is_off_nothing_is_said_of_the_buffer_or_of_the_pool() -> None:
    config = envoy_config.shipped("A")
    add_cluster(config, "embeddings")
    main_route(config)["route"]["cluster"] = "embeddings"
    main_route(config)["typed_per_filter_config"] = {EXT_PROC: OFF, BUFFER: OFF}
    assert [code for code, _ in found(config)] == ["route-ext-proc-off"]


def test_upgrades_may_be_bypassed_by_the_virtual_host() -> None:
    config = envoy_config.shipped("A")
    host = virtual_host(config)
    websocket = copy.deepcopy(next(r for r in host["routes"] if r["name"] == "websocket"))
    host["routes"] = [r for r in host["routes"] if r["name"] != "websocket"]
    bypass = {"name": "ws", "domains": ["ws.example"], "retry_policy": host["retry_policy"], "routes": [websocket]}
    bypass["typed_per_filter_config"] = websocket.pop("typed_per_filter_config")
    envoy_config.connection_manager(config)["route_config"]["virtual_hosts"].append(bypass)
    assert found(config) == []


# Which pool and profile it names.


def test_two_pools_as_the_manual_shows_them_are_no_mistake() -> None:
    config = envoy_config.shipped("A")
    add_cluster(config, "embeddings")
    settings, routes = yaml_under("envoy.md", "Several pools")
    envoy_config.settings_of(config).update(settings)
    virtual_host(config)["routes"][0:0] = routes
    assert found(config) == []


def test_a_profile_for_a_route_as_the_manual_shows_it_is_no_mistake() -> None:
    config = envoy_config.shipped("A")
    (shown,) = yaml_under("envoy.md", "Another profile for a route")
    main_route(config)["typed_per_filter_config"] = {EXT_PROC: override(**shown["overrides"])}
    assert found(config) == []


def test_a_route_to_another_pool_than_the_default_must_name_it() -> None:
    config = envoy_config.shipped("A")
    add_cluster(config, "embeddings")
    main_route(config)["route"]["cluster"] = "embeddings"
    ((code, message),) = found(config)
    assert code == "route-pool"
    assert message == "leads to pool embeddings and names none, so the service picks from the default pool vllm"


def test_a_route_must_not_name_the_pool_of_other_servers() -> None:
    config = envoy_config.shipped("A")
    add_cluster(config, "embeddings")
    main_route(config)["typed_per_filter_config"] = {EXT_PROC: names_pool("embeddings")}
    assert found(config) == [("route-pool", 'names pool "embeddings", and the route leads to cluster vllm')]


def test_a_second_cluster_of_the_same_servers_needs_no_pool_of_its_own() -> None:
    config = envoy_config.shipped("A")
    add_cluster(config, "slow", half=False)
    main_route(config)["route"]["cluster"] = "slow"
    assert found(config) == []


def test_each_part_of_a_weighted_cluster_names_its_own_pool() -> None:
    config = envoy_config.shipped("A")
    add_cluster(config, "canary")
    parts: list[Json] = [{"name": "vllm", "weight": 9}, {"name": "canary", "weight": 1}]
    del main_route(config)["route"]["cluster"]
    main_route(config)["route"]["weighted_clusters"] = {"clusters": parts}
    assert [code for code, _ in found(config)] == ["route-pool"]
    parts[1]["typed_per_filter_config"] = {EXT_PROC: names_pool("canary")}
    assert found(config) == []


def test_metadata_of_a_route_replaces_that_of_the_filter_key_by_key() -> None:
    config = envoy_config.shipped("A")
    service = envoy_config.http_filter(config, "ext_proc")["grpc_service"]
    service["initial_metadata"] = [{"key": "x-extproc-profile", "value": "fastest"}]
    assert [code for code, _ in found(config)] == ["route-profile"]
    (shown,) = yaml_under("envoy.md", "Another profile for a route")
    main_route(config)["typed_per_filter_config"] = {EXT_PROC: override(**shown["overrides"])}
    assert found(config) == []


def test_a_value_that_envoy_fills_in_is_not_judged() -> None:
    config = envoy_config.shipped("A")
    service = envoy_config.http_filter(config, "ext_proc")["grpc_service"]
    service["initial_metadata"] = [
        {"key": key, "value": "%REQ(x-team)%"} for key in ("x-extproc-pool", "x-extproc-profile")
    ]
    assert found(config) == []


# What the filter may write.


@pytest.mark.parametrize(
    "rules",
    [
        {"disallow_all": True, "allow_expression": {"regex": "x-gateway-.*"}},
        {"disallow_expression": {"regex": "x-gateway"}},  # not the whole name
        {"disallow_is_error": True},
        {"disallow_expression": {"regex": "(?P<re2>.*)\\z("}},
    ],
)
def test_rules_of_mutation_that_let_the_pick_through_are_no_mistake(rules: Json) -> None:
    config = envoy_config.shipped("B")
    envoy_config.http_filter(config, "ext_proc")["mutation_rules"] = rules
    assert found(config) == []


def test_a_forbidden_name_is_forbidden_even_if_it_is_allowed() -> None:
    config = envoy_config.shipped("C")
    anything = {"regex": ".*"}
    rules = {"disallow_expression": anything, "allow_expression": anything}
    envoy_config.http_filter(config, "ext_proc")["mutation_rules"] = rules
    assert [code for code, _ in found(config)] == ["mutation-ignored"]


def test_in_shape_a_no_header_is_written_so_none_can_be_forbidden() -> None:
    config = envoy_config.shipped("A")
    rules = {"disallow_all": True, "disallow_is_error": True}
    envoy_config.http_filter(config, "ext_proc")["mutation_rules"] = rules
    assert found(config) == []


# Names of servers.


@pytest.mark.parametrize(("family", "expected"), [(None, "auto"), ("UNSPECIFIED", "auto"), ("V4_ONLY", "v4_only")])
def test_a_dns_cluster_of_the_newer_kind_makes_a_pool_of_names(family: str | None, expected: str) -> None:
    config = envoy_config.shipped("A")
    pool = envoy_config.cluster(config, "vllm")
    del pool["type"]
    dns = {"@type": f"{TYPE}extensions.clusters.dns.v3.DnsCluster"}
    pool["cluster_type"] = {"name": "envoy.clusters.dns", "typed_config": dns}
    if family is not None:
        dns["dns_lookup_family"] = family
    place = pool["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
    place["address"] = "vllm.example"
    assert found(config) == []
    settings = load(json.dumps(config), "envoy.yaml").settings
    assert settings is not None
    assert settings.pools["vllm"].dns_family == expected


def test_the_family_may_be_said_again_if_it_is_the_same() -> None:
    config = envoy_config.shipped("A")
    envoy_config.cluster(config, "vllm").update(type="STRICT_DNS", dns_lookup_family="V4_ONLY")
    envoy_config.settings_of(config)["pools"]["vllm"] = {"dns_family": "v4_only"}
    assert found(config) == []
