"""Does Envoy do what `extproc check` says of it, where a file is accepted and goes wrong all the same?"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from extproc.config.check import check
from tests.support import envoy_config
from tests.support.envoy_stack import DESTINATION, Stack

pytestmark = pytest.mark.newest_only

FILTER_CONFIG = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
EXT_PROC = "envoy.filters.http.ext_proc"
BUFFER = "envoy.filters.http.buffer"


def _per_route(config: Any, name: str, value: Any) -> None:
    routes = envoy_config.connection_manager(config)["route_config"]["virtual_hosts"][0]["routes"]
    route = next(route for route in routes if route["name"] == "inference")
    route["typed_per_filter_config"] = {name: value}


def _overrides(**fields: Any) -> Any:
    kind = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
    return {"@type": kind, "overrides": fields}


def _known(code: str, shape: str, change: Callable[[Any], None]) -> None:
    """Not while the stack runs: the first check takes seconds, and the service, on the same loop, would seem dead."""
    config = envoy_config.shipped(shape)
    change(config)
    assert [problem.code for problem in check(json.dumps(config), "envoy.yaml")] == [code]


async def _started(start: Any, code: str, shape: str, change: Callable[[Any], None]) -> Stack:
    """A stack with a mistake, which the check must know under its code, and on which one server is to be picked."""
    _known(code, shape, change)
    stack: Stack = await start(shape=shape, servers=2, profile="least-loaded", change=change)
    stack.check_at_end = False  # Envoy objects, and that is what is asked
    stack.only(0)
    await stack.until_waiting_is_known()
    return stack


@pytest.mark.parametrize("shape", ["B", "C"])
async def test_a_header_that_is_forbidden_as_an_error_fails_each_request(start: Any, shape: str) -> None:
    def change(config: Any) -> None:
        rules = {"disallow_all": True, "disallow_is_error": True}
        envoy_config.http_filter(config, "ext_proc")["mutation_rules"] = rules

    stack = await _started(start, "mutation-refused", shape, change)
    assert [(await stack.request()).status for _ in range(3)] == [500] * 3


@pytest.mark.parametrize("shape", ["B", "C"])
async def test_a_header_that_is_forbidden_is_not_written_and_the_pick_still_counts(start: Any, shape: str) -> None:
    def change(config: Any) -> None:
        envoy_config.http_filter(config, "ext_proc")["mutation_rules"] = {
            "disallow_expression": {"regex": "x-gateway-.*"},
            "allow_expression": {"regex": ".*"},
        }
        manager = envoy_config.connection_manager(config)
        manager["http_filters"] = [f for f in manager["http_filters"] if "header_mutation" not in f["name"]]

    stack = await _started(start, "mutation-ignored", shape, change)
    assert {(await stack.request()).port for _ in range(6)} == {stack.upstreams[0].port}
    assert all(DESTINATION not in seen.headers for seen in stack.seen())
    assert await stack.ext_proc_stat("rejected_header_mutations") > 0


async def test_a_route_without_ext_proc_gets_no_picks(start: Any) -> None:
    stack = await _started(start, "route-ext-proc-off", "A", lambda config: _per_route(config, EXT_PROC, FILTER_CONFIG))
    assert {(await stack.request()).port for _ in range(20)} == {u.port for u in stack.upstreams}
    assert await stack.picks() == 0


async def test_a_route_without_buffer_gets_picks_and_does_not_follow_them(start: Any) -> None:
    stack = await _started(start, "route-buffer-off", "A", lambda config: _per_route(config, BUFFER, FILTER_CONFIG))
    assert {(await stack.request()).port for _ in range(20)} == {u.port for u in stack.upstreams}
    assert await stack.picks() == 20


async def test_a_processing_mode_of_a_route_replaces_the_filters_as_a_whole(start: Any) -> None:
    def change(config: Any) -> None:
        envoy_config.settings_of(config)["scheduling"]["profile"] = "cache-aware"
        _per_route(config, EXT_PROC, _overrides(processing_mode={"response_trailer_mode": "SEND"}))

    stack = await _started(start, "route-body-not-sent", "A", change)
    assert (await stack.request()).status == 200
    (decision,) = stack.app.router.decisions
    assert decision.explanation.request is not None
    assert (decision.explanation.request.prompt_tokens, decision.explanation.request.blocks) == (0, 0)


async def test_namespaces_of_a_route_replace_the_filters(start: Any) -> None:
    def change(config: Any) -> None:
        other = {"receiving_namespaces": {"untyped": ["envoy.filters.http.rbac"]}}
        _per_route(config, EXT_PROC, _overrides(metadata_options=other))

    stack = await _started(start, "untyped-namespace-missing", "A", change)
    assert {(await stack.request()).port for _ in range(20)} == {u.port for u in stack.upstreams}
    assert await stack.picks() == 20


async def test_without_immediate_responses_what_the_service_refuses_is_routed(start: Any) -> None:
    """All servers are drained, so the service refuses every request."""

    def change(config: Any) -> None:
        envoy_config.http_filter(config, "ext_proc")["disable_immediate_response"] = True
        for endpoint in envoy_config.cluster(config, "vllm")["load_assignment"]["endpoints"][0]["lb_endpoints"]:
            endpoint["metadata"] = {"filter_metadata": {"extproc": {"drained": True}}}

    _known("immediate-response-off", "A", change)
    stack: Stack = await start(servers=2, change=change, await_ready=False)
    stack.check_at_end = False
    assert (await stack.request()).status == 200
    assert (await stack.status())["requests"]["rejections"] == {"no_endpoints": 1}
