"""The service before simulated servers that serve different models, over real HTTP and gRPC."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from extproc.config.settings import Settings
from extproc.sim.api import ServerOptions
from extproc.sim.server import SimServer
from extproc.sim.spec import INSTANT
from tests.app.test_application import Running, settings, started
from tests.support.ext_proc_client import BUFFERED, DUPLEX, body, destination, headers
from tests.support.metrics_server import MetricsServer
from tests.support.waiting import eventually

SLOWLY = {"interval_s": 600}  # what is known after the first question comes from asking out of turn


@pytest.fixture
async def sims() -> AsyncIterator[list[SimServer]]:
    """One server of `phi` by two names, one of `llama` with an adapter."""
    options = [ServerOptions(("phi", "phi-4-mm")), ServerOptions(("llama",), ("sql",))]
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(SimServer(f"s{n}", INSTANT, options=each)) for n, each in enumerate(options)
        ]


def address(server: SimServer) -> str:
    return f"{server.host}:{server.port}"


async def known(running: Running) -> bool:
    status = await running.status()
    return all(each["models"] for each in status["pools"]["vllm"]["endpoints"])


async def ask(running: Running, model: str, *, shape: str = "whole") -> Any:
    """The reply to one request: where it goes, or the immediate response."""
    text = json.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]}).encode()
    stream = running.client.stream()
    if shape == "whole":
        return await stream.ask(body(text, first_with_mode=BUFFERED))
    await stream.send(headers(DUPLEX))
    return await stream.ask(body(text))


async def post(running: Running, server: SimServer, path: str, document: object) -> int:
    data = io.BytesIO(json.dumps(document).encode())
    async with running.http.post(server.url + path, data=data) as answer:
        return answer.status


async def test_each_name_goes_to_its_server_and_an_unknown_one_is_404(sims: list[SimServer]) -> None:
    """case c19"""
    async with started(settings({"vllm": [address(sim) for sim in sims]})) as running:
        await eventually(lambda: known(running), "all models are known")
        for name, server in (("phi", 0), ("phi-4-mm", 0), ("llama", 1), ("sql", 1)):
            assert destination(await ask(running, name)) == address(sims[server])
        reply = await ask(running, "gpt-9")
        assert reply.immediate_response.status.code == 404
        assert json.loads(reply.immediate_response.body) == {
            "error": {
                "message": "The model `gpt-9` does not exist.",
                "type": "NotFoundError",
                "param": "model",
                "code": 404,
            }
        }
        endpoints = (await running.status())["pools"]["vllm"]["endpoints"]
        assert [each["models"] for each in endpoints] == [["phi", "phi-4-mm"], ["llama", "sql"]]
        assert all(each["models_age_s"] >= 0 and each["last_models_error"] is None for each in endpoints)
        assert 'extproc_rejections_total{reason="model_not_found"} 1.0' in (await running.get("/metrics"))[1]


@pytest.mark.parametrize("shape", ["whole", "duplex"])
async def test_an_adapter_loaded_a_moment_ago_is_not_refused(sims: list[SimServer], shape: str) -> None:
    """The lists are far from due: the request itself has the servers asked again."""
    async with started(settings({"vllm": [address(sim) for sim in sims]}, models=SLOWLY)) as running:
        await eventually(lambda: known(running), "all models are known")
        running.clock.ahead_s += 10
        assert await post(running, sims[0], "/v1/load_lora_adapter", {"lora_name": "new", "lora_path": "/x"}) == 200
        assert destination(await ask(running, "new", shape=shape)) == address(sims[0])
        running.clock.ahead_s += 10
        reply = await ask(running, "newer", shape=shape)
        assert reply.immediate_response.status.code == 404
        assert (await running.status())["requests"]["rejections"] == {"model_not_found": 1}


async def test_a_server_that_comes_back_with_another_model_is_known_at_once(sims: list[SimServer]) -> None:
    async with started(settings({"vllm": [address(sim) for sim in sims]}, models=SLOWLY)) as running:
        await eventually(lambda: known(running), "all models are known")
        await sims[1].stop()
        sims[1].options = ServerOptions(("mistral",))
        await sims[1].start()

        async def found() -> bool:
            shown = (await running.status())["pools"]["vllm"]["endpoints"][1]
            return bool(shown["models"] == ["mistral"])

        await eventually(found, "its new model is known")
        assert destination(await ask(running, "mistral")) == address(sims[1])


async def test_servers_that_do_not_tell_are_all_used(sims: list[SimServer]) -> None:
    async with MetricsServer().serve() as mute, started(settings({"vllm": [mute.address]})) as running:
        await eventually(running.serving, "ready")
        assert destination(await ask(running, "anything")) == mute.address
        [shown] = (await running.status())["pools"]["vllm"]["endpoints"]
        assert shown["models"] is None
        assert "404" in shown["last_models_error"]


async def test_without_asking_the_operators_word_counts(sims: list[SimServer]) -> None:
    endpoints = [
        {"address": address(sims[0]), "model": "phi, other"},
        {"address": address(sims[1]), "model": ["llama"]},
    ]
    pools = {"vllm": {"endpoints": endpoints, "models": {"enabled": False}}}
    async with started(Settings.model_validate(settings({}).model_dump() | {"pools": pools})) as running:
        await eventually(running.serving, "ready")
        for name, server in (("phi", 0), ("other", 0), ("llama", 1)):
            assert destination(await ask(running, name)) == address(sims[server])
        assert destination(await ask(running, "sql")), "the service cannot know: the server is the judge"
