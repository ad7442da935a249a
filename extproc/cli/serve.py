"""`extproc serve`: the service itself."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from extproc.cli._fail import fail
from extproc.cli._options import LOG_FORMAT_HELP, LogFormat, LogLevel


def serve(
    envoy: Annotated[Path | None, typer.Option("--envoy", help="Envoy's own configuration (envoy.yaml).")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="A configuration file of the service's own.")] = None,
    listen: Annotated[str | None, typer.Option(help="Overrides grpc.listen (host:port).")] = None,
    admin: Annotated[str | None, typer.Option(help="Overrides admin.listen (host:port).")] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Overrides workers: processes that answer Envoy, each on a port of its own."),
    ] = None,
    reload: Annotated[
        bool, typer.Option(help="Follow changes of the servers that FILE lists, without a restart.")
    ] = True,
    log_level: Annotated[LogLevel, typer.Option(help="How much is logged.")] = LogLevel.INFO,
    log_format: Annotated[LogFormat, typer.Option(help=LOG_FORMAT_HELP)] = LogFormat.TEXT,
) -> None:
    """Run the service in front of the pools that FILE describes.

    Give --envoy with the file your Envoy runs with, or --config with a file of the same schema. When the servers in it
    change they are followed; what else changes counts after a restart, and is named in the log. SIGTERM or Ctrl-C
    stops it in order: not ready, then no new requests, then the open ones end; a second signal exits at once.

    With --workers N there are N processes, for several cores: docs/workers.md.
    """
    # Here, so that the other commands (and --help) need not wait for gRPC.
    from extproc.app import App
    from extproc.cli import _config, _logs, _run
    from extproc.cli._processes import app_of
    from extproc.config.load import Kind
    from extproc.discovery.config_file import Followed
    from extproc.server.listener import ListenError
    from extproc.workers.crew import CrewError

    settings = _config.settings_from(envoy, config, listen=listen, admin=admin, workers=workers)
    path = envoy or config
    assert path is not None, "settings_from has seen to it"
    kind: Kind = "own" if envoy is None else "envoy"
    followed = Followed(path, kind, partial(_config.override, listen=listen, admin=admin, workers=workers))
    _logs.setup_logging(log_level, log_format)
    apps: list[App] = []

    def at_once() -> None:
        for app in apps:
            app.front.kill()

    async def main(stop: asyncio.Event) -> None:
        app = app_of(settings, log_level, log_format, followed=followed if reload else None)
        apps.append(app)
        _run.tune_gc()
        await app.run(stop)

    try:
        _run.run_until_signal(main, at_once=at_once)
    except ListenError as error:
        fail(str(error), 1)
    except ExceptionGroup as group:
        if group.subgroup(CrewError) is None:
            raise
        fail("no worker can be kept running; why stands in the log", 1)
