"""The bytes that the routing benchmark sends have the tokens and equal beginnings that the workload says."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any

import aiohttp
import pytest

from bench.routing.requests import FLEET, MODEL, SPEC, ChatRequest, requests, warm_up
from extproc.sim.server import SimServer
from extproc.sim.spec import INSTANT
from extproc.sim.text import count_tokens, render_chat
from extproc.sim.workloads import WORKLOADS, draw


def prompt(request: ChatRequest) -> bytes:
    return render_chat(json.loads(request.body))


@pytest.mark.parametrize("workload", sorted(WORKLOADS))
def test_prompts_have_the_tokens_of_the_workload_and_a_few_for_the_heads_of_messages(workload: str) -> None:
    seconds = 4
    sent = requests(workload, 1, seconds)
    arrivals = draw(workload, 1, FLEET, seconds)
    assert len(sent) == len(arrivals) > 0
    for request, arrival in zip(sent, arrivals, strict=True):
        heads = count_tokens(prompt(request)) - arrival.prompt_tokens
        assert 2 + 4 <= heads <= 4 * (len(arrival.spans) + 1)
        assert request.answer_tokens == arrival.answer_tokens
        assert request.at_s == arrival.at_s
        assert arrival.session in (None, request.session)


@pytest.mark.parametrize("workload", ["W1", "W5"])
def test_a_request_outside_conversations_is_a_session_of_its_own(workload: str) -> None:
    sent = requests(workload, 1, 5)
    assert len({request.session for request in sent}) == len(sent)


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert requests("W2", 1, 5) == requests("W2", 1, 5) != requests("W2", 2, 5)


@pytest.mark.parametrize(("workload", "shared"), [("W3", 4000), ("W6", 4000), ("W1", 6000)])
def test_siblings_share_their_first_text_and_no_more(workload: str, shared: int) -> None:
    groups: dict[str, list[bytes]] = defaultdict(list)
    for request in requests(workload, 1, 8):
        groups[json.loads(request.body)["messages"][0]["content"]].append(prompt(request))
    pairs = [pair for group in groups.values() for pair in itertools.pairwise(group)]
    assert pairs
    for one, other in pairs:
        same = next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        assert shared <= same / 4 < shared + 12  # the two heads are 5 tokens; a first word may be the same by chance


def test_nothing_of_the_warm_up_is_shared() -> None:
    beginnings = {prompt(request)[:64] for request in (*warm_up(32), *requests("W5", 1, 5))}
    assert len(beginnings) == 32 + len(requests("W5", 1, 5))


async def test_the_next_turn_repeats_what_the_server_answered() -> None:
    """Otherwise the servers' caches would not hold the answers, and no router could be credited for finding them."""
    turns: dict[str, list[ChatRequest]] = defaultdict(list)
    for request in requests("W9", 1, 10):
        turns[request.session].append(request)
    chat = max(turns.values(), key=len)[:3]
    assert len(chat) == 3
    answers, cached = [], []
    async with SimServer("a", INSTANT) as server, aiohttp.ClientSession() as http:
        for request in chat:
            body: dict[str, Any] = json.loads(request.body)
            del body["stream"], body["stream_options"]
            async with http.post(f"{server.url}/v1/chat/completions", data=json.dumps(body)) as response:
                answer = await response.json()
            answers.append(answer["choices"][0]["message"]["content"])
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    for number in (1, 2):
        said = [m["content"] for m in json.loads(chat[number].body)["messages"] if m["role"] == "assistant"]
        assert said[-1] == answers[number - 1]
        # All of the last turn but its last token and what does not fill a block.
        before = count_tokens(prompt(chat[number - 1])) + chat[number - 1].answer_tokens
        assert before - 1 - SPEC.block_size_tokens < cached[number] <= before


def test_the_answers_in_advance_are_those_of_the_model_that_bodies_name() -> None:
    assert {json.loads(request.body)["model"] for request in requests("W2", 1, 3)} == {MODEL}
