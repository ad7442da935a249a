"""The open loop sends on time whatever is answered, and tells whole answers from broken ones."""

from __future__ import annotations

import dataclasses

import pytest

from bench.routing.client import Outcome, replay
from bench.routing.requests import ChatRequest, warm_up
from bench.routing.results import Times, percentile
from extproc.sim.answering import AnswerOptions
from extproc.sim.api import ServerOptions
from extproc.sim.faults import Faults
from extproc.sim.server import SimServer
from extproc.sim.spec import INSTANT, EngineSpec

OPTIONS = ServerOptions(answers=AnswerOptions(stream_interval=1_000_000), record=True)
# 200 tokens of prompt take 0.2 s, then 40 ms a token; one request at a time.
SLOW = EngineSpec(base_step_s=0.04, per_prefill_token_s=0.001, per_decode_seq_s=1e-6, max_num_seqs=1)


async def send(
    server: SimServer, requests: list[ChatRequest], factor: float = 1.0, patience_s: float = 20.0
) -> list[Outcome]:
    return await replay(server.port, requests, factor, patience_s)


async def test_whole_answers_are_counted_with_their_tokens() -> None:
    async with SimServer("a", INSTANT, options=OPTIONS) as server:
        outcomes = await send(server, warm_up(6))
    assert [(each.error, each.answer_tokens) for each in outcomes] == [(None, 4)] * 6
    assert all(each.ttft_s is not None and 0 < each.ttft_s <= each.ended_at_s for each in outcomes)


async def test_requests_do_not_wait_for_each_other_and_times_count_from_when_they_were_due() -> None:
    """Six requests in 100 ms queue at a server that needs 0.36 s for each: the last waits for five before it."""
    async with SimServer("a", SLOW, options=OPTIONS) as server:
        outcomes = await send(server, warm_up(6))
    ttfts = [each.ttft_s for each in outcomes if each.ttft_s is not None]
    assert ttfts == sorted(ttfts)
    assert ttfts[-1] > 5 * 0.36
    assert outcomes[0].ended_at_s - ttfts[0] > 2 * 0.04  # the first token is told before the rest is there


async def test_stretched_times_are_told_unstretched() -> None:
    async with SimServer("a", SLOW, options=OPTIONS, faults=Faults(slow_factor=2.0)) as server:
        (slow,) = await send(server, warm_up(1), factor=2.0)
    assert slow.ttft_s is not None
    assert 0.2 < slow.ttft_s < 0.4  # really 0.48 s


async def test_the_session_id_is_sent_with_each_request() -> None:
    one, other = warm_up(2)
    async with SimServer("a", INSTANT, options=OPTIONS) as server:
        await send(server, [one, dataclasses.replace(other, session="chat-7")])
    sessions = [dict(seen.headers)["x-session-id"] for seen in server.ledger.requests]
    assert sessions == [one.session, "chat-7"]


async def test_what_is_open_when_patience_ends_is_an_error_that_waited_so_long() -> None:
    async with SimServer("a", INSTANT, options=OPTIONS, faults=Faults(hang_ratio=1.0)) as server:
        (outcome,) = await send(server, warm_up(1), patience_s=0.3)
    assert outcome.unfinished
    assert outcome.error == "unfinished"
    assert outcome.ttft_s is not None
    assert outcome.ttft_s >= 0.3


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        (Faults(error_status=503), "status 503"),
        (Faults(reset_ratio=1.0), "Server"),
        (Faults(reset_after_tokens=1), "Payload"),
    ],
)
async def test_a_refused_a_reset_and_a_cut_answer_are_errors(faults: Faults, words: str) -> None:
    async with SimServer("a", INSTANT, options=ServerOptions(), faults=faults) as server:
        (outcome,) = await send(server, warm_up(1))
    assert outcome.error is not None
    assert words in outcome.error
    assert not outcome.unfinished


def outcome(ttft_s: float | None, error: str | None = None, ended_at_s: float = 10.0, tokens: int = 5) -> Outcome:
    return Outcome(ttft_s, tokens, ended_at_s, 0.001, error)


def test_times_are_of_those_that_got_a_first_token_and_errors_are_counted() -> None:
    times = Times.of([outcome(0.1), outcome(0.3), outcome(None, "status 503", tokens=0)], first_at_s=0.0)
    assert times.mean_s == pytest.approx(0.2)
    assert (times.p50_s, times.p90_s) == (0.1, 0.3)
    assert (times.errors, times.unfinished) == (1, 0)
    assert times.output_tok_s == 1.0


def test_a_cell_without_any_answer_is_a_failure_that_says_why() -> None:
    with pytest.raises(ValueError, match="none of 2 requests got a first token: status 503"):
        Times.of([outcome(None, "status 503")] * 2, first_at_s=0.0)


def test_a_percentile_is_a_value_that_was_seen() -> None:
    values = [float(n) for n in range(1, 11)]
    assert [percentile(values, ratio) for ratio in (0.0, 0.5, 0.9, 0.99, 1.0)] == [1, 5, 9, 10, 10]
