"""What does a simulated engine say on its metrics page?

The families, label sets, help texts and buckets of the page that a real vLLM 0.32 gives, in its order, but without the
`_created` series and with few of the Python process's own. What the model has no notion of (external caches,
multi-modal cache, FLOP counts) is 0, as it is on a server that does not use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from extproc.sim.engine import Engine
from extproc.sim.histogram import Histogram
from extproc.sim.spec import EngineSpec

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Readings:
    """What a page is made of."""

    engine: Engine
    started_unix_s: float
    asleep: bool = False
    rejected: int = 0  # requests refused since the queue was full
    http_requests: Mapping[tuple[str, str, str], int] | None = None  # (handler, method, "2xx") -> requests


_Read = Callable[[Readings], float]
_ReadHistogram = Callable[[Readings], Histogram]

# name, type, help, [(further labels, reading)]
_SCALARS_BEFORE: tuple[tuple[str, str, str, tuple[tuple[str, _Read], ...]], ...] = (
    (
        "estimated_flops_per_gpu_total",
        "counter",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
        (("", lambda r: 0),),
    ),
    (
        "estimated_read_bytes_per_gpu_total",
        "counter",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
        (("", lambda r: 0),),
    ),
    (
        "estimated_write_bytes_per_gpu_total",
        "counter",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
        (("", lambda r: 0),),
    ),
    (
        "num_requests_running",
        "gauge",
        "Number of requests in model execution batches.",
        (("", lambda r: r.engine.running),),
    ),
    (
        "num_requests_waiting",
        "gauge",
        "Number of requests waiting to be processed.",
        (("", lambda r: r.engine.waiting),),
    ),
    (
        "num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' "
        "= deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals "
        "vllm:num_requests_waiting.",
        ((',reason="capacity"', lambda r: r.engine.waiting), (',reason="deferred"', lambda r: 0)),
    ),
    (
        "engine_sleep_state",
        "gauge",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = "
        "1 means sleep level 1; discard_all = 1 means sleep level 2.",
        (
            (',sleep_state="awake"', lambda r: not r.asleep),
            (',sleep_state="weights_offloaded"', lambda r: r.asleep),
            (',sleep_state="discard_all"', lambda r: 0),
        ),
    ),
    (
        "kv_cache_usage_perc",
        "gauge",
        "KV-cache usage. 1 means 100 percent usage.",
        (("", lambda r: r.engine.kv_usage_ratio),),
    ),
    (
        "prefix_cache_queries_total",
        "counter",
        "Prefix cache queries, in terms of number of queried tokens.",
        (("", lambda r: r.engine.stats.prefix_queries),),
    ),
    (
        "prefix_cache_hits_total",
        "counter",
        "Prefix cache hits, in terms of number of cached tokens.",
        (("", lambda r: r.engine.stats.prefix_hits),),
    ),
    (
        "external_prefix_cache_queries_total",
        "counter",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number of queried "
        "tokens.",
        (("", lambda r: 0),),
    ),
    (
        "external_prefix_cache_hits_total",
        "counter",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of cached "
        "tokens.",
        (("", lambda r: 0),),
    ),
    (
        "mm_cache_queries_total",
        "counter",
        "Multi-modal cache queries, in terms of number of queried items.",
        (("", lambda r: 0),),
    ),
    (
        "mm_cache_hits_total",
        "counter",
        "Multi-modal cache hits, in terms of number of cached items.",
        (("", lambda r: 0),),
    ),
    (
        "num_preemptions_total",
        "counter",
        "Cumulative number of preemption from the engine.",
        (("", lambda r: r.engine.stats.preemptions),),
    ),
    (
        "prompt_tokens_total",
        "counter",
        "Number of prefill tokens processed.",
        (("", lambda r: r.engine.stats.prompt_tokens),),
    ),
    (
        "prompt_tokens_by_source_total",
        "counter",
        "Number of prompt tokens by source.",
        (
            (
                ',source="local_compute"',
                lambda r: r.engine.stats.prompt_tokens - r.engine.stats.cached_prompt_tokens,
            ),
            (',source="local_cache_hit"', lambda r: r.engine.stats.cached_prompt_tokens),
            (',source="external_kv_transfer"', lambda r: 0),
        ),
    ),
    (
        "prompt_tokens_cached_total",
        "counter",
        "Number of cached prompt tokens (local + external).",
        (("", lambda r: r.engine.stats.cached_prompt_tokens),),
    ),
    (
        "prompt_tokens_cached_by_source_total",
        "counter",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), "
        "disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to "
        "vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        (
            (',source="device"', lambda r: r.engine.stats.prefix_hits),
            (',source="host"', lambda r: 0),
            (',source="p2p"', lambda r: 0),
            (',source="disk"', lambda r: 0),
            (',source="external_unspecified"', lambda r: 0),
        ),
    ),
    (
        "generation_tokens_total",
        "counter",
        "Number of generation tokens processed.",
        (("", lambda r: r.engine.stats.generation_tokens),),
    ),
)

_HISTOGRAMS: tuple[tuple[str, str, _ReadHistogram], ...] = (
    (
        "request_prompt_tokens",
        "Number of prefill tokens processed.",
        lambda r: r.engine.stats.request_prompt_tokens,
    ),
    (
        "request_generation_tokens",
        "Number of generation tokens processed.",
        lambda r: r.engine.stats.request_generation_tokens,
    ),
    (
        "iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        lambda r: r.engine.stats.step_tokens,
    ),
    (
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        lambda r: r.engine.stats.request_max_tokens,
    ),
    ("request_params_n", "Histogram of the n request parameter.", lambda r: r.engine.stats.choices),
    (
        "request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        lambda r: r.engine.stats.request_max_tokens,
    ),
    (
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        lambda r: r.engine.stats.ttft,
    ),
    (
        "inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        lambda r: r.engine.stats.token_interval,
    ),
    (
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        lambda r: r.engine.stats.mean_token_interval,
    ),
    ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", lambda r: r.engine.stats.e2e),
    (
        "request_queue_time_seconds",
        "Histogram of time spent in WAITING phase for request.",
        lambda r: r.engine.stats.queue,
    ),
    (
        "request_inference_time_seconds",
        "Histogram of time spent in RUNNING phase for request.",
        lambda r: r.engine.stats.inference,
    ),
    (
        "request_prefill_time_seconds",
        "Histogram of time spent in PREFILL phase for request.",
        lambda r: r.engine.stats.prefill,
    ),
    (
        "request_decode_time_seconds",
        "Histogram of time spent in DECODE phase for request.",
        lambda r: r.engine.stats.decode,
    ),
    (
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        lambda r: r.engine.stats.request_preemptions,
    ),
    (
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        lambda r: r.engine.stats.request_computed_tokens,
    ),
)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _head(name: str, kind: str, help_text: str) -> str:
    return f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"


class MetricsPage:
    """The page of one engine. All text but the numbers is made once."""

    def __init__(self, model_name: str, spec: EngineSpec) -> None:
        model = f'model_name="{_escaped(model_name)}"'
        self._model = model
        # Label names are sorted, as on vLLM's page; "engine" before, "source" and "reason" after "model_name".
        self._scalars: list[tuple[str, _Read]] = []
        for name, kind, help_text, series in _SCALARS_BEFORE:
            head = _head(f"vllm:{name}", kind, help_text)
            for labels, read in series:
                self._scalars.append((f'{head}vllm:{name}{{engine="0",{model}{labels}}} ', read))
                head = ""
        self._histograms: list[tuple[str, str, str, _ReadHistogram]] = []
        for name, help_text, read_histogram in _HISTOGRAMS:
            full = f"vllm:{name}"
            self._histograms.append((_head(full, "histogram", help_text), full, model, read_histogram))
        self._bucket_prefixes: dict[str, list[str]] = {}
        tokens = spec.usable_blocks * spec.block_size_tokens
        self._config = (
            _head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
            + f'vllm:cache_config_info{{block_size="{spec.block_size_tokens}",cache_dtype="auto",'
            f'enable_prefix_caching="{spec.enable_prefix_caching}",engine="0",gpu_memory_utilization="0.9",'
            f'kv_cache_size_tokens="{tokens}",num_cpu_blocks="None",num_gpu_blocks="{spec.num_gpu_blocks}",'
            'num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256",sliding_window="None"} 1.0\n'
        )

    def render(self, readings: Readings) -> bytes:
        """The page now."""
        out = [
            _head("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds."),
            f"process_start_time_seconds {readings.started_unix_s!r}\n",
        ]
        out += [f"{prefix}{float(read(readings))!r}\n" for prefix, read in self._scalars]
        out += self._request_counters(readings)
        for head, name, model, read in self._histograms:
            histogram = read(readings)
            prefixes = self._bucket_prefixes.get(name)
            if prefixes is None:
                bounds = [*(repr(bound) for bound in histogram.bounds), "+Inf"]
                prefixes = [f'{name}_bucket{{engine="0",le="{bound}",{model}}} ' for bound in bounds]
                self._bucket_prefixes[name] = prefixes
            cumulative = histogram.cumulative()
            out.append(head)
            out += [f"{prefix}{n}.0\n" for prefix, n in zip(prefixes, cumulative, strict=True)]
            out.append(f'{name}_count{{engine="0",{model}}} {cumulative[-1]}.0\n')
            out.append(f'{name}_sum{{engine="0",{model}}} {histogram.sum!r}\n')
        out.append(self._config)
        if readings.http_requests:
            out.append(
                _head("http_requests_total", "counter", "Total number of requests by method, status and handler.")
            )
            for (handler, method, status), n in readings.http_requests.items():
                out.append(f'http_requests_total{{handler="{handler}",method="{method}",status="{status}"}} {n}.0\n')
        return "".join(out).encode()

    def _request_counters(self, readings: Readings) -> list[str]:
        model = self._model
        success = "vllm:request_success_total"
        out = [_head(success, "counter", "Count of successfully processed requests.")]
        for reason, n in readings.engine.stats.finished.items():
            out.append(f'{success}{{engine="0",finished_reason="{reason}",{model}}} {n}.0\n')
        rejections = "vllm:admission_rejections_total"
        out.append(_head(rejections, "counter", "Number of admission attempts rejected by a queue limit, by reason."))
        out.append(f'{rejections}{{{model},reason="max_num_queued_reqs"}} {readings.rejected}.0\n')
        out.append(f'{rejections}{{{model},reason="max_num_queued_tokens"}} 0.0\n')
        return out
