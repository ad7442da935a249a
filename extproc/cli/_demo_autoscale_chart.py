"""How do the load, the fleet and the times to first token look over time, in characters?"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from extproc.cli._demo_autoscale_watch import Look

_EIGHTHS = "▁▂▃▄▅▆▇█"
_LABEL = 30  # characters


def columns(looks: Sequence[Look], width: int, column_s: float) -> list[Look | None]:
    """The last look of each column of so many seconds, the newest on the right. None: there was no look."""
    out: list[Look | None] = [None] * width
    if not looks:
        return out
    newest = int(looks[-1].at_s / column_s)
    for look in looks:
        place = width - 1 - (newest - int(look.at_s / column_s))
        if place >= 0:
            out[place] = look
    return out


def spark(value: float | None, top: float) -> str:
    """One character for a value from 0 to `top`; a blank for what is not known."""
    if value is None:
        return " "
    part = min(1.0, max(0.0, value / top)) if top > 0.0 else 0.0
    return _EIGHTHS[min(len(_EIGHTHS) - 1, int(part * len(_EIGHTHS)))]


def cell(look: Look | None, row: int) -> tuple[str, str]:
    """What stands in a row of the fleet's chart, counted from 1 below, and its style."""
    if look is None:
        return " ", ""
    if row <= look.ready:
        return "█", "green"
    if row <= look.ready + look.starting:
        return "▒", "yellow"
    if row <= look.ready + look.starting + look.draining:
        return "╳", "magenta"
    if look.desired is not None and row <= look.desired:
        return "░", "cyan"
    return "·", "dim"


def chart(looks: Sequence[Look], width: int, *, most: int, target_s: float, column_s: float) -> Text:
    """All of it: the fleet (a row a server), the load, and the times to first token. `most`: servers."""
    plot = max(10, width - _LABEL)
    shown = columns(looks, plot, column_s)
    last = looks[-1] if looks else None
    text = Text(no_wrap=True)
    for row in range(most, 0, -1):
        text.append(_fleet_label(last, row, most).ljust(_LABEL))
        for look in shown:
            text.append(*cell(look, row))
        text.append("\n")
    top = max([1.0, *(look.rate_per_s for look in looks)])
    text.append(f"{'?' if last is None else f'{last.rate_per_s:.1f}'} requests/s sent".ljust(_LABEL))
    for look in shown:
        text.append(spark(None if look is None else look.rate_per_s, top), "blue")
    ttft = None if last is None else last.ttft_s
    text.append("\n" + f"TTFT p99 {'?' if ttft is None else f'{ttft:.2f} s'}, target {target_s:g} s".ljust(_LABEL))
    for look in shown:
        value = None if look is None else look.ttft_s
        text.append(spark(value, 1.5 * target_s), "red" if value is not None and value > target_s else "green")
    return text


def _fleet_label(last: Look | None, row: int, most: int) -> str:
    if last is None:
        return ""
    if row == most:
        return f"{'?' if last.desired is None else last.desired} desired (░)"
    if row == most - 1:
        return f"{last.ready} ready (█)"
    if row == most - 2:
        return f"{last.starting} starting (▒)"
    if row == most - 3:
        return f"{last.draining} draining (╳)"
    return ""
