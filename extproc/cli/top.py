"""`extproc top`: the fleet in a terminal, as the status page has it.

Exit status: 0, 1 the service refused to tell, 2 mistyped, 5 (with --once) it cannot be reached.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.live import Live

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
from extproc.cli._fail import fail
from extproc.cli._top_keys import keys
from extproc.cli._top_source import Heard, Json, Source, heard
from extproc.cli._top_view import COLUMNS, Look, picture

_LOOK_S = 0.2  # how soon an answer, or another size of the window, is noticed; a key is at once
_PAGE = 10  # endpoints
_WIDE = 160  # columns, where the output is no terminal
_NAMES = [each.name for each in COLUMNS]

Ask = Callable[[float | None], Json]


def top(
    interval: Annotated[
        float, typer.Option(min=0.2, max=3600.0, metavar="SECONDS", help="Between two questions to the service.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print all once and end; so it is also where the output is no terminal.")
    ] = False,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help=f"Sort endpoints by: {', '.join(_NAMES)}.")] = "state",
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    admin: AdminOption = DEFAULT,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
) -> None:
    """Watch the fleet: queues, KV usage, hit shares, states, the last picks and why, warnings.

    Keys: q ends it, < and > choose the column to sort by, r turns that round, p shows the next pool, the arrows scroll,
    space holds the picture still.
    """
    if sort not in _NAMES:
        raise typer.BadParameter(f'"{sort}"; there are: {", ".join(_NAMES)}', param_hint="--sort")
    service = Admin(admin, Rights(token_file, ca, cert, key))

    def ask(since: float | None) -> Json:
        query = {} if since is None else {"since": f"{since:.3f}"}
        answer: Any = service.ask("GET", "/status.json", query)
        return answer if isinstance(answer, dict) else {}

    look = Look(sort=sort, reverse=reverse)
    if once or not sys.stdout.isatty():
        _print(ask, look, service.url)
        return
    signal.signal(signal.SIGTERM, _end)  # the terminal is to be as it was
    try:
        _watch(ask, look, service.url, interval)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def turned(look: Look, key: str, *, endpoints: int) -> Look | None:
    """What a key changes; None: it is the end. `endpoints`: of the pool that is shown."""
    place = _NAMES.index(look.sort)
    last = max(0, endpoints - 1)
    match key:
        case "q" | "Q":
            return None
        case "<" | "left":
            return replace(look, sort=_NAMES[(place - 1) % len(_NAMES)], reverse=False)
        case ">" | "right":
            return replace(look, sort=_NAMES[(place + 1) % len(_NAMES)], reverse=False)
        case "r":
            return replace(look, reverse=not look.reverse)
        case "p" | "tab":
            return replace(look, pool=look.pool + 1, first=0)
        case "up" | "k":
            return replace(look, first=max(0, look.first - 1))
        case "down" | "j":
            return replace(look, first=min(last, look.first + 1))
        case "page up":
            return replace(look, first=max(0, look.first - _PAGE))
        case "page down":
            return replace(look, first=min(last, look.first + _PAGE))
        case "home":
            return replace(look, first=0)
        case "space":
            return replace(look, paused=not look.paused)
    return look


def _print(ask: Ask, look: Look, url: str) -> None:
    try:
        answer = ask(None)
    except RefusedError as error:
        fail(str(error), 1, command="top")
    except AwayError as error:
        fail(str(error), 5, command="top")
    found = heard(Heard(), lambda _: answer, time.time())
    if found.trouble is not None:
        fail(f"{url}: {found.trouble}", 5, command="top")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    console.print(picture(found, look, width=console.width, height=None, url=url))


def _watch(ask: Ask, look: Look, url: str, interval_s: float) -> None:
    console = Console(highlight=False)
    with (
        Source(ask, interval_s) as source,
        keys() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        drawn: object = None
        while True:
            shown, size = source.heard, console.size
            if (shown, look, size) != drawn:
                drawn = (shown, look, size)
                live.update(picture(shown, look, width=size.width, height=size.height, url=url), refresh=True)
            for key in pressed(_LOOK_S):
                changed = turned(look, key, endpoints=_endpoints(shown, look))
                if changed is None:
                    return
                look = changed
            source.paused = look.paused


def _endpoints(shown: Heard, look: Look) -> int:
    pools = [] if shown.shown is None else shown.shown["pools"]
    return len(pools[look.pool % len(pools)]["endpoints"]) if pools else 0
