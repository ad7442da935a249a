"""How does a load test look while it runs? A table that grows, in a terminal; plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from extproc.autoscale.profile import Server, StepRow
from extproc.calibrate.bracket import Try
from extproc.calibrate.step import Now

_TELL_EVERY_S = 15.0
_DRAW_EVERY_S = 0.2


class Plain:
    """A line when something begins or ends, and one now and then between."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self.notes: list[str] = []
        self._say = say or _print
        self._told_s = time.monotonic()
        self._rate_per_s = 0.0

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._say(f"note: {text}")

    def probed(self, server: Server, ttft_s: float, stay_s: float) -> None:
        self._say(f"{server_words(server)}; {idle_words(ttft_s, stay_s)}")

    def begins(self, number: int, step: Try) -> None:
        self._told_s = time.monotonic()
        self._rate_per_s = step.rate_per_s
        self._say(f"step {number}: {step.rate_per_s:g} requests/s ({bracket_words(step)})")

    def now(self, now: Now) -> None:
        if time.monotonic() - self._told_s >= _TELL_EVERY_S:
            self._told_s = time.monotonic()
            self._say(f"  {now_words(now)}")

    def ended(self, row: StepRow) -> None:
        self._say(f"  {'met' if row.met else 'MISSED'}: {row_words(row)}")

    def close(self) -> None:
        """Nothing is open here."""


class Picture:
    """The steps so far, and what goes on."""

    def __init__(self, console: Console, rows: list[StepRow]) -> None:
        self.notes: list[str] = []
        self._console = console
        self._rows = list(rows)
        self._step: Try | None = None
        self._number = 0
        self._words = "looking at the server"
        self._drawn_s = 0.0
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")
        self._live.start()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._console.print(f"[yellow]note:[/] {escape(text)}", highlight=False)

    def probed(self, server: Server, ttft_s: float, stay_s: float) -> None:
        self._console.print(escape(f"{server_words(server)}; {idle_words(ttft_s, stay_s)}"), highlight=False)

    def begins(self, number: int, step: Try) -> None:
        self._number, self._step = number, step
        self._draw()

    def now(self, now: Now) -> None:
        self._words = now_words(now)
        if time.monotonic() - self._drawn_s >= _DRAW_EVERY_S:
            self._draw()

    def ended(self, row: StepRow) -> None:
        self._rows.append(row)
        self._step = None
        self._draw()

    def close(self) -> None:
        self._step = None
        self._words = ""
        self._draw()
        self._live.stop()

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        line = Text()
        if self._step is not None:
            line.append(f"step {self._number}: {self._step.rate_per_s:g} requests/s ", style="bold cyan")
            line.append(f"({bracket_words(self._step)})\n", style="dim")
        line.append(self._words)
        self._live.update(Group(_table(self._rows), line) if self._rows else line, refresh=True)


def server_words(server: Server) -> str:
    engine = " ".join(each for each in (server.engine, server.version) if each) or "engine unknown"
    room = "" if server.kv_tokens is None else f", KV cache of {server.kv_tokens:,.0f} tokens"
    return f"{server.model} at {server.url}, {engine}{room}"


def idle_words(ttft_s: float, stay_s: float) -> str:
    return f"idle, the first token takes {_ms(ttft_s)} and an answer {stay_s:.3g} s"


def bracket_words(step: Try) -> str:
    if step.low is None and step.high is None:
        return "the first rate"
    if step.high is None:
        return f"met at {step.low:g} so far"
    if step.low is None:
        return f"missed at {step.high:g} so far"
    if step.rate_per_s == step.low:
        return f"once more, to be sure; missed at {step.high:g}"
    return f"the knee is between {step.low:g} and {step.high:g}"


def now_words(now: Now) -> str:
    words = f"{now.phase} {now.seconds:.0f} s"
    if now.phase == "cooling down":
        return f"{words}, {now.open} requests open" if now.open else f"{words}, waiting for the server to be idle"
    if now.measured:
        words += f", {now.measured:,} requests"
    if now.judgement is not None:
        words += f", {now.judgement.over:,} over the target (1 % may be)"
    if now.ttft_p50_s is not None:
        words += f", TTFT p50 {_ms(now.ttft_p50_s)}"
    for name, value in (("running", now.running), ("waiting", now.waiting)):
        if value is not None:
            words += f", {value:g} {name}"
    return words if now.kv_usage_ratio is None else f"{words}, KV {now.kv_usage_ratio:.0%}"


def row_words(row: StepRow) -> str:
    words = f"TTFT p50 {_ms(row.ttft_p50_s)}, p99 {_ms(row.ttft_p99_s)}; {row.why}"
    if row.errors:
        words += f"; {row.errors:,} failed"
    gauges = [
        f"{value:.3g} {name}"
        for name, value in (("waiting", row.waiting), ("running", row.running))
        if value is not None
    ]
    if row.kv_usage_ratio is not None:
        gauges.append(f"KV {row.kv_usage_ratio:.1%}")
    return words + (f"; on average {', '.join(gauges)}" if gauges else "")


def _table(rows: list[StepRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("requests/s", justify="right")
    table.add_column("")
    for name in ("requests", "over", "TTFT p50", "p99", "waiting", "running", "KV", "hits"):
        table.add_column(name, justify="right")
    for row in rows:
        style, word = ("green", "met") if row.met else ("red", "missed")
        table.add_row(
            f"{row.rate_per_s:g}",
            f"[{style}]{word}[/]",
            f"{row.requests:,}",
            "-" if row.over is None else f"{row.over:,}",
            _ms(row.ttft_p50_s),
            _ms(row.ttft_p99_s),
            _number(row.waiting, ".2f"),
            _number(row.running, ".1f"),
            _number(row.kv_usage_ratio, ".1%"),
            _number(row.hit_ratio, ".0%"),
        )
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _print(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
