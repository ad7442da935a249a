"""What answers behind every arm? Four listeners of one Envoy that give a vLLM server's answers without a model.

The same process serves all arms, and it must never be what limits them; a Python server would. A `buffer` filter makes
it read the whole request before it answers, as a real server does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bench.overhead.bodies import MODEL

MAX_BODY_BYTES = 16 * 1024 * 1024
_PKG = "type.googleapis.com/envoy.extensions"

CHAT = {
    "id": "chatcmpl-bench",
    "object": "chat.completion",
    "created": 1700000000,
    "model": MODEL,
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello."}, "logprobs": None, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 128, "completion_tokens": 2, "total_tokens": 130},
}
COMPLETION = {
    "id": "cmpl-bench",
    "object": "text_completion",
    "created": 1700000000,
    "model": MODEL,
    "choices": [{"index": 0, "text": "Hello.", "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 128, "completion_tokens": 2, "total_tokens": 130},
}
MODELS = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "created": 1700000000, "owned_by": "vllm", "root": MODEL, "parent": None,
              "max_model_len": 131072}],
}  # fmt: skip
# What routers of the SGLang family ask a worker when they meet it.
SERVER_INFO = {"model_id": MODEL, "served_model_name": MODEL, "version": "0.0.0", "dp_size": 1}
MODEL_INFO = {"is_generation": True}
# vLLM's answer to a render call: the prompt as token ids. A fixed one, for a direct response cannot compute.
RENDER = {"request_id": "chatcmpl-bench", "token_ids": list(range(1000, 1128)), "model": MODEL}

_HISTOGRAMS_S = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
)
_HISTOGRAMS = (
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens_total",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
)


def metrics_page(port: int) -> str:
    """An idle vLLM server's metrics page: real names, about as many series as a real one has."""
    label = f'engine="0",model_name="{MODEL}"'
    lines = []
    gauges = {"num_requests_running": 0, "num_requests_waiting": 0, "kv_cache_usage_perc": 0.0}
    for name, number in gauges.items():
        lines += [f"# HELP vllm:{name} {name}.", f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{label}}} {number}"]
    lines.append("# TYPE vllm:cache_config_info gauge")
    lines.append('vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="27000"} 1.0')
    counters = ("prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits", "num_preemptions")
    for name in counters:
        lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{{{label}}} {port}.0"]
    bounds_s = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0]
    bounds = [float(m * 10**e) for e in range(5) for m in (1, 2, 5)]
    for names, edges in ((_HISTOGRAMS_S, bounds_s), (_HISTOGRAMS, bounds)):
        for name in names:
            lines += [f"# HELP vllm:{name} Histogram of {name}.", f"# TYPE vllm:{name} histogram"]
            lines += [f'vllm:{name}_bucket{{engine="0",le="{edge}",model_name="{MODEL}"}} 4.0' for edge in edges]
            lines += [f'vllm:{name}_bucket{{engine="0",le="+Inf",model_name="{MODEL}"}} 4.0']
            lines += [f"vllm:{name}_sum{{{label}}} 4.0", f"vllm:{name}_count{{{label}}} 4.0"]
    handlers = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")
    for handler in handlers:
        lines += [
            f'http_request_duration_seconds_bucket{{handler="{handler}",le="{edge}",method="POST"}} 4.0'
            for edge in bounds_s
        ]
    lines.append("process_start_time_seconds 1.7e+09")
    return "\n".join(lines) + "\n"


def envoy_config(ports: Sequence[int], admin_port: int) -> dict[str, Any]:
    """The bootstrap of the fake servers' Envoy: one listener a server."""
    return {
        "node": {"id": "bench-upstream", "cluster": "bench"},
        "admin": {"address": socket_address(admin_port)},
        "static_resources": {"listeners": [_listener(index, port) for index, port in enumerate(ports)]},
    }


def socket_address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _listener(index: int, port: int) -> dict[str, Any]:
    manager = {
        "@type": f"{_PKG}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": f"server{index}",
        "route_config": {
            "max_direct_response_body_size_bytes": 1024 * 1024,
            "virtual_hosts": [{"name": "vllm", "domains": ["*"], "routes": _routes(port)}],
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.buffer",
                "typed_config": {
                    "@type": f"{_PKG}.filters.http.buffer.v3.Buffer",
                    "max_request_bytes": MAX_BODY_BYTES,
                },
            },
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_PKG}.filters.http.router.v3.Router"},
            },
        ],
    }
    return {
        "name": f"server{index}",
        "address": socket_address(port),
        "per_connection_buffer_limit_bytes": MAX_BODY_BYTES,
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }


def _routes(port: int) -> list[dict[str, Any]]:
    answers: list[tuple[str, str, str]] = [
        ("/v1/chat/completions", "application/json", json.dumps(CHAT)),
        ("/v1/completions", "application/json", json.dumps(COMPLETION)),
        ("/v1/chat/completions/render", "application/json", json.dumps(RENDER)),
        ("/v1/completions/render", "application/json", json.dumps([RENDER])),
        ("/v1/models", "application/json", json.dumps(MODELS)),
        ("/get_server_info", "application/json", json.dumps(SERVER_INFO)),
        ("/server_info", "application/json", json.dumps(SERVER_INFO)),
        ("/get_model_info", "application/json", json.dumps(MODEL_INFO)),
        ("/model_info", "application/json", json.dumps(MODEL_INFO)),
        ("/version", "application/json", json.dumps({"version": "0.0.0"})),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8", metrics_page(port)),
        ("/health", "text/plain", ""),
    ]
    return [_route(*answer) for answer in answers]


def _route(path: str, content_type: str, body: str) -> dict[str, Any]:
    response: dict[str, Any] = {"status": 200}
    if body:
        response["body"] = {"inline_string": body}
    return {
        "match": {"path": path},
        "direct_response": response,
        "response_headers_to_add": [
            {"header": {"key": "content-type", "value": content_type}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        ],
    }
