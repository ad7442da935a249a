"""Does each request reach a server that serves its model, and what does the client of an unknown one get?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import envoy_config
from tests.support.envoy_stack import DESTINATION, Stack, eventually

SERVED = (("phi", "phi-4-mm"), ("llama",), ("llama", "sql-adapter"))


def _ask_often(config: Any) -> None:
    envoy_config.settings_of(config)["models"] = {"interval_s": 0.5}


def chat(model: str) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()


async def serve(stack: Stack, *served: tuple[str, ...]) -> None:
    """Have the servers serve these, and the service know it."""
    for upstream, models in zip(stack.upstreams, served, strict=True):
        upstream.models = models

    async def known() -> bool:
        endpoints = (await stack.status())["pools"]["vllm"]["endpoints"]
        return [each["models"] for each in endpoints] == [sorted(models) for models in served]

    await eventually(known, "the service knows what each server serves")


@pytest.mark.parametrize("shape", envoy_config.SHAPES)
async def test_each_request_reaches_a_server_of_its_model_and_an_unknown_one_is_refused(start: Any, shape: str) -> None:
    """case c19: also by its second name, and by an adapter that is loaded on one server"""
    stack: Stack = await start(shape=shape, servers=len(SERVED), change=_ask_often)
    await serve(stack, *SERVED)
    ports = [upstream.port for upstream in stack.upstreams]
    expected = {"phi": {ports[0]}, "phi-4-mm": {ports[0]}, "llama": {*ports[1:]}, "sql-adapter": {ports[2]}}
    for model, servers in expected.items():
        for _ in range(3):
            assert (await stack.request(body=chat(model))).port in servers
    for upstream in stack.upstreams:
        for seen in upstream.seen:
            named = {int(host.rpartition(":")[2]) for host in seen.headers[DESTINATION].split(",")}
            assert named in expected.values(), "the fallbacks serve the model too"

    count = len(stack.seen())
    refusal = await stack.request(body=chat("gpt-9"))
    assert (refusal.status, refusal.headers["content-type"]) == (404, "application/json")
    assert refusal.json() == {
        "error": {
            "message": "The model `gpt-9` does not exist.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }
    assert len(stack.seen()) == count
    assert (await stack.status())["requests"]["rejections"] == {"model_not_found": 1}


async def test_a_model_loaded_a_moment_ago_is_found_and_one_that_nobody_tells_of_is_passed_on(start: Any) -> None:
    """case c19"""

    def seldom(config: Any) -> None:
        envoy_config.settings_of(config)["models"] = {"interval_s": 3}

    stack: Stack = await start(servers=2, change=seldom)
    assert (await stack.request(body=chat("anything"))).status == 200, "no server has told its models"
    await serve(stack, ("a",), ("b",))

    async def old() -> bool:
        endpoints = (await stack.status())["pools"]["vllm"]["endpoints"]
        return all(each["models_age_s"] > 1.1 for each in endpoints)

    await eventually(old, "the lists are older than a second")
    stack.upstreams[1].models = ("b", "new")
    assert (await stack.request(body=chat("new"))).port == stack.upstreams[1].port
