"""A full pool turns the less important requests away, through Envoy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import envoy_config
from tests.support.envoy_stack import Stack, eventually

pytestmark = pytest.mark.newest_only

HEADER = "x-request-priority"
JSON = "application/json"


def _rules(config: Any) -> None:
    envoy_config.settings_of(config)["scheduling"] |= {
        "shed": [{"waiting": 4, "priority": 1}],
        "priority_header": HEADER,
    }


def _send_header(config: Any) -> None:
    """Shape A sends the headers that are named only: the cure that `extproc check` gives."""
    _rules(config)
    for http_filter in envoy_config.connection_manager(config)["http_filters"]:
        if http_filter["name"] == "envoy.filters.http.ext_proc":
            http_filter["typed_config"]["request_attributes"].append(f"request.headers['{HEADER}']")


@pytest.mark.parametrize(("shape", "change"), [("A", _send_header), ("B", _rules), ("C", _rules)])
async def test_a_full_pool_answers_429_with_retry_after_to_the_less_important(
    start: Any, shape: str, change: Any
) -> None:
    """And Envoy neither repeats it, nor puts its own words in place of ours, nor troubles a server with it."""
    stack: Stack = await start(shape=shape, servers=2, change=change)
    for upstream in stack.upstreams:
        upstream.waiting = 4

    async def known() -> bool:
        [pool] = (await stack.status())["pools"].values()
        return all((each["sample"] or {}).get("waiting") == 4 for each in pool["endpoints"])

    await eventually(known, "the service knows what the servers show")
    for sent in ({HEADER: "1"}, {}):
        body = b'{"model": "m", "prompt": "hi"}' if sent else b'{"model": "m", "prompt": "hi", "priority": 1}'
        answer = await stack.request(headers={"content-type": JSON} | sent, body=body)
        assert answer.status == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 30
        assert answer.headers["content-type"] == JSON
        error = answer.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("rate_limit_error", None, "rate_limit_exceeded")
        assert "busy" in error["message"], "the service's own words"
    assert [seen for upstream in stack.upstreams for seen in upstream.seen] == []
    assert (await stack.request(headers={"content-type": JSON})).status == 200
    requests = (await stack.status())["requests"]
    assert requests["rejections"] == {"overloaded": 2}, "each was asked about once"
    assert requests["picks"] == {"vllm": 1}

    stack.upstreams[0].waiting = 3
    await eventually(lambda: _let_in(stack), "one server with room is room enough")


async def _let_in(stack: Stack) -> bool:
    return (await stack.request(headers={"content-type": JSON, HEADER: "1"})).status == 200
