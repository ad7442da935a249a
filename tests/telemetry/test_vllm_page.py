"""What a metrics page says, value by value."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from extproc.pool.sample import LoadSample
from extproc.telemetry import histogram
from extproc.telemetry.exposition import Labels
from extproc.telemetry.vllm_page import MAX_LINE_BYTES, MAX_ROWS, PageReader, parse

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"
TTFT = "vllm:time_to_first_token_seconds"


def read(text: str, **options: bool) -> LoadSample:
    return parse(text.encode(), 7.0, **options)


def golden(name: str) -> LoadSample:
    return parse((GOLDEN / name).read_bytes(), 7.0)


def test_the_recorded_page_of_a_busy_server_is_read_in_full() -> None:
    sample = golden("vllm-0.32-busy.txt")
    assert (sample.taken_at_s, sample.running, sample.waiting) == (7.0, 4.0, 8.0)
    assert sample.kv_usage_ratio == 0.0010681478316598714
    assert sample.sleeping is False
    assert (sample.block_size_tokens, sample.kv_blocks, sample.engines) == (32, 32768, 1)
    assert (sample.models, sample.adapters) == (("tiny",), ())
    assert (sample.prefix_queries_tokens, sample.prefix_hits_tokens) == (14152.0, 7968.0)
    assert (sample.prompt_tokens, sample.cached_prompt_tokens, sample.generation_tokens) == (14152.0, 7968.0, 473.0)
    assert sample.preemptions == 0.0
    assert sample.process_start_s == 1795958021.39
    assert (sample.rejected_values, sample.truncated, sample.usable) == (0, False, True)
    assert sample.ttft is not None
    assert (sample.ttft.count, sample.ttft.sum_s) == (8.0, 0.9267740249633789)
    assert (sample.ttft.bounds_s[:2], sample.ttft.bounds_s[-1]) == ((0.001, 0.005), math.inf)
    assert sample.token_interval is not None
    assert sample.token_interval.counts[:2] == (379.0, 453.0)
    assert sample.prefill is not None
    assert sample.prefill.counts[:2] == (3.0, 4.0)
    assert sample.queue is not None
    assert sample.queue.bounds_s[0] == 0.3


def test_the_engines_of_the_recorded_two_rank_page_are_added_up() -> None:
    """case d02"""
    sample = golden("vllm-0.32-dp2-busy.txt")
    assert (sample.running, sample.waiting, sample.engines) == (8.0, 0.0, 2)
    assert sample.kv_blocks == 65536  # of one engine
    assert sample.prompt_tokens == 16432.0
    assert sample.ttft is not None
    assert (sample.ttft.count, sample.ttft.counts[3]) == (18.0, 8.0)


def test_the_names_of_older_releases_are_read() -> None:
    """case d01"""
    sample = golden("made-older-names.txt")
    assert (sample.running, sample.waiting, sample.kv_usage_ratio, sample.engines) == (3.0, 2.0, 0.25, 1)
    assert (sample.prefix_queries_tokens, sample.prefix_hits_tokens) == (100.0, 40.0)
    assert sample.token_interval is not None
    assert sample.token_interval.counts == (10.0, 60.0, 61.0)
    assert (sample.ttft, sample.sleeping, sample.block_size_tokens, sample.generation_tokens) == (None,) * 4


@pytest.mark.parametrize(
    ("page", "usage"),
    [
        ("vllm:gpu_cache_usage_perc 0.3\n", 0.3),
        ("vllm:kv_cache_usage_perc 0.2\n", 0.2),
        ("vllm:gpu_cache_usage_perc 0.3\nvllm:kv_cache_usage_perc 0.2\n", 0.2),
        ("vllm:kv_cache_usage_perc 0.2\nvllm:gpu_cache_usage_perc 0.3\n", 0.2),
        ("vllm:num_requests_running 1\n", None),
    ],
)
def test_the_newer_name_of_kv_usage_wins_and_its_absence_is_unknown(page: str, usage: float | None) -> None:
    """case d01"""
    assert read(page).kv_usage_ratio == usage


@pytest.mark.parametrize("swap", [False, True])
def test_load_of_engines_is_added_and_kv_usage_averaged_in_any_order(swap: bool) -> None:
    """case d02"""
    lines = []
    for engine, (running, waiting, usage) in enumerate([(9, 4, 0.9), (1, 0, 0.1)]):
        labels = f'{{engine="{engine}",model_name="m"}}'
        lines += [
            f"vllm:num_requests_running{labels} {running}",
            f"vllm:num_requests_waiting{labels} {waiting}",
            f'vllm:num_requests_waiting_by_reason{{engine="{engine}",reason="capacity"}} {waiting}',
            f"vllm:kv_cache_usage_perc{labels} {usage}",
        ]
    sample = read("\n".join(reversed(lines) if swap else lines) + "\n")
    assert (sample.running, sample.waiting, sample.kv_usage_ratio, sample.engines) == (10.0, 4.0, 0.5, 2)


def test_several_models_on_one_server_are_added_up_and_named() -> None:
    page = "".join(
        f'vllm:num_requests_running{{engine="0",model_name="{name}"}} {n}\n' for name, n in (("b", 2), ("a", 3))
    )
    sample = read(page)
    assert (sample.running, sample.models, sample.engines) == (5.0, ("a", "b"), 1)


@pytest.mark.parametrize("rotate", range(3))
def test_the_adapter_line_with_the_newest_time_holds(rotate: int) -> None:
    """case d04"""
    lines = [
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.000000001e+09',
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a1, b",waiting_lora_adapters=""} 1.000000008e+09',
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a1",waiting_lora_adapters="a2"} 1.000000007e+09',
    ]
    assert read("\n".join(lines[rotate:] + lines[:rotate]) + "\n").adapters == ("a1", "b")


def test_an_empty_adapter_list_is_no_adapter() -> None:
    """case d04"""
    newest = 'vllm:lora_requests_info{running_lora_adapters="",waiting_lora_adapters=" , "} 9\n'
    assert read(newest + 'vllm:lora_requests_info{running_lora_adapters="a"} 8\n').adapters == ()


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_waiting NaN",
        "vllm:num_requests_waiting -nan",
        "vllm:num_requests_waiting +Inf",
        "vllm:num_requests_waiting -3",
        "vllm:num_requests_waiting 1_000",
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting{} ",
        "vllm:num_requests_waiting 0x10",
        "vllm:num_requests_waiting 3 yesterday",
        "vllm:num_requests_waiting 3 1700000000000 more",
        'vllm:num_requests_waiting{a="b} 3',
        'vllm:num_requests_waiting{a="b" c="d"} 3',
        'vllm:num_requests_waiting{a="b",a="c"} 3',
        "vllm:num_requests_waiting{a=b} 3",
        "vllm:num_requests_waiting{" + ",".join(f'l{n}="x"' for n in range(300)) + "} 3",
    ],
)
def test_a_bad_value_is_unknown_and_counted_and_the_rest_of_the_page_is_used(line: str) -> None:
    """case d05"""
    sample = read(f"vllm:num_requests_running 2\n{line}\nvllm:kv_cache_usage_perc 0.5\n")
    assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (2.0, None, 0.5)
    assert sample.rejected_values == 1


@pytest.mark.parametrize("value", ["1.7", "-nan", "-0.1", "Inf"])
def test_an_impossible_kv_usage_is_unknown(value: str) -> None:
    """case d05"""
    sample = read(f"vllm:kv_cache_usage_perc {value}\nvllm:num_requests_running 1\n")
    assert (sample.kv_usage_ratio, sample.running, sample.rejected_values) == (None, 1.0, 1)


def test_the_sum_of_a_good_and_a_bad_engine_is_unknown_not_the_half() -> None:
    """case d05, case d02"""
    page = 'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} NaN\n'
    assert read(page).running is None


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("vllm:num_requests_running 3 1700000000000", 3.0),
        ("vllm:num_requests_running 3e2", 300.0),
        ("  vllm:num_requests_running\t3\r", 3.0),
        ("vllm:num_requests_running{} 3", 3.0),
        ('vllm:num_requests_running {a="b",} 3', 3.0),
        ('vllm:num_requests_running{ a = "b" , c = "d" } 3', 3.0),
        ('vllm:num_requests_running{a="b"}3', 3.0),
        ('vllm:num_requests_running{a="x} 9 # y"} 3', 3.0),
        (r'vllm:num_requests_running{a="quote \" back \\"} 3', 3.0),
        ('vllm:num_requests_running{a="b"} 3 # {trace_id="x} 5"} 0.67 1700000000.1', 3.0),
        ('vllm:num_requests_running 3 # {trace_id="x"} 0.67', 3.0),
        ('vllm:num_requests_running{a="ü\ufffd"} 3', 3.0),
    ],
)
def test_everything_the_format_allows_on_a_line_is_read(line: str, value: float) -> None:
    sample = read(line + "\n# EOF\n")
    assert (sample.running, sample.rejected_values) == (value, 0)


def test_escapes_in_a_label_are_undone() -> None:
    assert read('vllm:num_requests_running{model_name="a\\"b\\\\n\\nc, d}"} 1\n').models == ('a"b\\n\nc, d}',)


def test_a_last_line_without_line_end_is_read() -> None:
    assert read("vllm:num_requests_running 4").running == 4.0


@pytest.mark.parametrize("page", ["vllm:prompt_tokens_total 5\n", "vllm:prompt_tokens 5\n"])
def test_counters_are_read_with_and_without_total(page: str) -> None:
    assert read(page).prompt_tokens == 5.0


def test_a_counter_that_is_there_under_both_names_counts_once() -> None:
    assert read("vllm:prompt_tokens 5\nvllm:prompt_tokens_total 6\n").prompt_tokens == 6.0


@pytest.mark.parametrize(
    ("states", "sleeping"),
    [
        ({"awake": 1, "weights_offloaded": 0, "discard_all": 0}, False),
        ({"awake": 0, "weights_offloaded": 1, "discard_all": 0}, True),
        ({"awake": 0, "weights_offloaded": 0, "discard_all": 1}, True),
        ({"awake": 1}, False),
        ({"awake": 0}, True),
        ({"awake": "NaN"}, None),
        ({"awake": "NaN", "discard_all": 1}, True),
        ({}, None),
    ],
)
def test_a_server_sleeps_if_it_says_so(states: dict[str, object], sleeping: bool | None) -> None:
    lines = [f'vllm:engine_sleep_state{{engine="0",sleep_state="{key}"}} {value}\n' for key, value in states.items()]
    assert read("".join(lines)).sleeping is sleeping


def test_one_sleeping_engine_of_two_makes_the_server_sleep() -> None:
    page = "".join(f'vllm:engine_sleep_state{{engine="{n}",sleep_state="awake"}} {n}\n' for n in (0, 1))
    assert read(page).sleeping is True


@pytest.mark.parametrize(
    ("labels", "size", "blocks", "rejected"),
    [
        ('block_size="16",num_gpu_blocks="100"', 16, 100, 0),
        ('block_size="16",num_gpu_blocks="None"', 16, None, 0),
        ('block_size="16"', 16, None, 0),
        ('block_size="-1",num_gpu_blocks="1e3"', None, None, 2),
        (f'block_size="0",num_gpu_blocks="{"9" * 5000}"', None, None, 2),
    ],
)
def test_the_cache_size_comes_from_labels(labels: str, size: int | None, blocks: int | None, rejected: int) -> None:
    sample = read(f"vllm:cache_config_info{{{labels}}} 1.0\n")
    assert (sample.block_size_tokens, sample.kv_blocks, sample.rejected_values) == (size, blocks, rejected)


def buckets(*pairs: tuple[str, object], total: str = "3", labels: str = "") -> str:
    lines = [f'{TTFT}_bucket{{{labels}le="{bound}"}} {count}' for bound, count in pairs]
    return "\n".join([*lines, f"{TTFT}_sum{{{labels.rstrip(',')}}} {total}"]) + "\n"


def test_histogram_bounds_are_read_from_the_page() -> None:
    ttft = read(buckets(("+Inf", 5), ("0.5", 1), ("2.0", 4))).ttft
    assert ttft is not None
    assert (ttft.bounds_s, ttft.counts, ttft.sum_s) == ((0.5, 2.0, math.inf), (1.0, 4.0, 5.0), 3.0)


@pytest.mark.parametrize(
    "page",
    [
        buckets(("0.5", 1), ("2.0", 4)),  # no +Inf
        buckets(("0.5", 5), ("+Inf", 4)),  # falls
        buckets(("0.5", "NaN"), ("+Inf", 4)),
        buckets(("NaN", 1), ("+Inf", 4)),
        buckets(("x", 1), ("+Inf", 4)),
        buckets(("0.5", 1), ("0.50", 1), ("+Inf", 4)),
        buckets(("0.5", 1), ("+Inf", "Inf")),
        buckets(("0.5", -1), ("+Inf", 4)),
        buckets(("0.5", 1), ("+Inf", 4), total="-1"),
        buckets(("0.5", 1), ("+Inf", 4), total="NaN"),
        buckets(("0.5", 1), ("+Inf", 4)).replace("_sum", "_total_of"),
        buckets(("0.5", 1), ("+Inf", 4), labels='engine="0",') + buckets(("1.0", 1), ("+Inf", 4), labels='engine="1",'),
        f"{TTFT}_bucket 4\n{TTFT}_sum 3\n",  # no bound at all
    ],
)
def test_a_histogram_that_contradicts_itself_is_unknown(page: str) -> None:
    sample = read(page + "vllm:num_requests_running 2\n")
    assert (sample.ttft, sample.running) == (None, 2.0)


def test_lines_that_contradict_each_other_are_unknown_and_equal_ones_count_once() -> None:
    sample = read('vllm:num_requests_running{a="1",b="2"} 3\nvllm:num_requests_running{b="2",a="1"} 3\n')
    assert (sample.running, sample.rejected_values) == (3.0, 0)
    sample = read("vllm:num_requests_running 3\nvllm:num_requests_running 4\nvllm:num_requests_running 3\n")
    assert (sample.running, sample.rejected_values) == (None, 1)


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"process_cpu_seconds_total 8.67\nhttp_requests_total 4.0\n",
        b"<!DOCTYPE html><html><body>vllm:num_requests_running 0</body></html>",
        b"\x00\xff\xfe\n\n{}{}",
        b"# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n",
        b"sglang:num_running_reqs 3\n",
        b"vllm:requests_in_flight 3\n",
    ],
)
def test_a_page_without_vllm_series_is_unknown_load_not_zero(page: bytes) -> None:
    """case d07"""
    sample = parse(page, 1.0)
    assert not sample.usable
    assert (sample.running, sample.waiting, sample.kv_usage_ratio, sample.rejected_values) == (None, None, None, 0)


def test_a_sum_past_the_largest_float_is_unknown() -> None:
    page = 'vllm:prompt_tokens_total{engine="0"} 1.7e308\nvllm:prompt_tokens_total{engine="1"} 1.7e308\n'
    assert read(page).prompt_tokens is None


def test_megabytes_in_one_label_do_not_hide_the_lines_after_it() -> None:
    """case d08"""
    page = b'x{config="' + b"y" * 3_000_000 + b'"} 1\nvllm:num_requests_running 4\n'
    assert parse(page, 1.0).running == 4.0


@pytest.mark.parametrize("piece_bytes", [1000, MAX_LINE_BYTES, 10 * MAX_LINE_BYTES])
def test_a_wanted_line_of_unreasonable_length_is_rejected_whole(piece_bytes: int) -> None:
    """case d08"""
    page = b'vllm:cache_config_info{block_size="16",x="' + b"y" * 300_000 + b'"} 1\nvllm:num_requests_running 4\n'
    reader = PageReader()
    for start in range(0, len(page), piece_bytes):
        reader.feed(page[start : start + piece_bytes])
    sample = reader.finish(1.0)
    assert (sample.running, sample.block_size_tokens, sample.rejected_values) == (4.0, None, 1)


def test_more_series_than_any_server_has_are_not_kept_and_their_sum_is_unknown() -> None:
    """case d08"""
    page = "vllm:num_requests_waiting 1\n" + "".join(
        f'vllm:num_requests_running{{model_name="m{n}"}} 1\n' for n in range(MAX_ROWS + 5)
    )
    sample = read(page)
    assert (sample.running, sample.waiting, sample.truncated) == (None, 1.0, True)
    assert len(sample.models) < MAX_ROWS


CUT = 'vllm:num_requests_waiting 1\nvllm:num_requests_running{engine="0"} 9\n'


@pytest.mark.parametrize(
    ("rest", "running"),
    [
        ('vllm:num_requests_running{engine="1"} 1', None),  # a number may go on: 1 of 100
        ('vllm:num_requests_running{engine="1', None),
        ("vllm:num_requests_run", None),  # cannot tell what it was going to be
        ("", None),
        ("# HELP vllm:num", 9.0),  # the next metric has begun
        ('huge{label="yyy', 9.0),
        ("vllm:num_requests_waiting_by_reason{", 9.0),
    ],
)
def test_of_a_cut_page_the_metric_that_may_go_on_is_left_out(rest: str, running: float | None) -> None:
    """case d08, case d02"""
    sample = read(CUT + rest, truncated=True)
    assert (sample.running, sample.waiting, sample.truncated) == (running, 1.0, True)


def test_of_a_cut_page_the_histogram_that_may_go_on_is_left_out() -> None:
    """case d08"""
    one = buckets(("0.5", 1), ("+Inf", 4), labels='engine="0",')
    assert read(one + "# HELP next", truncated=True).ttft is not None
    assert read(one, truncated=True).ttft is None
    assert read(one + f"{TTFT}_count 4\n{TTFT}_buck", truncated=True).ttft is None


@pytest.mark.parametrize("after", ["", '"} 1\n'])
def test_a_page_cut_in_or_after_an_overlong_line_keeps_the_metric_before_it(after: str) -> None:
    """case d08"""
    page = 'vllm:num_requests_running{engine="0"} 9\nhuge{label="' + "y" * 5 * MAX_LINE_BYTES + after
    assert read(page, truncated=True).running == 9.0


@pytest.mark.parametrize("counts", [(-1.0, 4.0), (math.nan, 4.0), (1.0, math.nan), (1.0, math.inf)])
def test_a_histogram_is_checked_on_its_own_too(counts: tuple[float, float]) -> None:
    rows: dict[Labels, float] = {(("le", "0.5"),): counts[0], (("le", "+Inf"),): counts[1]}
    assert histogram.build(rows, {(): 1.0}) is None
