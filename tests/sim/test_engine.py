"""The engine schedules as vLLM's V1 scheduler does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.sim.engine import Engine
from extproc.sim.events import Finished, FirstToken, Preempted, Request, Token
from extproc.sim.spec import CPU_TINY, PRESETS, EngineSpec
from tests.sim.conftest import SMALL, run_dry


def request(name: str, prompt: int, answer: int = 1, hashes: tuple[int, ...] = (), tokens: bool = False) -> Request:
    return Request(name, prompt, answer, hashes, token_events=tokens)


def finished(events: list[object]) -> dict[str, Finished]:
    return {event.request_id: event for event in events if isinstance(event, Finished)}


def test_a_request_takes_one_prefill_step_and_a_decode_step_for_each_further_token() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", prompt=8, answer=3, tokens=True), 1.0)
    events = run_dry(engine)
    first_s = 1.0 + 0.010 + 8 * (0.001 + 1e-5 * 4)
    second_s = first_s + 0.010 + 0.0005 + 8e-5
    third_s = second_s + 0.010 + 0.0005 + 9e-5
    assert [type(event) for event in events] == [FirstToken, Token, Token, Finished]
    assert [event.at_s for event in events] == pytest.approx([first_s, second_s, third_s, third_s])
    end = finished(events)["a"]
    assert (end.reason, end.generated_tokens, end.submitted_s, end.scheduled_s) == ("length", 3, 1.0, 1.0)
    assert end.first_token_s == pytest.approx(first_s)


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", prompt=40), 0.0)
    run_dry(engine)
    assert engine.stats.steps == 3  # 16 + 16 + 8
    assert engine.stats.step_tokens.sum == 41  # and the token it generates


def test_running_requests_are_served_before_the_queue() -> None:
    engine = Engine(SMALL)
    engine.submit(request("long", prompt=40), 0.0)
    engine.submit(request("short", prompt=4), 0.0)
    ends = finished(run_dry(engine))
    # The chunks of "long" leave no budget in the first two steps; "short" fits beside the third.
    assert ends["short"].scheduled_s is not None
    assert ends["short"].scheduled_s > 0.0
    assert ends["short"].at_s == ends["long"].at_s


def test_no_more_requests_run_than_max_num_seqs_and_the_rest_waits() -> None:
    engine = Engine(SMALL)
    for n in range(6):
        engine.submit(request(str(n), prompt=2, answer=5), 0.0)
    engine.next_event_at()
    assert (engine.running, engine.waiting) == (4, 2)


def test_the_head_of_the_queue_is_not_overtaken_by_a_request_that_would_fit() -> None:
    engine = Engine(SMALL)
    engine.submit(request("big", prompt=48, answer=8), 0.0)  # 12 of 16 blocks
    engine.submit(request("blocked", prompt=20, answer=1), 0.0)  # 5 blocks
    engine.submit(request("small", prompt=4, answer=1), 0.0)  # would fit
    ends = finished(run_dry(engine))
    assert ends["blocked"].scheduled_s == ends["big"].at_s
    assert ends["small"].scheduled_s is not None
    assert ends["small"].scheduled_s >= ends["big"].at_s


def test_a_prompt_is_admitted_whole_unless_the_spec_says_otherwise() -> None:
    running: dict[bool, int] = {}
    for whole in (True, False):
        engine = Engine(replace(SMALL, reserve_full_prompt=whole))
        engine.submit(request("a", prompt=32, answer=32), 0.0)
        engine.advance(0.1)  # two chunks
        engine.submit(request("b", prompt=40, answer=1), 0.1)  # 10 blocks, 8 are free
        engine.advance(0.12)
        running[whole] = engine.running
    assert running == {True: 1, False: 2}


def test_the_second_of_two_equal_prompts_computes_only_its_last_block() -> None:
    engine = Engine(SMALL)
    hashes = (11, 12, 13)
    engine.submit(request("a", 12, 1, hashes), 0.0)
    run_dry(engine)
    engine.submit(request("b", 12, 1, hashes), 1.0)
    # All 3 blocks are cached, but the last token's output is needed, and blocks are computed whole.
    assert finished(run_dry(engine))["b"].cached_tokens == 8
    assert engine.stats.prefix_queries == 24
    assert engine.stats.prefix_hits == 8


def test_a_prompt_one_token_longer_than_the_cached_blocks_hits_all_of_them() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", 12, 1, (11, 12, 13)), 0.0)
    run_dry(engine)
    engine.submit(request("b", 13, 1, (11, 12, 13)), 1.0)
    assert finished(run_dry(engine))["b"].cached_tokens == 12


def test_siblings_admitted_in_the_same_step_share_their_prefix() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", 9, 1, (11, 12)), 0.0)
    engine.submit(request("b", 9, 1, (11, 12)), 0.0)
    ends = finished(run_dry(engine))
    assert ends["a"].cached_tokens == 0
    assert ends["b"].cached_tokens == 8
    assert ends["a"].at_s == ends["b"].at_s


def test_a_match_ends_at_the_first_block_that_differs() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", 13, 1, (11, 12, 13)), 0.0)
    run_dry(engine)
    engine.submit(request("b", 13, 1, (11, 99, 13)), 1.0)
    assert finished(run_dry(engine))["b"].cached_tokens == 4


def test_generated_tokens_fill_blocks_that_the_next_turn_finds() -> None:
    engine = Engine(SMALL)
    turn = (11, 12, 13, 14)
    engine.submit(request("a", 6, 8, turn), 0.0)  # 14 tokens, the last is not computed: 3 full blocks
    run_dry(engine)
    engine.submit(request("b", 20, 1, turn), 1.0)
    assert finished(run_dry(engine))["b"].cached_tokens == 12


def test_the_answer_asks_for_its_hashes_in_order_and_once() -> None:
    asked: list[tuple[int, int]] = []

    def next_hash(index: int, parent: int) -> int:
        asked.append((index, parent))
        return 100 + index

    engine = Engine(SMALL)
    engine.submit(Request("a", 6, 8, (11,), next_hash=next_hash), 0.0)
    run_dry(engine)
    assert asked == [(1, 11), (2, 101)]


def test_without_prefix_caching_nothing_is_found() -> None:
    engine = Engine(replace(SMALL, enable_prefix_caching=False))
    for at_s in (0.0, 1.0):
        engine.submit(request(str(at_s), 13, 1, (11, 12, 13)), at_s)
        assert finished(run_dry(engine))[str(at_s)].cached_tokens == 0
    assert engine.stats.prefix_queries == 0


def test_when_blocks_run_out_the_newest_request_is_preempted_and_computed_again() -> None:
    engine = Engine(SMALL)
    engine.submit(request("old", 28, 30), 0.0)  # 58 tokens: 15 blocks in the end, 16 there are
    engine.submit(request("new", 20, 10), 0.0)
    events = run_dry(engine)
    preempted = [event.request_id for event in events if isinstance(event, Preempted)]
    assert preempted
    assert set(preempted) == {"new"}
    ends = finished(events)
    assert ends["old"].preemptions == 0
    assert ends["new"].preemptions == len(preempted) == engine.stats.preemptions
    assert ends["new"].generated_tokens == 10


def test_a_preempted_request_waits_at_the_head_of_the_queue() -> None:
    engine = Engine(SMALL)
    engine.submit(request("old", 28, 30), 0.0)
    engine.submit(request("new", 20, 20), 0.0)
    engine.submit(request("later", 40, 1), 0.0)
    events = run_dry(engine)
    assert any(isinstance(event, Preempted) and event.request_id == "new" for event in events)
    ends = finished(events)
    assert ends["new"].at_s < ends["later"].at_s


def test_an_idle_engine_with_a_full_cache_has_a_usage_of_zero() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", 48, 4), 0.0)
    engine.advance(0.1)
    assert engine.kv_usage_ratio > 0.5
    run_dry(engine)
    assert engine.kv_usage_ratio == 0.0
    assert engine.cache.cached == 12


def test_a_waiting_request_is_aborted_at_once_and_a_running_one_after_its_step() -> None:
    engine = Engine(SMALL)
    engine.submit(request("running", 40, 20), 0.0)
    engine.submit(request("waiting", 40, 20), 0.0)
    step_end_s = engine.next_event_at()
    assert step_end_s is not None
    assert engine.abort("waiting", 0.001)
    assert [event.request_id for event in engine.advance(0.001)] == ["waiting"]
    assert engine.abort("running", 0.001)
    assert not engine.abort("running", 0.001)
    assert engine.running == 1
    (end,) = engine.advance(step_end_s)
    assert isinstance(end, Finished)
    assert (end.request_id, end.reason, end.at_s) == ("running", "abort", step_end_s)
    assert engine.cache.used == 0
    assert engine.stats.finished["abort"] == 2
    assert not engine.abort("running", step_end_s)


def test_a_slow_engine_takes_longer_for_the_steps_that_start_from_then_on() -> None:
    ends: dict[float, float] = {}
    for factor in (1.0, 2.0):
        engine = Engine(SMALL)
        engine.slow_factor = factor
        engine.submit(request("a", 8, 4), 0.0)
        ends[factor] = run_dry(engine)[-1].at_s
    assert ends[2.0] == pytest.approx(2 * ends[1.0])
    assert ends[2.0] == pytest.approx(_end_on(SMALL.slowed(2.0)))


def _end_on(spec: EngineSpec) -> float:
    engine = Engine(spec)
    engine.submit(request("a", 8, 4), 0.0)
    return run_dry(engine)[-1].at_s


def test_an_aborted_request_counts_in_no_latency_histogram_but_its_first_token_does() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", 8, 50), 0.0)
    engine.advance(0.2)
    engine.abort("a", 0.2)
    run_dry(engine)
    assert engine.stats.ttft.count == 1
    assert engine.stats.e2e.count == 0


@pytest.mark.parametrize(("prompt", "answer"), [(64, 1), (60, 5)])
def test_a_request_too_long_for_the_model_is_refused(prompt: int, answer: int) -> None:
    engine = Engine(SMALL)
    with pytest.raises(ValueError, match="more than max_model_len = 64"):
        engine.submit(request("a", prompt, answer), 0.0)
    assert engine.next_event_at() is None


def test_an_id_in_use_is_refused() -> None:
    engine = Engine(SMALL)
    engine.submit(request("a", 4), 0.0)
    with pytest.raises(ValueError, match="still in use"):
        engine.submit(request("a", 4), 0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_gpu_blocks": 16}, "hold less than max_model_len = 64"),
        ({"max_num_seqs": 0}, "max_num_seqs: 0 is below 1"),
        ({"jitter_ratio": 1.0}, "jitter_ratio: 1.0 is outside"),
        ({"base_step_s": 0.0}, "must be above 0"),
    ],
)
def test_a_spec_that_could_not_work_says_why(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_runs_its_longest_request(preset: str) -> None:
    spec = PRESETS[preset]
    engine = Engine(spec)
    engine.submit(request("a", spec.max_model_len - 2, 2), 0.0)
    assert finished(run_dry(engine))["a"].generated_tokens == 2


@pytest.mark.parametrize(
    ("prompt", "cold_ms", "warm_ms"),
    [(3000, 130, 20), (5500, 352, 29)],
)
def test_the_cpu_preset_gives_the_times_that_were_measured(prompt: int, cold_ms: float, warm_ms: float) -> None:
    engine = Engine(CPU_TINY)
    hashes = tuple(range(1, prompt // 32 + 1))
    firsts: list[float] = []
    for at_s in (0.0, 10.0):
        engine.submit(request(str(at_s), prompt, 8, hashes), at_s)
        events = run_dry(engine)
        firsts += [(event.at_s - at_s) * 1000 for event in events if isinstance(event, FirstToken)]
    assert firsts == pytest.approx([cold_ms, warm_ms], rel=0.03)
    decode_s = engine.stats.token_interval.sum / engine.stats.token_interval.count
    assert 0.003 <= decode_s <= 0.005
