"""`extproc init`: which configuration does one start with, in front of one's own servers?

Exit status: 0 written, 1 not written (there is a file already, it cannot be written, interrupted), 2 mistyped.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from extproc.cli._fail import fail
from extproc.config.starter.kubernetes import NAMESPACE, Cluster
from extproc.config.starter.place import Place, listener
from extproc.config.starter.place import servers as servers_of
from extproc.config.starter.wish import USUAL, Shape, Wish, WishError, settle
from extproc.scheduling.profiles import PROFILES

T = TypeVar("T")
_PORTS, _WHAT, _KUBERNETES = "Ports", "What is written", "Kubernetes"
_FILE, _STDOUT = Path("envoy.yaml"), Path("-")


def init(
    server: Annotated[
        list[str] | None,
        typer.Option("--server", "-s", metavar="HOST:PORT", help="A vLLM server; may be repeated, or hold several."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Where to write it; - prints it. With --kubernetes a folder.",
            show_default=f"{_FILE}, or the namespace",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
    probe: Annotated[bool, typer.Option(help="Ask each server for its models and its load, and tell.")] = True,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"The rule that chooses: {', '.join(PROFILES)}.",
            show_default="cache-aware",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    shape: Annotated[
        Shape, typer.Option(help="What Envoy sends of a request, and when; docs/envoy.md.", rich_help_panel=_WHAT)
    ] = Shape.BODY_FIRST,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A model that all servers serve, if they do not tell; may be repeated. Kubernetes: the one to serve.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Holds the servers' API key (vLLM's --api-key), with which they are asked for their models.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    servers_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Servers come and go: list them in this file instead, which is followed while all runs.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    autoscale: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="MOST",
            help="Recommend how many servers there should be, up to so many. Kubernetes: KEDA carries it out.",
            rich_help_panel=_WHAT,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(min=1, max=64, help="Processes of extproc, for several cores.", rich_help_panel=_WHAT),
    ] = 1,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[IP:]PORT",
            help="Where Envoy takes clients' requests.",
            show_default=USUAL["listen"].text,
            rich_help_panel=_PORTS,
        ),
    ] = None,
    grpc: Annotated[
        str | None,
        typer.Option(
            metavar="[IP:]PORT",
            help="Where extproc takes Envoy's calls.",
            show_default=USUAL["grpc"].text,
            rich_help_panel=_PORTS,
        ),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="[IP:]PORT",
            help="extproc's status, metrics and drains.",
            show_default=USUAL["admin"].text,
            rich_help_panel=_PORTS,
        ),
    ] = None,
    envoy_admin: Annotated[
        str | None,
        typer.Option(
            metavar="[IP:]PORT",
            help="Envoy's own statistics.",
            show_default=USUAL["envoy-admin"].text,
            rich_help_panel=_PORTS,
        ),
    ] = None,
    kubernetes: Annotated[
        bool,
        typer.Option(
            "--kubernetes", help="Write manifests instead: a folder for kubectl apply -k.", rich_help_panel=_KUBERNETES
        ),
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Where all of it runs.", show_default=NAMESPACE, rich_help_panel=_KUBERNETES),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="REF", help="extproc's image, as your cluster finds it.", rich_help_panel=_KUBERNETES),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="vLLM runs there already, behind this Service: start none.",
            rich_help_panel=_KUBERNETES,
        ),
    ] = None,
) -> None:
    """Write a complete envoy.yaml for your vLLM servers, read by Envoy and by extproc; or manifests. On a terminal it
    asks for what is not given. Nothing is overwritten without --force."""
    given = {"listen": listen, "grpc": grpc, "admin": admin, "envoy-admin": envoy_admin}
    models = tuple(name.strip() for text in model or () for name in text.split(",") if name.strip())
    say = Console(stderr=out == _STDOUT, soft_wrap=True, highlight=False)
    try:
        if kubernetes:
            elsewhere = {"server": server, "api-key-file": api_key_file, "servers-file": servers_file, **given}
            _refuse(elsewhere, "does not go with --kubernetes; docs/kubernetes.md tells where it is set there")
            odd = {"shape": shape is not Shape.BODY_FIRST or None, "workers": workers > 1 or None}
            _refuse(odd, "does not go with --kubernetes")
            _write_manifests(say, out, force, namespace, image, service, models, profile, autoscale)
            return
        _refuse({"namespace": namespace, "image": image, "service": service}, "goes with --kubernetes only")
        out = out or _FILE
        _look_before([out] if servers_file is None else [out, servers_file], force)
        ports = {name: _option(name, text, listener) for name, text in given.items() if text is not None}
        wish = Wish(  # what does not fit together is told before anything is asked
            (),
            settle((), ports)[0],
            profile=profile,
            shape=shape,
            models=models,
            api_key_file=None if api_key_file is None else str(_readable(api_key_file)),
            max_servers=autoscale,
            # extproc may be started in another folder.
            servers_file=None if servers_file is None else str(servers_file.absolute()),
            workers=workers,
        )
        wish, found = _with_servers(say, wish, server or [], ports, probe)
    except WishError as error:
        raise typer.BadParameter(str(error), param_hint=f"--{error.option}") from None
    _write(say, wish, out, servers_file, force=force)
    if out != _STDOUT:
        from extproc.cli._init_view import tell_next

        tell_next(say, wish, out, [*found, *models])


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Raises WishError for the first of them that is given."""
    for name, value in options.items():
        if value is not None:
            raise WishError(name, why)


