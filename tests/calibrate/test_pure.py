"""What is sent, when a step is decided, which rate is next: each by values alone."""

from __future__ import annotations

import json
from itertools import pairwise
from math import comb, inf
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.calibrate import confidence
from extproc.calibrate.bracket import Knee, TooLow, Tried, Try, search
from extproc.calibrate.gauges import read
from extproc.calibrate.judge import Judge, Rule, Verdict, design_effect, judge
from extproc.calibrate.lengths import Buckets, Independent, read_recorded, read_shape
from extproc.calibrate.prompts import WORDS, Prompts, WordCost
from extproc.calibrate.sent import Sent, decided, times
from extproc.calibrate.served import lengths_of
from extproc.calibrate.stream import StreamReader
from extproc.pool.sample import LoadSample

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"


# Lengths --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["800", "uniform:100:2000", "lognormal:800:0.6", "buckets:300:100=3,500=6,1000=1"])
def test_a_shape_has_the_mean_that_it_tells_and_is_read_back_from_its_text(text: str) -> None:
    shape, rng = read_shape(text), Random(1)
    drawn = [shape.draw(rng) for _ in range(20_000)]
    assert min(drawn) >= 1
    assert fmean(drawn) == pytest.approx(shape.mean, rel=0.02)
    assert read_shape(shape.text) == shape


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "1.5", "many", "uniform:5", "uniform:9:3", "lognormal:0:1", "lognormal:9:x", "normal:1:2"]
)
def test_what_is_no_length_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="write a number, uniform:LOW:HIGH or lognormal:MEAN:SIGMA"):
        read_shape(text)


def test_a_request_that_does_not_fit_the_server_is_drawn_again() -> None:
    lengths, rng = Independent(read_shape("uniform:1:100"), read_shape("uniform:1:100")), Random(1)
    assert all(sum(lengths.draw(rng, 60)) <= 60 for _ in range(200))
    with pytest.raises(ValueError, match="hardly any request fits the server, which takes 1 tokens"):
        lengths.draw(rng, 1)


