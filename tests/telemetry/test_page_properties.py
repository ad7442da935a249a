"""Properties of the page parser that hold for every page."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from extproc.pool.sample import Histogram, LoadSample
from extproc.telemetry.exposition import name_of, read_sample
from extproc.telemetry.vllm_page import PageReader, parse

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics"
PAGE = (GOLDEN / "vllm-0.32-dp2-busy.txt").read_bytes()
# The lines that are read, and a few others: mutations of these are worth more than of 60 KB that are skipped.
CORE = (
    b"\n".join(
        line
        for line in PAGE.split(b"\n")
        if line.startswith(
            (b"vllm:num_requests", b"vllm:kv_", b"vllm:time_to_first", b"vllm:engine_sleep", b"process_start")
        )
    )
    + b'\nvllm:lora_requests_info{running_lora_adapters="a,b",waiting_lora_adapters=""} 1.7e9\n'
)
TOKENS = [
    b"NaN",
    b"-1",
    b"+Inf",
    b"1e999",
    b"1.7",
    b"\n",
    b'"',
    b"\\",
    b"{",
    b"}",
    b" ",
    b",",
    b"#",
    b"_",
    b"\x00",
    b"\xff",
]


def check(sample: LoadSample) -> None:
    for field in dataclasses.fields(sample):
        value = getattr(sample, field.name)
        if isinstance(value, float | int):
            assert math.isfinite(value), field.name
            assert value >= 0, field.name
        elif isinstance(value, Histogram):
            assert list(value.bounds_s) == sorted(set(value.bounds_s))
            assert value.bounds_s[-1] == math.inf
            assert all(map(math.isfinite, value.counts))
            assert list(value.counts) == sorted(value.counts)
            assert value.counts[0] >= 0
            assert 0 <= value.sum_s < math.inf
    assert sample.kv_usage_ratio is None or sample.kv_usage_ratio <= 1


@given(st.binary(max_size=400), st.booleans())
def test_no_bytes_raise(page: bytes, truncated: bool) -> None:
    check(parse(page, 1.0, truncated=truncated))


@given(
    st.lists(
        st.tuples(st.integers(0, len(CORE)), st.integers(0, 40), st.sampled_from(TOKENS) | st.binary(max_size=8)),
        min_size=1,
        max_size=12,
    ),
    st.booleans(),
)
def test_no_mutation_of_a_real_page_raises_or_gives_an_impossible_number(
    edits: list[tuple[int, int, bytes]], truncated: bool
) -> None:
    """case d05"""
    page = CORE
    for at, removed, inserted in edits:
        page = page[:at] + inserted + page[at + removed :]
    check(parse(page, 1.0, truncated=truncated))


@given(st.integers(0, len(PAGE)))
@settings(max_examples=50)
def test_a_page_cut_anywhere_gives_the_full_pages_values_or_unknown(at: int) -> None:
    """case d08"""
    full, cut = parse(PAGE, 1.0), parse(PAGE[:at], 1.0, truncated=True)
    check(cut)
    for field in dataclasses.fields(LoadSample):
        if field.name not in ("truncated", "engines", "models"):
            assert getattr(cut, field.name) in (None, getattr(full, field.name)), field.name


@given(st.randoms(use_true_random=False))
@settings(max_examples=20)
def test_the_order_of_the_lines_does_not_matter(rng: random.Random) -> None:
    """case d02"""
    lines = (PAGE + CORE.replace(b"} 4.0", b"} NaN", 1)).split(b"\n")
    rng.shuffle(lines)
    assert parse(b"\n".join(lines), 1.0) == parse(PAGE + CORE.replace(b"} 4.0", b"} NaN", 1), 1.0)


@given(st.lists(st.integers(0, len(PAGE)), max_size=30))
@settings(max_examples=30)
def test_any_cutting_into_pieces_gives_the_same_sample(cuts: list[int]) -> None:
    reader = PageReader()
    ends = [*sorted(cuts), len(PAGE)]
    for start, end in zip([0, *ends], ends, strict=False):
        reader.feed(PAGE[start:end])
    assert reader.finish(1.0) == parse(PAGE, 1.0)


@given(st.integers(0, len(PAGE)), st.lists(st.integers(0, len(PAGE)), max_size=5))
@settings(max_examples=30)
def test_any_cutting_into_pieces_of_a_truncated_page_gives_the_same_sample(at: int, cuts: list[int]) -> None:
    page = PAGE[:at]
    reader = PageReader()
    ends = [*sorted(min(cut, at) for cut in cuts), at]
    for start, end in zip([0, *ends], ends, strict=False):
        reader.feed(page[start:end])
    assert reader.finish(1.0, truncated=True) == parse(page, 1.0, truncated=True)


def test_every_line_of_the_real_pages_is_read_as_the_prometheus_library_reads_it() -> None:
    for path in sorted(GOLDEN.glob("*.txt")):
        text = path.read_text()
        library = {
            (sample.name.removesuffix("_total"), tuple(sorted(sample.labels.items()))): float(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        ours = {}
        for line in text.encode().splitlines():
            name = name_of(line)
            if name:
                read = read_sample(line)
                assert read is not None, line
                ours[name.decode().removesuffix("_total"), read[0]] = read[1]
        assert ours == library, path.name


label_values = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True), label_values, max_size=4),
    st.floats(0),
)
def test_labels_and_values_survive_being_written_and_read(labels: dict[str, str], value: float) -> None:
    def escape(text: str) -> str:
        return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

    line = "m{" + ",".join(f'{name}="{escape(text)}"' for name, text in labels.items()) + "} " + repr(value)
    assert read_sample(line.encode()) == (tuple(sorted(labels.items())), value)
