"""How does a command end that cannot do what it was asked for?

With one sentence on stderr that begins with the name of the command, and an exit status; never with a traceback.
"""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape


def fail(message: str, code: int = 2, *, command: str = "") -> NoReturn:
    """End the command. `code`: 2 for what was mistyped. `command`: which of extproc's, if it is to be named.

    Raises typer.Exit.
    """
    name = f"extproc {command}" if command else "extproc"
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]{name}:[/] {escape(message)}")
    raise typer.Exit(code)
