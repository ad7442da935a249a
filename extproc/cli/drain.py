"""`extproc drain` and `extproc undrain`: take a server out without cutting a stream, and bring it back.

Exit status: 0 drained (without --wait: begun), 1 refused (no such endpoint, no victim), 2 mistyped, 3 the deadline
passed first, 4 the drain was cancelled, 5 the service cannot be reached.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extproc.cli._admin import (
    DEFAULT,
    Admin,
    AdminOption,
    AwayError,
    CaOption,
    CertOption,
    KeyOption,
    RefusedError,
    Rights,
    TokenFileOption,
)
from extproc.cli._drain_wait import POLL_S, Exit, Progress, wait
from extproc.cli._fail import fail
from extproc.endpoint import format_host, split_host_port

_AWAY_S, _SELF_AWAY_S = 30.0, 60.0

PoolOption = Annotated[str | None, typer.Option(help="Its pool, where it is in several.")]


def drain(
    endpoint: Annotated[
        str | None, typer.Argument(help="The server's host:port, as the service knows it; an IPv6 one in brackets.")
    ] = None,
    wait_: Annotated[bool, typer.Option("--wait", help="Return when the drain has ended; with its result.")] = False,
    deadline: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Wait no longer for its requests. Default: by what runs there."),
    ] = None,
    pool: PoolOption = None,
    victim: Annotated[
        bool, typer.Option("--victim", help="Name the server that should go, and why; with --wait also drain it.")
    ] = False,
    self_: Annotated[
        bool, typer.Option("--self", help="The server on this machine or in this pod: for preStop and ExecStop.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            envvar="EXTPROC_SELF", help="With --self: its host:port. Default: the variable POD_IP, and --port."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="With --self and POD_IP: the server's port.")] = 8000,
    away: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help=f"How long to bear with a service that is away. Default: {_AWAY_S:g} while waiting,"
            f" {_SELF_AWAY_S:g} with --self, else not at all.",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show all drains.")] = False,
    admin: AdminOption = DEFAULT,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
) -> None:
    """Take a server out: no new requests at once, and the running ones are waited for.

    Exit status: 0 drained (or begun, without --wait), 1 refused, 3 the deadline passed first, 4 cancelled, 5 the
    service cannot be reached.
    """
    if sum((endpoint is not None, victim, self_, list_)) != 1:
        raise typer.BadParameter("give one of: ENDPOINT, --victim, --self, --list")
    at, of = Admin(admin, Rights(token_file, ca, cert, key)), {} if pool is None else {"pool": pool}
    if list_:
        _list(_answer(lambda: at.ask("GET", "/v1/drains", {})), pool)
        return
    if victim:
        chosen = _answer(lambda: at.ask("GET", "/v1/drain-victim", of))
        typer.echo(f"extproc drain: {chosen['endpoint']} of pool {chosen['pool']}: {chosen['why']}", err=True)
        if not wait_:
            typer.echo(chosen["endpoint"])
            return
        endpoint, of = chosen["endpoint"], {"pool": chosen["pool"]}
    who = _own_address(address, port) if endpoint is None else endpoint
    by = {"by": "self"} if self_ else {}
    query = {**of, **by} | ({} if deadline is None else {"deadline_s": f"{deadline:g}"})
    start_away_s = away if away is not None else _SELF_AWAY_S if self_ else 0.0
    first = _answer(lambda: at.drain("POST", who, query), away_s=start_away_s, unknown_too=self_)
    if "warning" in first:
        typer.echo(f"extproc drain: {first['warning']}", err=True)
    if not wait_:
        _console().print(escape(f"{first['endpoint']}: {first['state']}, {first['in_flight']} in flight"))
        return
    bear_s = away if away is not None else _SELF_AWAY_S if self_ else _AWAY_S
    try:
        raise typer.Exit(wait(at, first, of, by=by, away_s=bear_s, progress=Progress()))
    except KeyboardInterrupt:
        typer.echo(f"the drain goes on; extproc undrain {first['endpoint']} ends it", err=True)
        raise typer.Exit(130) from None


def undrain(
    endpoint: Annotated[
        str, typer.Argument(help="The server's host:port, as the service knows it; an IPv6 one in brackets.")
    ],
    pool: PoolOption = None,
    admin: AdminOption = DEFAULT,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
) -> None:
    """Bring a server back that was drained, or is draining."""
    of = {} if pool is None else {"pool": pool}
    at = Admin(admin, Rights(token_file, ca, cert, key))
    answer = _answer(lambda: at.drain("DELETE", endpoint, of))
    if "warning" in answer:
        typer.echo(f"extproc undrain: {answer['warning']}", err=True)
    _console().print(escape(f"{answer['endpoint']}: {answer['state']}"))


def _own_address(address: str | None, port: int) -> str:
    if address is not None:
        try:
            split_host_port(address)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--address") from None
        return address
    ip = os.environ.get("POD_IP")
    if not ip:
        raise typer.BadParameter(
            "--self needs to know which server it is: give --address host:port, or set EXTPROC_SELF, or POD_IP (in a"
            " pod from the downward API, status.podIP)"
        )
    return format_host(ip, port)


def _answer(ask: Callable[[], Any], *, away_s: float = 0.0, unknown_too: bool = False) -> Any:
    """The service's answer, asked for again for `away_s`, also while it does not know the server (`unknown_too`)."""
    until_s = time.monotonic() + away_s
    told = False
    while True:
        problem, code, again = "", Exit.UNREACHABLE, True
        try:
            return ask()
        except AwayError as error:
            problem = str(error)
        except RefusedError as error:
            problem, code, again = str(error), Exit.REFUSED, unknown_too and error.status == 404
        if not again or time.monotonic() >= until_s:
            fail(problem, code)
        if not told:
            typer.echo(f"extproc drain: {problem}; asking again for {away_s:g} s", err=True)
            told = True
        time.sleep(POLL_S)


def _list(drains: list[Mapping[str, Any]], pool: str | None) -> None:
    shown = [each for each in drains if pool in (None, each["pool"])]
    if not shown:
        _console().print("no server is draining or drained")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("endpoint", "pool", "phase", "asked by", "in flight", "blocked by", "seconds left"):
        table.add_column(heading, no_wrap=True)
    for each in shown:
        left = "-" if each["deadline_s"] is None else f"{each['deadline_s']:.0f}"
        cells = (each["endpoint"], each["pool"], each["phase"], each["by"], str(each["in_flight"]))
        table.add_row(*map(escape, cells), each["blocked_by"] or "-", left)
    _console().print(table)


def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)
