"""How does the fleet look in a terminal? By what the service said, the room, and what a person chose to see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from extproc.cli._top_source import Heard
from extproc.pool.member import State

Json = Mapping[str, Any]

UNKNOWN = "-"
_BLOCKS = "▁▂▃▄▅▆▇█"
_TREND = 30  # characters, at most
_BAR = 8  # characters
_PICKS = 5  # shown if there is room for some endpoints, too; more where all of them find room
_AROUND = 6  # lines of a pool beside its endpoints: figures, trends, headings, recommendation
_LEVELS = {"critical": "bold red", "warning": "yellow", "note": "dim"}
# The worst first, with its colour.
_STATES = {
    State.EXPIRED: "bold red",
    State.UNHEALTHY: "bold red",
    State.RETURNING: "yellow",
    State.DRAINING: "yellow",
    State.STARTING: "yellow",
    State.DRAINED: "dim",
    State.READY: "green",
}
_OUTCOMES = {"ok": "green", "failed": "bold red", "backpressure": "yellow"}
_KEYS = (("q", "quit"), ("< >", "sort by"), ("r", "reverse"), ("p", "pool"), ("↑ ↓", "scroll"), ("space", "pause"))


@dataclass(frozen=True, slots=True)
class Look:
    """What a person chose to see."""

    sort: str = "state"  # a name of `COLUMNS`
    reverse: bool = False
    pool: int = 0  # counted round
    first: int = 0  # row of the endpoints
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of an endpoint."""

    name: str
    title: str
    show: Callable[[Json], Text]
    key: Callable[[Json], Any]  # to sort by; None comes last
    down: bool = False  # the greatest first
    number: bool = True
    needed: int = 0  # the higher, the sooner it is left out where there is no room


