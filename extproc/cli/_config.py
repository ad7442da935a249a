"""How does a command get its settings, and what does it say when they are wrong?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer
from pydantic import ValidationError

from extproc.cli._port_files import port_problems
from extproc.config import Settings, load
from extproc.config.check import check
from extproc.config.codes import AUTOSCALE_PROFILE
from extproc.config.problems import Severity
from extproc.config.settings import AdminSettings, GrpcSettings


def settings_from(
    envoy: Path | None,
    config: Path | None,
    *,
    listen: str | None = None,
    admin: str | None = None,
    workers: int | None = None,
    strict: bool = False,
) -> Settings:
    """The settings of the one file given, with what the command line overrides. All problems go to stderr.

    Warnings do not keep the service from starting; nor do errors in the parts that are Envoy's, unless `strict`.

    Raises:
        typer.Exit: 1 with errors in the settings (`strict`: with any error), 2 for a file that cannot be read.
        typer.BadParameter: not exactly one file, a file of the other kind, or an address that is none.
    """
    if (envoy is None) == (config is None):
        raise typer.BadParameter("give either --envoy FILE (Envoy's own configuration) or --config FILE (ours)")
    path = envoy or config
    assert path is not None
    loaded = load(path)
    if loaded.settings is not None and workers is not None:  # so that it is checked against Envoy's cluster
        loaded = replace(loaded, settings=override(loaded.settings, listen, None, workers))
    problems = check(loaded)
    for problem in problems:
        typer.echo(f"{problem.severity}: {problem} [{problem.code}]", err=True)
    if not loaded.readable:
        if not path.exists():
            typer.echo("extproc: `extproc init` writes an envoy.yaml to start from", err=True)
        raise typer.Exit(2)
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    ours = any(problem.code == AUTOSCALE_PROFILE.name for problem in errors)
    if loaded.settings is None or ours or (strict and errors):
        typer.echo("extproc: not started, because of the errors above", err=True)
        raise typer.Exit(1)
    if envoy is not None and loaded.kind == "own":
        raise typer.BadParameter(f"{path} is not an envoy.yaml; a file of our own settings goes with --config")
    if config is not None and loaded.kind == "envoy":
        raise typer.BadParameter(f"{path} is an envoy.yaml; it goes with --envoy")
    settings = override(loaded.settings, listen, admin)
    unusable = list(port_problems(loaded, settings))
    for problem in unusable:
        typer.echo(f"{problem.severity}: {problem} [{problem.code}]", err=True)
    if unusable:
        typer.echo("extproc: not started, because of the errors above", err=True)
        raise typer.Exit(1)
    return settings


def override(settings: Settings, listen: str | None, admin: str | None, workers: int | None = None) -> Settings:
    """The settings with what the command line says. Raises typer.BadParameter for an address that is none."""
    update: dict[str, object] = {} if workers is None else {"workers": workers}
    try:
        if listen is not None:
            update["grpc"] = GrpcSettings.model_validate(dict(settings.grpc) | {"listen": listen})
        if admin is not None:
            update["admin"] = AdminSettings.model_validate(dict(settings.admin) | {"listen": admin})
    except ValidationError as error:
        option = "--admin" if "grpc" in update or listen is None else "--listen"
        raise typer.BadParameter(f"{option}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
    return settings.model_copy(update=update)