def test_recorded_lengths_are_drawn_as_pairs() -> None:
    lines = [b'{"prompt_tokens": 10, "output_tokens": 1, "other": 3}', b"", b'{"prompt_tokens":20,"output_tokens":2}']
    recorded, rng = read_recorded(lines, "a.jsonl"), Random(1)
    assert recorded.means == (15.0, 1.5)
    assert {recorded.draw(rng, None) for _ in range(50)} == {(10, 1), (20, 2)}
    assert {recorded.draw(rng, 12) for _ in range(50)} == {(10, 1)}
    assert recorded.too_long(12) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([b"{}"], "a.jsonl, line 1: prompt_tokens and output_tokens are to be whole numbers"),
        ([b"", b"nonsense"], "a.jsonl, line 2: no JSON"),
        ([b'{"prompt_tokens": true, "output_tokens": 3}'], "line 1"),
        ([], "a.jsonl has no lengths"),
    ],
)
def test_a_wrong_line_of_recorded_lengths_is_named(lines: list[bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_recorded(lines, "a.jsonl")


def test_lengths_are_read_from_the_pages_of_servers() -> None:
    pages = [path.read_bytes() for path in sorted(GOLDEN.glob("vllm-0.32*.txt"))]
    assert pages, "no recorded page"
    found = lengths_of(pages)
    assert found is not None
    lengths, requests = found
    told = dict.fromkeys(("prompt", "generation"), 0.0)
    for name in told:
        for page in pages:
            told[name] += sum(
                float(line.split()[-1])
                for line in page.decode().splitlines()
                if line.startswith(f"vllm:request_{name}_tokens_sum")
            )
    assert requests > 0
    assert lengths.means == pytest.approx((told["prompt"] / requests, told["generation"] / requests))
    assert isinstance(lengths.prompt, Buckets)
    assert lengths_of([b"", b"# nothing here\n"]) is None


# Prompts --------------------------------------------------------------------------------------------------------------


def test_prompts_are_as_long_as_asked_for_and_do_not_begin_alike() -> None:
    prompts = Prompts(range(1000, 1300), WordCost(), 0.0, Random(1))
    made = [prompts.make(40) for _ in range(300)]
    assert {len(prompt) for prompt in made} == {40}
    assert len({tuple(prompt[:16]) for prompt in made}) == 300


def test_the_shared_part_is_common_to_all_and_the_rest_is_not() -> None:
    prompts = Prompts(range(1000, 1300), WordCost(), 0.75, Random(1))
    short, long = prompts.make(40), prompts.make(400)
    assert short[:30] == long[:30]
    assert short[30:] != long[30:40]


def test_words_have_about_as_many_tokens_as_asked_for() -> None:
    cost = WordCost.of((20, 36), (200, 306))  # 1.5 a word, and 6
    prompts = Prompts(None, cost, 0.0, Random(1))
    text = prompts.make(606)
    assert isinstance(text, str)
    assert len(text.split()) == 400
    assert set(text.split()) <= set(WORDS)


# Confidence -----------------------------------------------------------------------------------------------------------


def part_over(over: int, of: int, share: float) -> float:
    """The chance that at most so many are over."""
    return sum(comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(over + 1))


@given(st.integers(1, 400), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_bounds_are_those_of_the_binomial_distribution(of: int, data: st.DataObject, sure: float) -> None:
    over = data.draw(st.integers(0, of))
    low, high = confidence.lower(over, of, sure), confidence.upper(over, of, sure)
    assert low <= over / of <= high
    if over < of:
        assert part_over(over, of, high) == pytest.approx(1 - sure, rel=1e-6)
    if over:
        assert 1 - part_over(over - 1, of, low) == pytest.approx(1 - sure, rel=1e-6)


def test_299_good_requests_show_a_99th_percentile() -> None:
    assert confidence.enough(0.01, 0.95) == 299
    assert confidence.upper(0, 299, 0.95) <= 0.01 < confidence.upper(0, 298, 0.95)


# The judge ------------------------------------------------------------------------------------------------------------

RULE = Rule(target_s=1.0, least_s=10.0)
LEAST = (RULE.least, RULE.least_near)


def test_none_over_the_target_is_met_when_there_are_enough_and_time_has_passed() -> None:
    assert judge([0.1] * 298, 60, RULE, LEAST).verdict is None
    assert judge([0.1] * 299, 9, RULE, LEAST).verdict is None
    met = judge([0.1] * 299, 10, RULE, LEAST)
    assert (met.verdict, met.over, met.of, met.certain) == (Verdict.MET, 0, 299, True)


def test_near_the_target_more_requests_are_needed() -> None:
    assert RULE.least_near == 800
    assert judge([0.6] * 799, 60, RULE, LEAST).verdict is None
    assert judge([0.6] * 800, 60, RULE, LEAST).verdict is Verdict.MET


def test_a_hopeless_rate_is_missed_after_a_few() -> None:
    assert judge([inf] * 20, 1, RULE, LEAST).verdict is Verdict.MISSED
    assert judge([inf] * 19, 1, RULE, LEAST).verdict is None


def test_misses_that_come_in_one_burst_say_less_than_as_many_apart() -> None:
    apart = [inf if place % 50 == 0 else 0.1 for place in range(600)]
    burst = [inf if 300 <= place < 312 else 0.1 for place in range(600)]
    assert judge(apart, 60, RULE, LEAST).over == judge(burst, 60, RULE, LEAST).over == 12
    assert design_effect([each > 1 for each in apart]) == 1.0
    assert design_effect([each > 1 for each in burst]) > 5.0
    assert judge(apart, 60, RULE, LEAST).verdict is Verdict.MISSED
    assert judge(burst, 60, RULE, LEAST).verdict is None


def test_a_queue_that_grows_is_not_met() -> None:
    rising = [place / 4000 for place in range(3000)]  # none is over the target yet
    assert judge(rising[:900], 60, RULE, LEAST).verdict is not Verdict.MISSED
    ended = judge(rising, 60, RULE, LEAST)
    assert ended.verdict is Verdict.MISSED
    assert "the queue grows" in ended.why
    assert not ended.certain


def test_what_stays_open_is_decided_by_the_share_and_said_not_to_be_certain() -> None:
    for over, verdict in ((30, Verdict.MET), (31, Verdict.MISSED)):
        places = {place * 3000 // over for place in range(over)}
        found = judge([inf if place in places else 0.1 for place in range(3000)], 60, RULE, LEAST)
        assert (found.verdict, found.certain) == (verdict, False)
        assert "of all: not certain" in found.why


def test_looks_are_rarer_than_requests_and_none_is_left_out_that_could_decide() -> None:
    judged, looks = Judge(RULE), 0
    for count in range(1, 300):
        found = judged.look([0.1] * count, 60.0)
        looks += found is not None
        if found is not None and found.verdict is not None:
            break
    assert count == 299
    assert looks < 35


def test_a_step_that_waits_for_time_alone_is_met_when_it_has_passed() -> None:
    judged = Judge(RULE)
    assert judged.look([0.1] * 400, 5.0) is not None
    assert judged.look([0.1] * 401, 6.0) is None
    found = judged.look([0.1] * 402, 10.0)
    assert found is not None
    assert found.verdict is Verdict.MET


@pytest.mark.parametrize(
    "values",
    [{"target_s": 0.0}, {"confidence": 1.0}, {"tolerance": 0.0}, {"most": 500}, {"most": 2000, "tolerance": 0.01}],
)
def test_a_rule_that_decides_nothing_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        Rule(**({"target_s": 1.0} | values))  # type: ignore[arg-type]


# The search -----------------------------------------------------------------------------------------------------------


def searched(knee_per_s: float, first_per_s: float, tolerance: float = 0.05) -> tuple[Knee | TooLow, list[Tried]]:
    tried: list[Tried] = []
    for _ in range(60):
        found = search(tried, first_per_s, tolerance)
        if not isinstance(found, Try):
            return found, tried
        tried.append(Tried(found.rate_per_s, found.rate_per_s <= knee_per_s))
    raise AssertionError("the search does not end")


@given(st.floats(0.02, 5000), st.floats(0.001, 50))
def test_the_knee_is_bracketed_from_any_first_rate_below_it_and_confirmed(knee: float, first: float) -> None:
    found, tried = searched(knee, first)
    if isinstance(found, TooLow):
        assert knee < first / 32
        return
    assert found.rate_per_s <= knee < found.missed_per_s
    assert found.missed_per_s / found.rate_per_s <= 1.05 or found.rate_per_s < 0.1  # three digits
    assert sum(each.rate_per_s == found.rate_per_s for each in tried) == 2


def test_a_knee_that_misses_the_second_time_is_none() -> None:
    tried = [Tried(1.0, True), Tried(1.04, False), Tried(1.0, False)]
    assert search(tried, 1.0, 0.05) == Try(0.5, None, 1.0)
    assert search([Tried(0.9, True), *tried], 1.0, 0.05) == Try(0.949, 0.9, 1.0)


# Readings -------------------------------------------------------------------------------------------------------------


def page(at_s: float, waiting: float | None, prompt: float = 0.0, cached: float | None = 0.0) -> LoadSample:
    return LoadSample(at_s, waiting=waiting, running=2.0, prompt_tokens=prompt, cached_prompt_tokens=cached)


def test_gauges_are_means_over_time_and_a_gap_is_left_out() -> None:
    samples = [page(0.0, 2.0), page(0.5, 4.0), page(1.0, None), page(1.5, 0.0), page(61.5, 8.0, 1000.0, 400.0)]
    readings = read(samples, 0.5)
    # 2 and 4 for half a second each; what is not told is not zero; then 0 for the four intervals that it is believed
    assert readings.waiting == pytest.approx((2.0 * 0.5 + 4.0 * 0.5 + 0.0 * 2.0) / 3.0)
    assert readings.prefill_tokens_per_s == pytest.approx(600 / 61.5)
    assert readings.hit_ratio is None
    assert read([], 0.5).waiting is None


def test_a_restart_in_a_step_is_seen() -> None:
    started = [LoadSample(float(at), waiting=0.0, process_start_s=100.0 + at // 2) for at in range(3)]
    assert not read(started[:2], 1.0).restarted
    assert read(started, 1.0).restarted


def test_only_what_is_known_to_be_over_or_not_is_judged() -> None:
    early, late, waits, fails = Sent(0.0, first_s=0.5), Sent(1.0, first_s=4.0), Sent(2.0), Sent(3.0, error="500")
    young = Sent(3.5)
    assert decided([early, late, waits, fails, young], 4.0, 1.0) == [0.5, 3.0, inf, inf]
    seen = times([early, late, waits, fails], 4.0)
    assert seen.ttft_mean == pytest.approx((0.5 + 3.0 + 2.0) / 3)
    assert (seen.ttft_p50, seen.ttft_p99, seen.errors) == (2.0, None, 1)


def test_tokens_that_come_together_share_the_time_since_the_last() -> None:
    sent = Sent(0.0)
    sent.got(1.0, 1)
    sent.got(1.3, 3)
    assert sent.first_s == 1.0
    assert list(sent.intervals_s) == pytest.approx([0.1, 0.1, 0.1])
    sent.output_tokens = 7  # each event carried two
    sent.end(1.3)
    assert list(sent.intervals_s) == pytest.approx([0.05, 0.05, 0.05])


# The stream -----------------------------------------------------------------------------------------------------------


def event(**members: object) -> bytes:
    return b"data: " + json.dumps(members).encode() + b"\n\n"


ANSWER = (
    event(choices=[{"text": " a"}])
    + event(choices=[{"text": "", "finish_reason": None}])
    + event(choices=[{"text": " b", "finish_reason": "length"}])
    + event(
        choices=[], usage={"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    )
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, len(ANSWER)), max_size=8))
def test_an_answer_is_read_alike_however_it_is_cut(cuts: list[int]) -> None:
    reader = StreamReader()
    edges = [0, *sorted(cuts), len(ANSWER)]
    tokens = sum(reader.feed(ANSWER[low:high]) for low, high in pairwise(edges))
    assert (tokens, reader.done, reader.finished, reader.error) == (3, True, True, None)
    assert (reader.tokens("prompt_tokens"), reader.tokens("completion_tokens"), reader.cached_tokens) == (9, 3, 4)


def test_the_role_of_a_chat_is_no_token_and_its_reasoning_is() -> None:
    reader = StreamReader()
    assert reader.feed(event(choices=[{"delta": {"role": "assistant", "content": ""}}])) == 0
    assert reader.feed(event(choices=[{"delta": {"reasoning_content": "hm"}}])) == 1
    assert reader.feed(event(choices=[{"delta": {"content": "a"}}]) * 2) == 2


def test_an_error_amid_a_stream_is_one() -> None:
    reader = StreamReader()
    reader.feed(event(choices=[{"text": "a"}]) + event(error={"message": "EngineCore died", "code": 500}))
    assert reader.error == "EngineCore died"
