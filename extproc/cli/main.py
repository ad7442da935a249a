"""`extproc`: every command, and what they have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from extproc import __version__
from extproc.cli.calibrate import calibrate
from extproc.cli.check import check
from extproc.cli.demo import demo
from extproc.cli.drain import drain, undrain
from extproc.cli.explain import explain
from extproc.cli.init import init
from extproc.cli.scale import scale
from extproc.cli.serve import serve
from extproc.cli.simulate import simulate
from extproc.cli.top import top
from extproc.cli.up import up
from extproc.cli.vllm_sim import vllm_sim

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


# In the order of a user's way: try, configure, run.
app.command("demo")(demo)
app.command("init")(init)
app.command("up")(up)
app.command("check")(check)
app.command("serve")(serve)
app.command("top")(top)
app.command("explain")(explain)
app.command("drain")(drain)
app.command("undrain")(undrain)
app.command("scale")(scale)
app.command("vllm-sim")(vllm_sim)
app.command("simulate")(simulate)
app.command("calibrate")(calibrate)


def main() -> None:
    app()