def _write_manifests(
    say: Console,
    out: Path | None,
    force: bool,
    namespace: str | None,
    image: str | None,
    service: str | None,
    models: tuple[str, ...],
    profile: str | None,
    autoscale: int | None,
) -> None:
    """Raises WishError, typer.BadParameter, typer.Exit."""
    from extproc.cli._init_kubernetes import write_folder

    if len(models) > 1:
        raise WishError("model", "one is served by a vLLM; give one")
    model = models[0] if models else None
    wish = Cluster(namespace or NAMESPACE, image, service, model, profile, autoscale)
    if out == _STDOUT:
        raise WishError("out", "is a folder with --kubernetes; name one")
    write_folder(say, wish, out or Path(wish.namespace), force=force)


def _look_before(files: list[Path], force: bool) -> None:
    """Before anything is asked: could these files be written? Raises typer.Exit, typer.BadParameter."""
    if len(files) == 2 and files[0].absolute() == files[1].absolute():
        raise typer.BadParameter("is the file of --out too; name another", param_hint="--servers-file")
    for file, option in zip(files, ("--out", "--servers-file"), strict=False):
        if file == _STDOUT and option == "--out":
            continue
        if file.is_dir():
            raise typer.BadParameter(f"{file} is a folder; name a file in it", param_hint=option)
        if not file.parent.is_dir():
            raise typer.BadParameter(f"there is no folder {file.parent}; make it first", param_hint=option)
        if file.exists() and not force:
            fail(f"{file} is there already and stays as it is; --force overwrites it, {option} names another", 1)


def _readable(file: Path) -> Path:
    """Its absolute path: extproc may be started in another folder. Raises typer.BadParameter."""
    if not file.is_file():
        raise typer.BadParameter(f"there is no file {file}", param_hint="--api-key-file")
    return file.absolute()


def _with_servers(
    say: Console, wish: Wish, texts: list[str], ports: dict[str, Place], probe: bool
) -> tuple[Wish, list[str]]:
    """The wish with the servers, given or asked for, and the models that were found there. `ports`: those given.

    Raises WishError, typer.BadParameter, typer.Abort."""
    from extproc.cli._init_view import tell_servers, warn_of_taken

    asks = not texts
    if asks and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(
            "give your vLLM servers, as --server 10.0.0.1:8000 --server 10.0.0.2:8000 (there is no terminal to ask at)",
            param_hint="--server",
        )
    if asks:
        say.print("Your vLLM servers, as [bold]host:port[/] with blanks between:")
        servers = _ask("servers", "127.0.0.1:8000", lambda text: servers_of([text]))
    else:
        servers = _option("server", texts, servers_of)
    found = tell_servers(say, servers, wish.api_key_file, wish.models) if probe else []
    if asks and "listen" not in ports:
        usual = settle(servers, ports)[0]["listen"].text
        ports = {**ports, "listen": _ask("Where clients reach Envoy", usual, listener)}
    settled, moved = settle(servers, ports)
    for line in moved:
        say.print(f"[yellow]note:[/] {escape(line)}")
    wish = replace(wish, servers=servers, ports=settled)
    warn_of_taken(say, settled)
    return wish, found


def _option(name: str, text: str | list[str], read: Callable[..., T]) -> T:
    try:
        return read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"--{name}") from None


def _ask(what: str, default: str, read: Callable[[str], T]) -> T:
    """Asked again until the answer can be read. Raises typer.Abort at the end of input."""
    while True:
        answer: str = typer.prompt(what, default=default, err=True)
        try:
            return read(answer)
        except ValueError as error:
            typer.echo(f"  {error}", err=True)


def _write(say: Console, wish: Wish, out: Path, servers_file: Path | None, *, force: bool) -> None:
    from extproc import __version__
    from extproc.cli._shipped import shipped
    from extproc.config.check import check
    from extproc.config.starter import envoy_yaml

    name = "envoy.yaml" if out == _STDOUT else shlex.quote(out.name)
    text = envoy_yaml.envoy_yaml(shipped(envoy_yaml.source(wish)), wish, name, __version__)
    for problem in check(text, name):  # none is known; a shipped file may have been changed
        typer.echo(f"{problem.severity}: {problem} [{problem.code}]", err=True)
    if servers_file is not None:
        _put(servers_file, envoy_yaml.servers_file(wish), force)
        say.print(f"wrote [bold]{escape(str(servers_file))}[/]")
    if out == _STDOUT:
        sys.stdout.write(text)
        return
    _put(out, text, force)
    say.print(f"wrote [bold]{escape(str(out))}[/]")


def _put(file: Path, text: str, force: bool) -> None:
    """Raises typer.Exit: it cannot be written, or has come into being meanwhile."""
    from extproc import whole_file

    try:
        if force:
            whole_file.replace(file, text.encode())
        else:
            with file.open("x", encoding="utf-8") as new:
                new.write(text)
    except OSError as error:
        fail(f"cannot write {file}: {error.strerror}", 1)
