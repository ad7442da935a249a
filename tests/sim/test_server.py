"""A client cannot tell the simulated server from vLLM's API."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import openai
import pytest

from extproc.sim.answering import AnswerOptions
from extproc.sim.api import ServerOptions
from extproc.sim.server import SimServer
from extproc.sim.spec import INSTANT
from tests.sim.conftest import BRISK, eventually

HELLO = {"role": "user", "content": "Say something long. " * 20}


@pytest.fixture
async def server() -> AsyncIterator[SimServer]:
    options = ServerOptions(models=("sim", "alias"), record=True)
    async with SimServer("a", BRISK, options=options) as running:
        yield running


async def post(
    http: aiohttp.ClientSession, server: SimServer, path: str, body: object
) -> tuple[int, dict[str, object]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(
        server.url + path, data=io.BytesIO(data), headers={"content-type": "application/json"}
    ) as response:
        assert response.headers["x-vllm-sim"] == "a"
        return response.status, await response.json()


async def test_the_openai_client_gets_a_chat_answer_and_the_second_time_from_the_cache(server: SimServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answers = [
            await client.chat.completions.create(model="sim", messages=[HELLO], max_tokens=7)  # type: ignore[list-item]
            for _ in range(2)
        ]
        assert [model.id async for model in client.models.list()] == ["sim", "alias"]
    first, second = answers
    assert first.choices[0].message.content == second.choices[0].message.content
    assert first.choices[0].finish_reason == "length"
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.completion_tokens == 7
    assert first.usage.prompt_tokens_details is not None
    assert second.usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == first.usage.prompt_tokens // 16 * 16 > 0


async def test_adapters_are_listed_with_their_parent_and_come_and_go(http: aiohttp.ClientSession) -> None:
    options = ServerOptions(models=("base", "alias"), adapters=("first",))
    async with SimServer("a", BRISK, options=options) as server:

        async def listed() -> dict[str, str | None]:
            async with http.get(f"{server.url}/v1/models") as answer:
                return {each["id"]: each["parent"] for each in (await answer.json())["data"]}

        async def call(path: str, name: object) -> int:
            async with http.post(f"{server.url}/v1/{path}", data=io.BytesIO(json.dumps(name).encode())) as answer:
                return answer.status

        async def served(model: str) -> int:
            return (await post(http, server, "/v1/completions", {"model": model, "prompt": "a", "max_tokens": 1}))[0]

        assert await listed() == {"base": None, "alias": None, "first": "base"}
        assert [await served(model) for model in ("first", "second")] == [200, 404]
        assert await call("load_lora_adapter", {"lora_name": "second", "lora_path": "/x"}) == 200
        assert await call("load_lora_adapter", {"lora_name": "second", "lora_path": "/x"}) == 400
        assert await call("load_lora_adapter", []) == 400
        assert await call("unload_lora_adapter", {"lora_name": "first"}) == 200
        assert await call("unload_lora_adapter", {"lora_name": "first"}) == 404
        assert await listed() == {"base": None, "alias": None, "second": "base"}
        assert [await served(model) for model in ("first", "second")] == [404, 200]


async def test_the_openai_client_gets_a_stream_with_its_usage_at_the_end(server: SimServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(model="sim", messages=[HELLO], max_tokens=9)  # type: ignore[list-item]
        stream = await client.chat.completions.create(
            model="sim",
            messages=[HELLO],  # type: ignore[list-item]
            max_tokens=9,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-2:] == [None, "length"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9


async def test_the_openai_client_gets_completions_of_every_prompt_shape(server: SimServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        shapes: list[tuple[object, int, int]] = [
            ("a text", 1, 2),
            (["a text", "another one"], 2, 5),
            ([1, 2, 3], 1, 3),
            ([[1, 2, 3], [4]], 2, 4),
        ]
        for prompt, choices, tokens in shapes:
            answer = await client.completions.create(model="alias", prompt=prompt, max_tokens=3)  # type: ignore[call-overload]
            assert [c.index for c in answer.choices] == list(range(choices))
            assert answer.usage.prompt_tokens == tokens
            stream = await client.completions.create(model="alias", prompt=prompt, max_tokens=3, stream=True)  # type: ignore[call-overload]
            texts = [""] * choices
            async for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.text
            assert texts == [c.text for c in answer.choices]


async def test_the_header_of_a_stream_is_sent_before_its_first_token(http: aiohttp.ClientSession) -> None:
    slow = replace(BRISK, base_step_s=3600.0)
    async with SimServer("a", slow) as server:
        body = {"model": "sim", "messages": [HELLO], "max_tokens": 2, "stream": True}
        async with http.post(f"{server.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert server.engine.stats.generation_tokens == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_takes_its_request_out_of_the_engine(
    http: aiohttp.ClientSession, server: SimServer, stream: bool
) -> None:
    body = {"model": "sim", "messages": [HELLO], "max_tokens": 20_000, "stream": stream}
    call = asyncio.ensure_future(http.post(f"{server.url}/v1/chat/completions", json=body))
    await eventually(lambda: server.engine.running == 1, "the request runs")
    if stream:
        (await call).close()
    else:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await eventually(lambda: server.engine.running == 0, "the request is gone")
    assert server.engine.stats.finished["abort"] == 1
    await eventually(lambda: server.ledger.aborted == 1, "the request is counted as aborted")
    assert server.ledger.in_flight == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/chat/completions", b"{no json", 400, "Invalid JSON"),
        ("/v1/chat/completions", [1], 400, "valid dictionary"),
        ("/v1/chat/completions", {"model": "sim"}, 400, "messages"),
        ("/v1/completions", {"model": "sim", "prompt": ""}, 400, "prompt"),
        ("/v1/completions", {"model": "sim", "prompt": ["a", 5]}, 400, "prompt"),
        ("/v1/completions", {"model": "sim", "prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        (
            "/v1/completions",
            {"model": "sim", "prompt": "a", "max_tokens": 40_000},
            400,
            "maximum context length is 32768",
        ),
        ("/v1/completions", {"model": "other", "prompt": "a"}, 404, "The model `other` does not exist."),
    ],
)
async def test_errors_have_the_shape_of_vllm(
    http: aiohttp.ClientSession, server: SimServer, path: str, body: object, status: int, message: str
) -> None:
    got_status, answer = await post(http, server, path, body)
    error = answer["error"]
    assert isinstance(error, dict)
    assert (got_status, error["code"]) == (status, status)
    assert message in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert server.engine.waiting + server.engine.running == 0


async def test_the_next_turn_of_a_chat_finds_the_answer_of_the_last(
    http: aiohttp.ClientSession, server: SimServer
) -> None:
    body = {"model": "sim", "messages": [HELLO], "max_tokens": 161}
    _, first = await post(http, server, "/v1/chat/completions", body)
    said = first["choices"][0]["message"]  # type: ignore[index]
    turn = [HELLO, {"role": "assistant", "content": said["content"]}, {"role": "user", "content": "And then?"}]
    _, second = await post(http, server, "/v1/chat/completions", {**body, "messages": turn, "max_tokens": 1})
    prompt_tokens = first["usage"]["prompt_tokens"]  # type: ignore[index]
    # All but the last token of the answer were computed.
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == (prompt_tokens + 160) // 16 * 16  # type: ignore[index]


async def test_a_cache_salt_keeps_equal_prompts_apart(http: aiohttp.ClientSession, server: SimServer) -> None:
    cached = []
    for salt in ("a", "a", "b"):
        body = {"model": "sim", "messages": [HELLO], "max_tokens": 1, "cache_salt": salt}
        _, answer = await post(http, server, "/v1/chat/completions", body)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])  # type: ignore[index]
    assert cached[1] > 0
    assert (cached[0], cached[2]) == (0, 0)


async def test_what_arrived_can_be_compared_byte_for_byte(http: aiohttp.ClientSession, server: SimServer) -> None:
    data = b' {"model":"sim", "prompt":"\\u00e9" ,"max_tokens":1}\n'
    headers = {"content-type": "application/json", "X-Mark": "1", "authorization": "Bearer secret"}
    async with http.post(f"{server.url}/v1/completions?a=1", data=data, headers=headers) as response:
        assert response.status == 200
    async with http.get(f"{server.url}/sim/requests") as response:
        told = await response.json()
    assert (told["seen"], told["answered"], told["aborted"], told["in_flight"]) == (1, 1, 0, 0)
    (seen,) = told["requests"]
    assert (seen["method"], seen["path"]) == ("POST", "/v1/completions?a=1")
    assert (seen["body_bytes"], seen["body_sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert ["X-Mark", "1"] in seen["headers"]
    assert "secret" not in json.dumps(told)


async def test_a_body_of_many_megabytes_is_accepted(http: aiohttp.ClientSession) -> None:
    async with SimServer("a", replace(INSTANT, max_num_batched_tokens=900_000)) as server:
        status, answer = await post(http, server, "/v1/completions", {"prompt": "x" * 3_000_000, "max_tokens": 1})
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == 750_000  # type: ignore[index]


async def test_a_full_queue_refuses_with_503(http: aiohttp.ClientSession) -> None:
    spec = replace(BRISK, max_num_seqs=1)
    async with SimServer("a", spec, options=ServerOptions(max_queued_requests=1)) as server:
        long = {"prompt": "x", "max_tokens": 20_000}
        calls = []
        for running, waiting in ((1, 0), (1, 1)):
            calls.append(asyncio.ensure_future(http.post(f"{server.url}/v1/completions", json=long)))
            await eventually(
                lambda r=running, w=waiting: (server.engine.running, server.engine.waiting) == (r, w),  # type: ignore[misc]
                "the request is in",
            )
        status, answer = await post(http, server, "/v1/completions", long)
        assert status == 503
        assert "queue is full" in answer["error"]["message"]  # type: ignore[index]
        async with http.get(f"{server.url}/metrics") as response:
            assert 'reason="max_num_queued_reqs"} 1.0' in await response.text()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


async def test_answers_can_end_by_themselves(http: aiohttp.ClientSession) -> None:
    options = ServerOptions(answers=AnswerOptions(mean_tokens=20))
    async with SimServer("a", BRISK, options=options) as server:
        lengths, reasons = [], set()
        for n in range(40):
            _, answer = await post(http, server, "/v1/completions", {"prompt": f"{n:04}" * 20, "max_tokens": 1000})
            lengths.append(answer["usage"]["completion_tokens"])  # type: ignore[index]
            reasons.add(answer["choices"][0]["finish_reason"])  # type: ignore[index]
        assert reasons == {"stop"}
        assert len(set(lengths)) > 10
        _, answer = await post(http, server, "/v1/completions", {"prompt": "a", "max_tokens": 500, "ignore_eos": True})
        assert answer["usage"]["completion_tokens"] == 500  # type: ignore[index]


async def test_n_gives_as_many_choices(http: aiohttp.ClientSession, server: SimServer) -> None:
    _, answer = await post(http, server, "/v1/completions", {"model": "sim", "prompt": "a", "max_tokens": 2, "n": 3})
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]  # type: ignore[index,attr-defined]
    assert answer["usage"]["completion_tokens"] == 6  # type: ignore[index]


async def test_the_other_paths_answer_as_vllm_does(http: aiohttp.ClientSession, server: SimServer) -> None:
    expected = {"/health": 200, "/version": 200, "/v1/models": 200, "/load": 200, "/nothing": 404}
    for path, status in expected.items():
        async with http.get(server.url + path) as response:
            assert (path, response.status) == (path, status)
            assert response.headers["x-vllm-sim"] == "a"
    async with http.get(f"{server.url}/v1/completions") as response:
        assert response.status == 405
    async with http.options(f"{server.url}/v1/chat/completions") as response:
        assert response.status == 200
    _, tokens = await post(http, server, "/tokenize", {"prompt": "x" * 40})
    assert tokens["count"] == 10
    assert len(tokens["tokens"]) == 10  # type: ignore[arg-type]


async def test_a_reset_of_the_prefix_cache_is_seen_by_the_next_request(
    http: aiohttp.ClientSession, server: SimServer
) -> None:
    cached = []
    for reset in (False, False, True):
        if reset:
            async with http.post(f"{server.url}/reset_prefix_cache") as response:
                assert response.status == 200
        _, answer = await post(http, server, "/v1/chat/completions", {"messages": [HELLO], "max_tokens": 1})
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])  # type: ignore[index]
    assert cached[1] > 0
    assert cached[2] == 0


async def test_several_servers_on_one_loop_know_nothing_of_each_other(http: aiohttp.ClientSession) -> None:
    async with SimServer("a", BRISK) as one, SimServer("b", BRISK) as other:
        await post(http, one, "/v1/chat/completions", {"messages": [HELLO], "max_tokens": 1})
        assert (one.ledger.seen, other.ledger.seen) == (1, 0)
        assert other.engine.stats.prompt_tokens == 0


async def test_a_second_server_on_the_same_port_is_refused() -> None:
    async with SimServer("a", BRISK) as one:
        with pytest.raises(OSError, match="in use"):
            await SimServer("b", BRISK, port=one.port).start()


@pytest.mark.parametrize("interval", [1, 3, 100])
async def test_a_stream_interval_changes_the_chunks_and_not_the_text(
    http: aiohttp.ClientSession, interval: int
) -> None:
    options = ServerOptions(answers=AnswerOptions(stream_interval=interval))
    body = {"messages": [HELLO], "max_tokens": 8}
    async with SimServer("a", BRISK, options=options) as server:
        _, whole = await post(http, server, "/v1/chat/completions", body)
        data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        async with http.post(f"{server.url}/v1/chat/completions", data=data) as response:
            events = [line[6:] for line in (await response.text()).split("\n\n") if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    texts = [chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk["choices"]][1:]
    assert "".join(texts) == whole["choices"][0]["message"]["content"]  # type: ignore[index]
    assert [len(text) // 4 for text in texts] == {1: [1] * 8, 3: [1, 3, 3, 1], 100: [1, 7]}[interval]
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 8


async def test_render_is_refused_unless_it_is_switched_on(http: aiohttp.ClientSession, server: SimServer) -> None:
    body = {"model": "sim", "messages": [HELLO]}
    status, _ = await post(http, server, "/v1/chat/completions/render", body)
    assert status == 403
    async with SimServer("a", BRISK, options=ServerOptions(render=True)) as helpful:
        status, answer = await post(http, helpful, "/v1/chat/completions/render", body)
        _, whole = await post(http, helpful, "/v1/chat/completions", {**body, "max_tokens": 1})
    assert status == 200
    assert len(answer["token_ids"]) == whole["usage"]["prompt_tokens"]  # type: ignore[index,arg-type]
