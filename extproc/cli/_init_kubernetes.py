"""How does `extproc init --kubernetes` write its folder, and what does it say then?"""

from __future__ import annotations

import shlex
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape

from extproc.cli._fail import fail
from extproc.cli._shipped import shipped_folder
from extproc.config.check import check
from extproc.config.starter.kubernetes import Cluster, files

_FOLDER = "kubernetes"  # beside envoy.yaml


def write_folder(say: Console, wish: Cluster, folder: Path, *, force: bool) -> None:
    """Write it and tell what comes next. Raises typer.Exit: something is there already, or it cannot be written."""
    if folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"{folder} is a file; name a folder", param_hint="--out")
    content = files(shipped_folder(_FOLDER), wish)
    there = [path for path in content if (folder / path).exists()]
    if there and not force:
        fail(
            f"{folder / there[0]} is there already and stays as it is; --force overwrites all that is written"
            " here, --out names another folder",
            1,
        )
    try:
        for path, text in content.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"cannot write {error.filename or folder}: {error.strerror}", 1)
    for problem in check(folder / "envoy.yaml"):  # none is known; the shipped file may have been changed
        typer.echo(f"{problem.severity}: {problem} [{problem.code}]", err=True)
    say.print(
        f"wrote [bold]{escape(str(folder))}/[/]: kustomization.yaml and envoy.yaml are yours, the rest is as shipped"
    )
    _tell_next(say, wish, folder)


def _tell_next(say: Console, wish: Cluster, folder: Path) -> None:
    name = shlex.quote(str(folder))
    say.print("\nNext:")
    if wish.image is None:
        say.print("  push an image of extproc to where the cluster finds it, and name it with --image")
    if wish.service is None:
        say.print(f"  [bold]kubectl kustomize {name} | extproc check {name}/envoy.yaml --kubernetes -[/]")
    else:
        say.print(f"  [bold]extproc check {name}/envoy.yaml --kubernetes YOUR-VLLM.yaml[/]")
        say.print("  [dim]your pods need a preStop hook to end without cutting a stream: docs/drain.md[/]")
    say.print(f"  [bold]kubectl apply -k {name}[/]")
    say.print(f"  [bold]kubectl -n {wish.namespace} port-forward service/gateway 8080:80[/]")
