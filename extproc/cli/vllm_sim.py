"""`extproc vllm-sim`: which simulated vLLM servers should run here?"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from extproc.cli._logs import setup_logging
from extproc.cli._options import LOG_FORMAT_HELP, LogFormat, LogLevel
from extproc.sim.answering import AnswerOptions
from extproc.sim.api import ServerOptions
from extproc.sim.faults import Faults
from extproc.sim.request_log import RequestLog
from extproc.sim.server import SimServer
from extproc.sim.spec import PRESETS, EngineSpec

Preset = Enum("Preset", {name: name for name in PRESETS}, type=str)  # type: ignore[misc]

_ENGINE = "Engine (default: the preset's)"
_FAULTS = "Faults (also at run time: POST /sim/faults)"


def vllm_sim(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="First port; 0 takes free ones.")] = 8000,
    count: Annotated[int, typer.Option(min=1, help="Servers to run, on consecutive ports.")] = 1,
    model: Annotated[
        list[str] | None, typer.Option(help="Served model name; may be repeated, the first is on the metrics page.")
    ] = None,
    adapter: Annotated[
        list[str] | None, typer.Option(help="LoRA adapter loaded from the start; may be repeated.")
    ] = None,
    preset: Annotated[Preset, typer.Option(help="Speed and size of the engine.")] = Preset("a100-8b"),
    name: Annotated[str, typer.Option(help="Value of the x-vllm-sim header; the port is appended.")] = "sim",
    seed: Annotated[int, typer.Option(help="Of answers, jitter and faults by ratio.")] = 0,
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, help="vLLM's --shutdown-timeout, seconds. 0: streams fall silent on SIGTERM.")
    ] = 0.0,
    max_queued_requests: Annotated[
        int | None, typer.Option(min=0, help="Answer 503 while so many requests wait. Default: no limit.")
    ] = None,
    mean_answer_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Answers end by themselves after so many tokens on average. Default: at max_tokens."),
    ] = None,
    default_answer_tokens: Annotated[
        int, typer.Option(min=1, help="Length of an answer whose request sets no limit.")
    ] = 128,
    cached_tokens: Annotated[bool, typer.Option(help="Tell usage.prompt_tokens_details.cached_tokens.")] = True,
    stream_interval: Annotated[
        int, typer.Option(min=1, help="vLLM's --stream-interval: tokens of a chunk, after the first.")
    ] = 1,
    render: Annotated[bool, typer.Option(help="Answer render calls; refused otherwise (403).")] = False,
    record: Annotated[bool, typer.Option(help="Keep what arrives, for GET /sim/requests.")] = False,
    request_log: Annotated[
        Path | None, typer.Option(help="Append a line of JSON for each inference request that arrives or ends.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="How much is logged.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help=LOG_FORMAT_HELP)] = LogFormat.TEXT,
    block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a KV block.", rich_help_panel=_ENGINE)
    ] = None,
    num_gpu_blocks: Annotated[int | None, typer.Option(min=2, help="KV blocks.", rich_help_panel=_ENGINE)] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(min=1, help="Most requests running at once.", rich_help_panel=_ENGINE)
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens computed in a step.", rich_help_panel=_ENGINE)
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=2, help="Most tokens of prompt and answer.", rich_help_panel=_ENGINE)
    ] = None,
    prefix_caching: Annotated[bool, typer.Option(help="Prefix cache.", rich_help_panel=_ENGINE)] = True,
    base_step_s: Annotated[float | None, typer.Option(help="Seconds of every step.", rich_help_panel=_ENGINE)] = None,
    per_prefill_token_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds a prompt token computed.", rich_help_panel=_ENGINE)
    ] = None,
    per_prefill_token_context_s: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds a prompt token and token it attends to.", rich_help_panel=_ENGINE),
    ] = None,
    per_decode_seq_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds a sequence decoded in a step.", rich_help_panel=_ENGINE)
    ] = None,
    per_decode_context_token_s: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds a token of context of these, in a step.", rich_help_panel=_ENGINE),
    ] = None,
    per_request_s: Annotated[
        float | None, typer.Option(min=0, help="Seconds a request admitted.", rich_help_panel=_ENGINE)
    ] = None,
    per_prompt_token_s: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds a prompt token admitted, cached or not.", rich_help_panel=_ENGINE),
    ] = None,
    jitter: Annotated[
        float, typer.Option(min=0, max=0.99, help="Steps vary by this ratio, up and down.", rich_help_panel=_ENGINE)
    ] = 0.0,
    slow_factor: Annotated[
        float, typer.Option(min=0.001, help="Steps take so much longer.", rich_help_panel=_FAULTS)
    ] = 1.0,
    error_status: Annotated[
        int | None, typer.Option(min=400, max=599, help="Answer with this status.", rich_help_panel=_FAULTS)
    ] = None,
    error_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="... this share of the requests.", rich_help_panel=_FAULTS)
    ] = 1.0,
    retry_after: Annotated[
        int | None, typer.Option(min=0, help="Seconds in the retry-after header.", rich_help_panel=_FAULTS)
    ] = None,
    hang_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Never answer this share of the requests.", rich_help_panel=_FAULTS)
    ] = 0.0,
    reset_ratio: Annotated[
        float, typer.Option(min=0, max=1, help="Reset this share of the connections.", rich_help_panel=_FAULTS)
    ] = 0.0,
    hang_after_tokens: Annotated[
        int | None, typer.Option(min=0, help="Streams fall silent after so many.", rich_help_panel=_FAULTS)
    ] = None,
    reset_after_tokens: Annotated[
        int | None, typer.Option(min=0, help="Streams are reset after so many.", rich_help_panel=_FAULTS)
    ] = None,
    metrics: Annotated[
        str, typer.Option(help="ok, error, hang, garbage, empty, huge or frozen.", rich_help_panel=_FAULTS)
    ] = "ok",
    health: Annotated[str, typer.Option(help="ok, error or hang.", rich_help_panel=_FAULTS)] = "ok",
    cold_start: Annotated[
        float, typer.Option(min=0, help="Seconds of 503 on everything at first.", rich_help_panel=_FAULTS)
    ] = 0.0,
    cold_port_closed: Annotated[
        bool, typer.Option(help="Refuse connections for that long instead.", rich_help_panel=_FAULTS)
    ] = False,
) -> None:
    """Run simulated vLLM servers: vLLM's scheduling, API, metrics and shutdown, with modelled times, without a GPU."""
    engine = {
        "block_size_tokens": block_size,
        "num_gpu_blocks": num_gpu_blocks,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        "enable_prefix_caching": prefix_caching,
        "base_step_s": base_step_s,
        "per_prefill_token_s": per_prefill_token_s,
        "per_prefill_token_context_s": per_prefill_token_context_s,
        "per_decode_seq_s": per_decode_seq_s,
        "per_decode_context_token_s": per_decode_context_token_s,
        "per_request_s": per_request_s,
        "per_prompt_token_s": per_prompt_token_s,
        "jitter_ratio": jitter,
    }
    faults: dict[str, Any] = {
        "slow_factor": slow_factor,
        "error_status": error_status,
        "error_ratio": error_ratio,
        "retry_after_s": retry_after,
        "hang_ratio": hang_ratio,
        "reset_ratio": reset_ratio,
        "hang_after_tokens": hang_after_tokens,
        "reset_after_tokens": reset_after_tokens,
        "metrics": metrics,
        "health": health,
        "cold_start_s": cold_start,
    }
    try:
        spec = _spec(PRESETS[preset.value], engine)
        switches = Faults().changed(faults)
        written = RequestLog(request_log) if request_log is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    except OSError as error:
        raise typer.BadParameter(f"--request-log {request_log}: {error.strerror}") from None
    setup_logging(log_level, log_format)
    options = ServerOptions(
        models=tuple(model or ["sim"]),
        adapters=tuple(adapter or ()),
        answers=AnswerOptions(
            default_tokens=default_answer_tokens,
            mean_tokens=mean_answer_tokens,
            tell_cached_tokens=cached_tokens,
            seed=seed,
            stream_interval=stream_interval,
        ),
        max_queued_requests=max_queued_requests,
        record=record,
        request_log=written,
        render=render,
    )
    servers = [
        SimServer(
            f"{name}-{port + n if port else n}",
            spec,
            host,
            port + n if port else 0,
            options=options,
            faults=switches,
            shutdown_timeout_s=shutdown_timeout,
            cold_port_closed=cold_port_closed,
            seed=seed + n,
        )
        for n in range(count)
    ]
    try:
        _run(servers)
    except OSError as error:
        typer.echo(f"cannot listen: {error}", err=True)
        raise typer.Exit(1) from None


def _spec(preset: EngineSpec, values: dict[str, Any]) -> EngineSpec:
    """The preset with what was given. Raises ValueError if they do not fit together."""
    known = {f.name for f in fields(EngineSpec)}
    return replace(preset, **{name: value for name, value in values.items() if value is not None and name in known})


def _run(servers: list[SimServer]) -> None:
    """Serve until all have exited. uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(servers))
    else:
        uvloop.run(_serve(servers))


async def _serve(servers: list[SimServer]) -> None:
    """SIGTERM: what vLLM does. SIGINT, or SIGTERM again: stop at once."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        if terminated:
            stop.set()
        terminated = True
        for server in servers:
            server.terminate()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    try:
        for server in servers:
            await server.start()
            typer.echo(f"{server.name} {server.url}")
        exited = asyncio.create_task(_all_exited(servers), name="all exited")
        exited.add_done_callback(lambda _: stop.set())
        await stop.wait()
        exited.cancel()
    finally:
        for server in servers:
            await server.stop()


async def _all_exited(servers: list[SimServer]) -> None:
    for server in servers:
        await server.wait_exited()


if __name__ == "__main__":
    typer.run(vllm_sim)
