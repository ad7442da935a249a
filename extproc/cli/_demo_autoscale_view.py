"""How does the autoscaling demo look in a terminal? A chart of the last minutes, the reason, and what was done."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from extproc.cli._demo_autoscale_chart import chart
from extproc.cli._demo_autoscale_config import MAX_REPLICAS
from extproc.cli._demo_autoscale_fleet import TTFT_P99_S
from extproc.cli._demo_autoscale_load import Load
from extproc.cli._demo_autoscale_watch import Watch

_COLUMN_S = 2.0
_LINES = 6  # of the log
_COLOURS = {"ready": "green", "starting": "yellow", "unhealthy": "red"}


class Picture:
    """Drawn again and again; checks scroll away above it. As `_demo_view.Plain` otherwise."""

    def __init__(self, console: Console, watch: Watch, load: Load) -> None:
        self._console = console
        self._watch = watch
        self._load = load
        self._title, self._text = "starting", ""
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._live = Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop")
        self._live.start()

    def say(self, title: str, text: str) -> None:
        """An act begins (a title), or something was done (none)."""
        if title:
            self._title, self._text = title, text
        else:
            self._lines.append(text)
        self.refresh()

    def checked(self, held: bool, sentence: str, seen: str) -> None:
        mark = "[green]ok[/]  " if held else "[bold red]FAIL[/]"
        self._console.print(f"{mark} {escape(sentence if held else f'{sentence}: {seen}')}", highlight=False)

    def refresh(self) -> None:
        self._live.update(self.picture(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def picture(self) -> RenderableType:
        looks = list(self._watch.looks)
        return Group(
            Panel(Text(self._text), title=f"[bold]{escape(self._title)}[/]", title_align="left", border_style="cyan"),
            chart(looks, self._console.width, most=MAX_REPLICAS, target_s=TTFT_P99_S, column_s=_COLUMN_S),
            Text(f"\nwhy: {self._watch.page.get('reason', 'not known yet')}", style="bold"),
            self._servers(),
            self._counts(),
            Text("\nwhat extproc scale does", style="dim"),
            *(Text(line, no_wrap=True, overflow="ellipsis") for line in self._lines),
        )

    def _servers(self) -> Table:
        table = Table(expand=True, box=None, pad_edge=False, padding=(0, 1))
        for name in ("server", "state"):
            table.add_column(name, no_wrap=True)
        for name in ("running", "waiting", "in flight", "started in"):
            table.add_column(name, justify="right", no_wrap=True)
        for server in self._watch.servers:
            table.add_row(*_row(server))
        return table

    def _counts(self) -> Text:
        sent = self._load.sent
        cut = sum(each.failed for each in sent)
        ended = f"{sum(each.done for each in sent)} ended with [DONE], {self._load.open_count} open, "
        text = Text(f"streams: {len(sent)} sent, {ended}")
        return text.append(f"{cut} cut" if cut else "none cut", "red" if cut else "")


def _row(server: Mapping[str, Any]) -> Sequence[str]:
    load = server["sample"] or {}
    state = str(server["state"])
    start_s = server["start_s"]
    return (
        f"[bold]{escape(str(server['address']))}[/]",
        f"[{_COLOURS.get(state, 'magenta')}]{escape(state)}[/]",
        _number(load.get("running")),
        _number(load.get("waiting")),
        _number(server["in_flight"]),
        "" if start_s is None else f"{start_s:.0f} s",
    )


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "?"
