"""`extproc explain`: where would a running service send this request, and why?

Exit status: 0 when a server would be picked, 1 when none can be, 2 when the question could not be asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from extproc.cli._fail import fail

_SHOWN = 20  # servers in the table, unless all are asked for
_WIDE = 160  # columns, where the output is no terminal
_TIMEOUT_S = 30.0
_NOT_SENT = frozenset(
    {"content-length", "host", "transfer-encoding", "connection"}
)  # about the question's own transfer


def explain(
    body_file: Annotated[str, typer.Argument(metavar="BODY_FILE", help="The request's body; - reads standard input.")],
    path: Annotated[str, typer.Option(help="The request's path.")] = "/v1/chat/completions",
    pool: Annotated[str | None, typer.Option(help="The pool it is for. Default: the default pool.")] = None,
    profile: Annotated[
        str | None, typer.Option(help="The profile, as a route may choose it. Default: the pool's.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="A header of the request; may be repeated.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help=f"Show all servers, not only {_SHOWN}.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print what the service answered.")] = False,
    admin: AdminOption = DEFAULT,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    cert: CertOption = None,
    key: KeyOption = None,
) -> None:
    """Ask a running service where a request would go now, and why. Nothing is sent to any server."""
    headers = _headers(header or [])
    query = {"path": path} | {
        name: value for name, value in (("pool", pool), ("profile", profile)) if value is not None
    }
    answer = _ask(Admin(admin, Rights(token_file, ca, cert, key)), query, _read(body_file), headers)
    if json_:
        sys.stdout.write(json.dumps(answer, indent=2) + "\n")
    else:
        _print(answer, None if all_ else _SHOWN)
    raise typer.Exit(0 if answer["chosen"] is not None else 1)


def _headers(given: Sequence[str]) -> dict[str, str]:
    headers = {"content-type": "application/json"}
    for each in given:
        name, colon, value = each.partition(":")
        name = name.strip().lower()
        if not colon or not name or not each.isprintable() or not each.isascii():
            raise typer.BadParameter(f'"{each}": write NAME:VALUE, as in x-session-id:42', param_hint="--header")
        if name not in _NOT_SENT:
            headers[name] = value.strip()
    return headers


def _read(body_file: str) -> bytes:
    if body_file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(body_file).read_bytes()
    except OSError as error:
        fail(f"cannot read {body_file}: {error.strerror}", command="explain")


def _ask(service: Admin, query: Mapping[str, str], body: bytes, headers: Mapping[str, str]) -> Any:
    try:
        return service.ask("POST", "/explain", query, body=body, headers=headers, timeout_s=_TIMEOUT_S)
    except RefusedError as error:
        fail(f"{service.url} refused the question ({error.status}): {error}", command="explain")
    except AwayError as error:
        fail(str(error), command="explain")


def _print(answer: Mapping[str, Any], most: int | None) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    by = f", decided by {answer['by'].replace('_', ' ')}" if answer["by"] else ""
    console.print(f"pool {escape(answer['pool'])}, profile {escape(answer['profile'])}{by}")
    if answer["request"] is not None or answer["chosen"] is not None:  # else nothing is told of it
        console.print(_understood(answer["request"]))
    rows = answer["endpoints"][:most]
    if rows:
        console.print(_table(rows))
    left_out = answer["left_out"] + len(answer["endpoints"]) - len(rows)
    if left_out:
        console.print(f"and {left_out} more servers (--all shows them)")
    console.print(f"[bold]{escape(answer['why'])}[/]", soft_wrap=True)


def _understood(request: Mapping[str, Any] | None) -> str:
    if request is None:
        return "the body was not looked at"
    model = "no model named" if request["model"] is None else f"model {request['model']}"
    key = "a session key" if request["session_key"] else "no session key"
    prompt = f"no prompt ({request['no_prompt']})"
    if request["no_prompt"] is None:
        prompt = f"about {request['prompt_tokens']:,} prompt tokens in {request['blocks']:,} full blocks"
    return escape(f"{request['kind']}, {model}, {prompt}, {key}")


# Heading and how a server's figure is written; a column of which nothing is known is left out.
_COLUMNS: Mapping[str, tuple[str, str]] = {
    "held_tokens": ("held\ntokens", "{:,.0f}"),
    "held_blocks": ("held\nblocks", "{:,}"),
    "uncached_tokens": ("uncached\ntokens", "{:,.0f}"),
    "owed_tokens": ("owed\ntokens", "{:,.0f}"),
    "prefill_tokens_per_s": ("prefill\ntokens/s", "{:,.0f}"),
    "prefill_s": ("prefill\ns", "{:.3f}"),
    "others_s": ("others\ns", "{:.3f}"),
    "kv_wait_s": ("KV wait\ns", "{:.3f}"),
    "load_s": ("load\ns", "{:.3f}"),
    "expected_s": ("sum\ns", "{:.3f}"),
    "in_flight": ("in\nflight", "{}"),
    "waiting": ("waiting", "{:g}"),
    "kv_usage_ratio": ("KV", "{:.1%}"),
}


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", justify="right")
    table.add_column("endpoint", no_wrap=True)
    names = [name for name in _COLUMNS if any(row[name] is not None for row in rows)]
    for name in names:
        table.add_column(_COLUMNS[name][0], justify="right", vertical="bottom")
    table.add_column("state")
    for row in rows:
        figures = ["-" if row[name] is None else _COLUMNS[name][1].format(row[name]) for name in names]
        state = row["dropped"] or row["state"]
        style = "bold" if row["rank"] == 1 else "dim" if row["dropped"] else ""
        table.add_row("" if row["rank"] is None else str(row["rank"]), row["address"], *figures, state, style=style)
    return table
