"""`extproc`: every command, and what they have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from extproc import __version__
from extproc.cli.serve import serve

app = typer.Typer(
    name="extproc",
    help="Routes LLM requests to a fleet of vLLM servers, as an external processor of Envoy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"extproc {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.command("serve")(serve)


def main() -> None:
    app()
