"""How fast a server computes prompts is learned from its TTFT histogram; the servers here are simulated ones."""

from __future__ import annotations

from random import Random

import pytest

from extproc.pool.prefill import DEFAULT_RATE, PRIOR_TOKENS, Prefill, PrefillQueue
from extproc.pool.sample import Histogram, LoadSample
from extproc.sim.engine import Engine
from extproc.sim.events import Finished, Request
from extproc.sim.spec import A100_8B, EngineSpec

POLL_S = 0.5


def learn(
    spec: EngineSpec,
    requests: int,
    *,
    load: float,
    prompt: int,
    aborted: float = 0.0,
    guessed: float = 1.0,
    seed: int = 1,
) -> float:
    """The rate after so many requests, all uncached, at a part of the engine's capacity. `guessed`: tokens that the
    queue is told, for each of the engine's."""
    rng, engine, queue = Random(seed), Engine(spec, seed=seed), PrefillQueue()
    open_: dict[str, Prefill] = {}
    now, next_poll_s = 0.0, POLL_S

    def run_to(then: float) -> None:
        for event in engine.advance(then):
            if type(event) is Finished:
                queue.end(open_.pop(event.request_id), event.at_s)

    per_s = load / (prompt * spec.per_prefill_token_s)
    for number in range(requests):
        now += rng.expovariate(per_s)
        while next_poll_s < now:
            run_to(next_poll_s)
            queue.observe(page(engine, next_poll_s))
            next_poll_s += POLL_S
        run_to(now)
        tokens = round(prompt * rng.uniform(0.5, 1.5))
        engine.submit(Request(str(number), tokens, 20), now)
        open_[str(number)] = queue.add(guessed * tokens, now)
        if rng.random() < aborted:
            engine.abort(str(number), now)
            run_to(now)
    return queue.rate


def page(engine: Engine, now: float) -> LoadSample:
    stats = engine.stats
    return LoadSample(
        now,
        running=float(engine.running),
        waiting=float(engine.waiting),
        prompt_tokens=float(stats.prompt_tokens),
        ttft=Histogram((float("inf"),), (float(stats.ttft.count),), stats.ttft.sum),
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_a_card_at_half_speed_is_seen_as_such_after_some_dozens_of_requests(load: float, seed: int) -> None:
    """60 prompts of 4,000 tokens: 240,000 beside the 20,000 of the prior"""
    usual = learn(A100_8B, 60, load=load, prompt=4000, seed=seed)
    slow = learn(A100_8B.slowed(2.0), 60, load=load / 2, prompt=4000, seed=seed)
    assert abs(slow / usual - 0.5) < 0.15 * 0.5


def test_the_rate_is_about_what_the_engine_computes() -> None:
    """2,000 to 6,000 tokens at 103 us, and attention: 9,000 tokens/s by arithmetic"""
    assert 0.8 * 9000 < learn(A100_8B, 200, load=0.4, prompt=4000) < 1.2 * 9000


@pytest.mark.parametrize("bytes_per_token", [2.5, 6.0])
def test_where_tokens_are_guessed_wrongly_the_seconds_are_right(bytes_per_token: float) -> None:
    """Tokens are guessed at 4 bytes each. The rate is learned in the same guesses, so their quotient stays."""
    guessed = bytes_per_token / 4.0
    right = learn(A100_8B, 200, load=0.4, prompt=4000)
    assert abs(learn(A100_8B, 200, load=0.4, prompt=4000, guessed=guessed) / guessed / right - 1) < 0.05


def test_aborted_requests_do_not_spoil_the_rate() -> None:
    clean = learn(A100_8B, 300, load=0.5, prompt=4000)
    spoiled = learn(A100_8B, 300, load=0.5, prompt=4000, aborted=0.2)
    assert abs(spoiled / clean - 1) < 0.3


def told(queue: PrefillQueue, now: float, count: float, sum_s: float) -> None:
    queue.observe(LoadSample(now, running=1.0, waiting=0.0, ttft=Histogram((float("inf"),), (count,), sum_s)))


def test_one_odd_measurement_moves_little() -> None:
    """A tenth of the prior's tokens in a hundred times their time: the prior's 2.5 s become 2.5 + 25"""
    queue = PrefillQueue()
    told(queue, 0.0, 0, 0.0)
    queue.add(PRIOR_TOKENS / 100, 0.1)
    told(queue, 1.0, 1, 0.5)
    assert queue.rate > 0.8 * DEFAULT_RATE


def test_first_tokens_of_others_are_not_taken_for_ours() -> None:
    queue = PrefillQueue()
    told(queue, 0.0, 0, 0.0)
    told(queue, 1.0, 50, 500.0)
    assert queue.rate == DEFAULT_RATE


def test_an_old_measurement_fades() -> None:
    """A card that was slowed down by something else is itself again after some hundreds of requests"""
    queue, sum_s = PrefillQueue(), 0.0
    told(queue, 0.0, 0, sum_s)
    for i in range(900):
        queue.add(1000.0, i * 10.0 + 1)
        sum_s += 0.02 + (1.0 if i < 300 else 0.125)
        told(queue, i * 10.0 + 9, i + 1.0, sum_s)
        if i == 299:
            assert queue.rate < 1250
    assert queue.rate > 6500
