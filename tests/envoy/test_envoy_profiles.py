"""Does the route choose the profile, as docs/envoy.md shows it, and the client only where it may?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import envoy_config
from tests.support.envoy_docs import yaml_under
from tests.support.envoy_stack import Stack, eventually

pytestmark = pytest.mark.newest_only

HEADER = "x-extproc-profile"
JSON = {"content-type": "application/json"}
OF_POOL, OF_ROUTE, OF_CLIENT = "cache-aware", "least-loaded", "session"  # the first is the default
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def _a_profile_for_completions(config: Any) -> None:
    """The page's override, on a route of its own before the one of the pool."""
    (shown,) = yaml_under("envoy.md", "Another profile for a route")
    virtual_host = envoy_config.connection_manager(config)["route_config"]["virtual_hosts"][0]
    inference = next(n for n, route in enumerate(virtual_host["routes"]) if route["name"] == "inference")
    per_route = {"@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute", **shown}
    route = {
        "name": "completions",
        "match": {"path": COMPLETIONS},
        "route": {"cluster": "vllm", "timeout": "0s"},
        "typed_per_filter_config": {"envoy.filters.http.ext_proc": per_route},
    }
    virtual_host["routes"].insert(inference, route)


def _clients_may_choose(config: Any) -> None:
    """In shapes B and C Envoy sends all headers; in shape A the attribute is needed."""
    _a_profile_for_completions(config)
    envoy_config.settings_of(config)["scheduling"]["profile_header"] = HEADER
    processor = envoy_config.http_filter(config, "ext_proc")
    if processor["processing_mode"]["request_header_mode"] == "SKIP":
        processor["request_attributes"].append(f"request.headers['{HEADER}']")


async def _decided(stack: Stack, path: str, wanted: str | None) -> str:
    """The profile that decided on a request, as `/decisions` tells; a pick may be left out there."""

    async def logged() -> list[Any]:
        async with stack.client.get(f"http://{stack.service_admin}/decisions?limit=1000") as response:
            shown: list[Any] = await response.json()
            return shown

    before = len(await logged())

    async def one_more() -> str | None:
        headers = JSON if wanted is None else {**JSON, HEADER: wanted}
        assert (await stack.request(path=path, headers=headers)).status == 200
        now = await logged()
        return now[0]["explanation"]["profile"] if len(now) > before else None

    profile: str = await eventually(one_more, "a decision of the request's is logged")
    return profile


@pytest.mark.parametrize("shape", envoy_config.SHAPES)
@pytest.mark.parametrize(
    ("change", "of_client"),
    [(_a_profile_for_completions, False), (_clients_may_choose, True)],
    ids=["clients have no say", "clients may choose"],
)
async def test_the_route_chooses_the_profile_and_the_client_only_where_it_may(
    start: Any, shape: str, change: Callable[[Any], None], of_client: bool
) -> None:
    stack: Stack = await start(shape=shape, servers=2, change=change)
    assert await _decided(stack, CHAT, None) == OF_POOL
    assert await _decided(stack, COMPLETIONS, None) == OF_ROUTE
    assert await _decided(stack, CHAT, OF_CLIENT) == (OF_CLIENT if of_client else OF_POOL)
    assert await _decided(stack, COMPLETIONS, OF_CLIENT) == (OF_CLIENT if of_client else OF_ROUTE)
    assert await _decided(stack, COMPLETIONS, "fastest") == OF_ROUTE


@pytest.mark.parametrize("shape", envoy_config.SHAPES)
async def test_the_shipped_files_tell_of_the_session_header(start: Any, shape: str) -> None:
    """Where there is no prompt to go by, the default profile goes by it."""
    stack: Stack = await start(shape=shape)
    headers = JSON | {"x-session-id": "a conversation"}
    ports = {(await stack.request(path="/v1/audio/speech", headers=headers)).port for _ in range(8)}
    assert len(ports) == 1
    assert (await stack.status())["pools"]["vllm"]["prompts"]["ways"] == {"session": 8}