def picture(heard: Heard, look: Look, *, width: int, height: int | None, url: str) -> RenderableType:
    """All of it, within `width` columns; within `height` lines the pool chosen, None: all pools, whatever they need."""
    if heard.shown is None:
        words = heard.trouble or f"asking {url} ..."
        return Text(clean(f"extproc top: {words}"), style="bold red" if heard.trouble else "", overflow="fold")
    head = [_title(heard, look, url), *_trouble(heard)]
    pools: Sequence[Json] = heard.shown["pools"]
    if height is None:
        parts = [part for pool in pools for part in (Text(), *_pool(heard, pool, look, width, None))]
        return _fitted([*head, *_warnings(heard, None), *parts, Text(), *_picks(heard, None)], width)
    number = look.pool % len(pools)
    room = height - len(head) - 1
    warnings = _warnings(heard, max(0, min(room - 8, max(2, height // 5))))
    room -= len(warnings)
    needed = len(pools[number]["endpoints"]) + _AROUND
    picks = _picks(heard, max(min(_PICKS, room - 18), room - needed - 2))
    body = _pool(heard, pools[number], look, width, room - len(picks), number=(number, len(pools)))
    lines = [*head, *warnings]
    spare = height - 1 - sum(map(_height, (*lines, *body, *picks)))
    for part in filter(None, (body, picks)):
        lines += [Text(), *part] if spare > 0 else part
        spare -= 1
    return _fitted([*lines, *[Text()] * spare, _keys(width)], width)


def _height(line: RenderableType) -> int:
    return line.row_count + 1 if isinstance(line, Table) else 1


def columns(endpoints: Sequence[Json], width: int) -> list[Column]:
    """Those for which there is room."""
    chosen = [each for each in COLUMNS if each.name != "why" or any(row["why"] for row in endpoints)]
    widths = {each.name: _width(each, endpoints) + 2 for each in chosen}  # with the space between two
    while len(chosen) > 2 and sum(widths[each.name] for each in chosen) - 2 > width:
        chosen.remove(max(chosen, key=lambda each: each.needed))
    return chosen


def ordered(endpoints: Sequence[Json], look: Look) -> list[Json]:
    """As a person wants them. What is unknown comes last, whichever way."""
    column = column_named(look.sort)
    known = [each for each in endpoints if column.key(each) is not None]
    unknown = [each for each in endpoints if column.key(each) is None]
    return [*sorted(known, key=column.key, reverse=column.down != look.reverse), *unknown]


def column_named(name: str) -> Column:
    """Raises KeyError."""
    for each in COLUMNS:
        if each.name == name:
            return each
    raise KeyError(name)


def trend(values: Sequence[float | None], most: int = _TREND, top: float | None = None) -> str:
    """Values as small bars, the means of neighbours where there are more than `most`; a space is unknown."""
    step = max(1, -(-len(values) // max(1, most)))
    first = len(values) % step  # which are fewer, so that the last ones are not
    pieces = [values[i : i + step] for i in range(first, len(values), step)]
    means = [_mean(each) for each in ([values[:first], *pieces] if first else pieces)]
    highest = top or max((each for each in means if each is not None), default=0.0) or 1.0
    last = len(_BLOCKS) - 1
    return "".join(" " if each is None else _BLOCKS[min(last, round(last * each / highest))] for each in means)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return sum(known) / len(known) if known else None


def clean(text: str) -> str:
    """Without what a terminal would take for a command: names and paths are other people's words."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def span(seconds: float) -> str:
    """A length of time for a person: `40 s`, `5 min`, `3 h`, `2 days`."""
    for most, unit_s, unit in ((100.0, 1.0, "s"), (6000.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if seconds < most:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400.0:.0f} days"


def _fitted(lines: Iterable[RenderableType], width: int) -> Group:
    """No line is longer than there is room."""
    out = []
    for each in lines:
        if isinstance(each, Text):
            each.truncate(width, overflow="ellipsis")
            each.no_wrap = True
        out.append(each)
    return Group(*out)


def _title(heard: Heard, look: Look, url: str) -> Text:
    shown = heard.shown
    assert shown is not None
    ready = ("ready", "green") if shown["ready"] else ("not ready", "bold red")
    clock = time.strftime("%H:%M:%S", time.localtime(heard.at))
    requests = shown["requests"]
    line = Text.assemble(("extproc ", "bold"), f"{clean(shown['version'])} at {url}  ", ready, f"  {clock}")
    line.append(f"  up {span(shown['uptime_s'])}, {requests['picks']:,} picks, {requests['in_flight']:,} in flight")
    if look.paused:
        line.append("  paused", style="bold yellow")
    return line


def _trouble(heard: Heard) -> list[Text]:
    if heard.trouble is None:
        return []
    return [Text(clean(f"no answer, shown is what it said last: {heard.trouble}"), style="bold red")]


def _warnings(heard: Heard, most: int | None) -> list[RenderableType]:
    """`most` lines; None: all."""
    assert heard.shown is not None
    warnings = heard.shown["warnings"]
    listed = warnings if most is None or len(warnings) <= most else warnings[: max(0, most - 1)]
    lines = [Text(clean(f"{each['level']}: {each['text']}"), style=_LEVELS.get(each["level"], "")) for each in listed]
    if len(listed) < len(warnings) and most:
        lines.append(Text(f"and {len(warnings) - len(listed)} warnings more (extproc top --once shows all)", "yellow"))
    return [*lines]


def _pool(
    heard: Heard, pool: Json, look: Look, width: int, height: int | None, number: tuple[int, int] = (0, 1)
) -> list[RenderableType]:
    """Its figures, its endpoints, its recommendation: within `height` lines."""
    lines: list[RenderableType] = [_figures(pool, number)]
    past = heard.history["pools"].get(pool["name"], {})
    if height is None or height >= 12:
        lines += _trends(past, width)
    advice = _advice(pool)
    endpoints = pool["endpoints"]
    if not endpoints:
        return [*lines, Text("no endpoints", style="dim"), *advice]
    rows = ordered(endpoints, look)
    room = len(rows) if height is None else max(1, height - len(lines) - len(advice) - 1)
    if room < len(rows):
        room = max(1, room - 1)
        first = max(0, min(look.first, len(rows) - room))
        words = f"endpoints {first + 1} to {first + room} of {len(rows)}"
        return [*lines, _table(endpoints, rows[first : first + room], look, width), Text(words, style="dim"), *advice]
    return [*lines, _table(endpoints, rows, look, width), *advice]


def _figures(pool: Json, number: tuple[int, int]) -> Text:
    line = Text.assemble((f"pool {clean(pool['name'])}", "bold"))
    if number[1] > 1:
        line.append(f" ({number[0] + 1} of {number[1]}: p for the next)", style="dim")
    states = [each["state"] for each in pool["endpoints"]]
    counted = [(state, states.count(state)) for state in _STATES if state in states]
    for state, count in counted:
        line.append(f"  {count} {state}", style=_STATES[state])
    line.append(f"  waiting {_number(pool['waiting'])}, running {_number(pool['running'])}")
    line.append(f", in flight {pool['in_flight']:,}, KV {_percent(pool['kv_usage_ratio'])}")
    line.append(f", hit share {_percent(pool['hit_ratio'])}")
    return line


_TRENDS = (
    ("requests/s", "requests_per_s", None),
    ("waiting", "waiting", None),
    ("KV usage", "kv_usage_ratio", 1.0),
    ("hit share", "hit_ratio", 1.0),
)


def _trends(past: Json, width: int) -> list[Text]:
    """The last hour, two in a line where there is room."""
    across = 2 if width >= 100 else 1
    room = max(1, min(_TREND * (2 if width >= 140 else 1), width // across - 22))
    made = []
    for title, name, top in _TRENDS if across > 1 else _TRENDS[:2]:
        values = past.get(name, [])
        last = next((each for each in reversed(values) if each is not None), None)
        now = _percent(last) if top else UNKNOWN if last is None else f"{last:,.3g}"
        line = Text.assemble((f"{title:<11}", "dim"), (f"{trend(values, room, top):>{room}}", "cyan"), f" {now:<8}")
        made.append(line)
    return [Text("  ").join(made[i : i + across]) for i in range(0, len(made), across)]


def _table(endpoints: Sequence[Json], rows: Sequence[Json], look: Look, width: int) -> Table:
    chosen = columns(endpoints, width)
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim", width=width)
    for each in chosen:
        arrow = ("▼" if each.down != look.reverse else "▲") if each.name == look.sort else ""
        last = each.name == "why"
        table.add_column(
            Text(each.title + arrow, style="bold" if arrow else "dim"),
            justify="right" if each.number else "left",
            min_width=len(each.title) + 1,  # with its arrow
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if last else None,
        )
    if chosen[-1].name != "why":
        table.add_column("", ratio=1)
    for row in rows:
        table.add_row(*(each.show(row) for each in chosen))
    return table


def _advice(pool: Json) -> list[Text]:
    advice = pool["autoscale"]
    if advice is None:
        return []
    if advice.get("error") is not None:
        return [Text.assemble(("recommended: ", "dim"), clean(f"no number now: {advice['error']}"))]
    there = f" ({advice['provisioned']} there)"
    return [
        Text.assemble(("recommended ", "dim"), (f"{advice['desired']}", "bold"), there, clean(f": {advice['reason']}"))
    ]


def _picks(heard: Heard, most: int | None) -> list[RenderableType]:
    """The last ones and why; with their heading `most` + 1 lines."""
    assert heard.shown is not None
    picks = heard.shown["picks"] if most is None else heard.shown["picks"][: max(0, most)]
    if not picks:
        return []
    lines: list[RenderableType] = [Text("the last picks, and why", style="dim")]
    for each in picks:
        outcome = each["outcome"].replace("_", " ")
        lines.append(
            Text.assemble(
                (f"{span(each['age_s']) + ' ago':>11} ", "dim"),
                (clean(each["picked"]), "bold"),
                " ",
                (outcome, _OUTCOMES.get(outcome, "dim")),
                clean(f" {each['path']}{' ' + each['model'] if each['model'] else ''}: {each['why']}"),
            )
        )
    return lines


def _keys(width: int) -> Text:
    line = Text()
    for key, what in _KEYS:
        if cell_len(line.plain) + len(key) + len(what) + 3 > width:
            break
        line.append(f" {key} ", style="reverse")
        line.append(f" {what}  ")
    return line


def _width(column: Column, endpoints: Sequence[Json]) -> int:
    """That it needs; the reason has what is left, and should be worth reading."""
    if column.name == "why":
        return 24
    return max(len(column.title) + 1, *(column.show(each).cell_len for each in endpoints))


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.0%}"


def _meter(ratio: float | None, high: float = 2.0) -> Text:
    """A share with a bar; above `high` it is marked."""
    if ratio is None:
        return Text.assemble(f"{UNKNOWN:>4} ", ("░" * _BAR, "dim"))
    full = round(_BAR * min(1.0, ratio))
    return Text.assemble(
        f"{ratio:>4.0%} ", ("█" * full, "red" if ratio > high else "cyan"), ("░" * (_BAR - full), "dim")
    )


def _waiting(row: Json) -> Text:
    return Text(_number(row["waiting"]), style="bold yellow" if row["waiting"] else "")


def _heard(row: Json) -> Text:
    words = "never" if row["age_s"] is None else span(row["age_s"])
    return Text(words, style="" if row["fresh"] else "bold red")


def _rank(row: Json) -> int:
    return next((i for i, state in enumerate(_STATES) if state == row["state"]), -1)


def _by_address(row: Json) -> list[tuple[int, str]]:
    """10.0.0.9 comes before 10.0.0.10."""
    parts = row["address"].replace(":", ".").split(".")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


COLUMNS = (
    Column("endpoint", "endpoint", lambda row: Text(clean(row["address"]), style="bold"), _by_address, number=False),
    Column(
        "state",
        "state",
        lambda row: Text(row["state"], style=_STATES.get(row["state"], "")),
        _rank,
        number=False,
        needed=1,
    ),
    Column("waiting", "waiting", _waiting, lambda row: row["waiting"], down=True, needed=2),
    Column(
        "running", "running", lambda row: Text(_number(row["running"])), lambda row: row["running"], down=True, needed=5
    ),
    Column(
        "in-flight",
        "in flight",
        lambda row: Text(_number(row["in_flight"])),
        lambda row: row["in_flight"],
        down=True,
        needed=3,
    ),
    Column(
        "kv",
        "KV usage",
        lambda row: _meter(row["kv_usage_ratio"], 0.9),
        lambda row: row["kv_usage_ratio"],
        down=True,
        needed=4,
    ),
    Column(
        "hits", "hit share", lambda row: _meter(row["hit_ratio"]), lambda row: row["hit_ratio"], down=True, needed=7
    ),
    Column("heard", "heard", _heard, lambda row: row["age_s"], down=True, needed=6),
    Column("why", "why", lambda row: Text(clean(row["why"] or "")), lambda row: row["why"], number=False, needed=8),
)
