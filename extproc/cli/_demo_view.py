"""How does the demo look? One live picture in a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from extproc.cli._demo_fleet import Fleet
from extproc.cli._demo_traffic import Traffic
from extproc.cli._demo_watch import Watch
from extproc.pool.member import Member, State

_BAR = 16  # characters
_PICKS_SHOWN = 7
_COLOURS = {
    State.READY: "green",
    State.RETURNING: "yellow",
    State.UNHEALTHY: "red",
    State.DRAINING: "yellow",
    State.DRAINED: "yellow",
    State.EXPIRED: "red",
    State.STARTING: "yellow",
}


class Plain:
    """Lines, as things happen."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, title: str, text: str) -> None:
        """An act begins (a title), or something is worth telling (none)."""
        line = f"\n{title}\n  {text}" if title else f"  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=not self._console.is_terminal)

    def checked(self, held: bool, sentence: str, seen: str) -> None:
        line = f"ok   {sentence}" if held else f"FAIL {sentence}: {seen}"
        style = None if held else "bold red"
        self._console.print(line, style=style, markup=False, highlight=False, soft_wrap=not self._console.is_terminal)

    def refresh(self) -> None:
        """Nothing moves here."""

    def close(self) -> None:
        """Nothing is open here."""


class Picture:
    """The fleet, the last picks and what to notice, drawn again and again; checks scroll away above it."""

    def __init__(self, console: Console, fleet: Fleet, watch: Watch, traffic: Traffic) -> None:
        self._console = console
        self._fleet = fleet
        self._watch = watch
        self._traffic = traffic
        self._title = "starting"
        self._text = ""
        self._news = ""
        self._live = Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop")
        self._live.start()

    def say(self, title: str, text: str) -> None:
        """As `Plain.say`."""
        if title:
            self._title, self._text, self._news = title, text, ""
        else:
            self._news = text
        self.refresh()

    def checked(self, held: bool, sentence: str, seen: str) -> None:
        mark = "[green]ok[/]  " if held else "[bold red]FAIL[/]"
        self._console.print(f"{mark} {escape(sentence if held else f'{sentence}: {seen}')}", highlight=False)

    def refresh(self) -> None:
        self._live.update(self._picture(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _picture(self) -> RenderableType:
        words = Text(self._text)
        if self._news:
            words.append(f"\n{self._news}", style="bold")
        return Group(
            Panel(words, title=f"[bold]{escape(self._title)}[/]", title_align="left", border_style="cyan"),
            self._servers(),
            self._counts(),
            self._picks(),
        )

    def _servers(self) -> Table:
        table = Table(expand=True, box=None, pad_edge=False, padding=(0, 1))
        table.add_column("server", no_wrap=True)
        table.add_column("state", no_wrap=True)
        for name in ("run", "wait", "KV", "in flight", "got"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("share of the picks", no_wrap=True, min_width=_BAR + 5)
        total = self._watch.got.total()
        most = max(self._watch.got.values(), default=0)
        for member in self._watch.members:
            table.add_row(*self._row(member, total, most))
        return table

    def _row(self, member: Member, total: int, most: int) -> Sequence[RenderableType]:
        now = time.monotonic()
        address = str(member.address)
        state, sample, got = member.state(now), member.fresh_sample(now), self._watch.got[address]
        running, waiting, kv = (
            (None, None, None) if sample is None else (sample.running, sample.waiting, sample.kv_usage_ratio)
        )
        bar = "█" * round(_BAR * got / most) if most else ""
        share = f"{bar.ljust(_BAR)} {got / total:4.0%}" if total else ""
        known = "[dim]nobody looks[/]" if self._watch.down else f"[{_COLOURS.get(state, 'white')}]{state}[/]"
        if self._watch.down:
            running = waiting = kv = None
        return (
            f"[bold]{self._fleet.name_of(address)}[/]",
            known,
            _number(running),
            f"[bold yellow]{_number(waiting)}[/]" if waiting else _number(waiting),
            "?" if kv is None else f"{kv:.0%}",
            "?" if self._watch.down else str(member.in_flight),
            str(got),
            f"[cyan]{share}[/]",
        )

    def _counts(self) -> Text:
        sent = self._traffic.sent
        failed = sum(s.ended_s is not None and not s.ok for s in sent)
        return Text.from_markup(
            f"\nclients: {len(sent)} requests, {sum(s.ok for s in sent)} answered, {self._traffic.open_count} open, "
            + (f"[red]{failed} broken off[/]" if failed else "none failed")
        )

    def _picks(self) -> RenderableType:
        table = Table(expand=True, box=None, pad_edge=False, padding=(0, 1), show_header=False, title_justify="left")
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
        for pick in list(self._watch.picks)[-_PICKS_SHOWN:]:
            clock = time.strftime("%H:%M:%S", time.localtime(pick.at_unix_s))
            table.add_row(f"[dim]{clock}[/]", f"[bold]{self._fleet.name_of(pick.address)}[/]", escape(pick.why))
        return Group(Text("\nthe last picks, and why", style="dim"), table)


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"
