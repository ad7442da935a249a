"""Does the route choose the pool, as docs/envoy.md shows it?"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest

from tests.support import envoy_config
from tests.support.envoy_docs import yaml_under
from tests.support.envoy_stack import DESTINATION, Stack, eventually

PATHS = {"vllm": "/v1/chat/completions", "embeddings": "/v1/embeddings"}


def _two_pools(config: Any) -> None:
    """The page's settings and route; the second half of the servers becomes the second pool."""
    settings, routes = yaml_under("envoy.md", "Several pools")
    own = envoy_config.settings_of(config)
    own["default_pool"] = settings["default_pool"]
    own["pools"] |= settings["pools"]
    virtual_host = envoy_config.connection_manager(config)["route_config"]["virtual_hosts"][0]
    inference = next(n for n, route in enumerate(virtual_host["routes"]) if route["name"] == "inference")
    virtual_host["routes"][inference:inference] = routes
    first = envoy_config.cluster(config, "vllm")
    second = copy.deepcopy(first)
    second["name"] = second["load_assignment"]["cluster_name"] = "embeddings"
    config["static_resources"]["clusters"].append(second)
    for cluster, half in ((first, slice(0, 2)), (second, slice(2, 4))):
        group = cluster["load_assignment"]["endpoints"][0]
        group["lb_endpoints"] = group["lb_endpoints"][half]


@pytest.mark.parametrize("shape", envoy_config.SHAPES)
async def test_the_route_chooses_the_pool_and_the_pick_the_server_in_it(start: Any, shape: str) -> None:
    """Both pools by turns; which server of each is the least loaded changes in between."""
    stack: Stack = await start(shape=shape, servers=4, profile="least-loaded", change=_two_pools)
    pools = {"vllm": stack.upstreams[:2], "embeddings": stack.upstreams[2:]}
    sent: Counter[str] = Counter()
    for favourite in (0, 1):
        for members in pools.values():
            members[favourite].waiting, members[1 - favourite].waiting = 0, 9

        async def known() -> bool:
            shown = {u.address: u.waiting for u in stack.upstreams}
            status = await stack.status()
            endpoints = [e for pool in status["pools"].values() for e in pool["endpoints"]]
            return {e["address"]: (e["sample"] or {}).get("waiting") for e in endpoints} == shown

        await eventually(known, "the service knows what the servers show")
        for _ in range(3):
            for pool, path in PATHS.items():
                assert (await stack.request(path=path)).port == pools[pool][favourite].port
                sent[pool] += 1
    status = await stack.status()
    assert status["requests"]["picks"] == dict(sent) == {"vllm": 6, "embeddings": 6}
    for pool, members in pools.items():
        addresses = {u.address for u in members}
        named = [seen.headers[DESTINATION].split(",") for u in members for seen in u.seen]
        assert all(set(hosts) <= addresses for hosts in named), f"a pick for {pool} names its servers alone"

    async def told() -> bool:
        return await stack.outcomes() == {"ok": 12}

    await eventually(told, "the access log told how all ended")
    assert (await stack.status())["requests"]["served_elsewhere"] == 0


async def test_a_client_cannot_choose_the_pool(start: Any) -> None:
    stack: Stack = await start(servers=4, change=_two_pools)
    ports = {u.port for u in stack.upstreams[:2]}
    for _ in range(4):
        answer = await stack.request(headers={"content-type": "application/json", "x-extproc-pool": "embeddings"})
        assert answer.port in ports
    assert (await stack.status())["requests"]["picks"] == {"vllm": 4}
