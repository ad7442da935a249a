"""The simulated page is read as the recorded one is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from extproc.sim.engine import Engine
from extproc.sim.events import Request
from extproc.sim.metrics_page import MetricsPage, Readings
from extproc.sim.spec import CPU_TINY
from tests.sim.conftest import run_dry

RECORDED = Path(__file__).parents[1] / "golden" / "metrics" / "vllm-0.32-busy.txt"
_HEAD = re.compile(r"^# (HELP|TYPE) (vllm:\S+) (.*)$", re.MULTILINE)


def page(engine: Engine, **more: object) -> str:
    readings = Readings(engine=engine, started_unix_s=1000.0, **more)  # type: ignore[arg-type]
    return MetricsPage("tiny", engine.spec).render(readings).decode()


def series(text: str) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Names and labels of vLLM's series, without values; of the configuration only the names of its labels."""
    found = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.startswith("vllm:") or sample.name.endswith("_created"):
                continue
            if sample.name != "vllm:cache_config_info":
                found.add((sample.name, tuple(sorted(sample.labels.items()))))
    return found


def heads(text: str) -> set[tuple[str, str, str]]:
    return {match.groups() for match in _HEAD.finditer(text) if not match[2].endswith("_created")}


def test_names_labels_and_buckets_are_those_of_a_real_server() -> None:
    """Same model name, same longest prompt: not one series more or less."""
    assert series(page(Engine(CPU_TINY))) == series(RECORDED.read_text())


def test_help_and_type_lines_are_those_of_a_real_server() -> None:
    assert heads(page(Engine(CPU_TINY))) == heads(RECORDED.read_text())


def test_the_labels_of_the_configuration_are_among_those_of_a_real_server() -> None:
    labels = []
    for text in (page(Engine(CPU_TINY)), RECORDED.read_text()):
        (family,) = [f for f in text_string_to_metric_families(text) if f.name == "vllm:cache_config_info"]
        labels.append(family.samples[0].labels)
    ours, recorded = labels
    assert set(ours) <= set(recorded)
    assert ours["num_gpu_blocks"] == recorded["num_gpu_blocks"] == "32768"
    assert ours["block_size"] == recorded["block_size"] == "32"


def values(text: str) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if len(sample.labels) <= 2
    }


def test_the_page_counts_what_the_engine_did() -> None:
    engine = Engine(CPU_TINY)
    hashes = tuple(range(1, 11))
    for n in range(2):
        engine.submit(Request(str(n), 330, 5, hashes), float(n))
        run_dry(engine)
    now = values(page(engine))
    assert now["vllm:prompt_tokens_total"] == 660
    assert now["vllm:prefix_cache_queries_total"] == 660
    assert now["vllm:prefix_cache_hits_total"] == 320
    assert now["vllm:prompt_tokens_cached_total"] == 320
    assert now["vllm:generation_tokens_total"] == 10
    assert now["vllm:time_to_first_token_seconds_count"] == 2
    assert now["vllm:inter_token_latency_seconds_count"] == 8
    assert now["vllm:request_prefill_time_seconds_count"] == 2
    assert now["vllm:request_prefill_kv_computed_tokens_sum"] == 340
    assert now["process_start_time_seconds"] == 1000.0


def test_usage_is_of_the_blocks_that_can_be_held() -> None:
    """The recorded page shows 35 blocks in use of 32,768 - 1."""
    engine = Engine(CPU_TINY)
    engine.submit(Request("a", 35 * 32, 2), 0.0)
    engine.next_event_at()
    assert values(page(engine))["vllm:kv_cache_usage_perc"] == pytest.approx(0.0010681478316598714)


def test_a_sleeping_engine_says_so() -> None:
    lines = page(Engine(CPU_TINY), asleep=True).splitlines()
    assert 'vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} 0.0' in lines


def test_a_model_name_with_quotes_stays_one_label() -> None:
    engine = Engine(CPU_TINY)
    text = MetricsPage('a"b\\c', CPU_TINY).render(Readings(engine=engine, started_unix_s=0.0)).decode()
    names = {
        s.labels["model_name"]
        for f in text_string_to_metric_families(text)
        for s in f.samples
        if s.labels.get("model_name")
    }
    assert names == {'a"b\\c'}
