"""How does the load test look? One HTML file with its plots inside, for a person who has to believe the thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from io import StringIO
from typing import TYPE_CHECKING

from extproc.autoscale.profile import Profile, StepRow
from extproc.autoscale.thresholds import Thresholds
from extproc.calibrate.result import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MET, _MISSED, _KNEE = "#2a7f3f", "#c1121f", "#1d3557"
_LINES = ("#1d3557", "#e6862e")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.met { color: #2a7f3f; } td.missed { color: #c1121f; } tr.knee { background: #eef3fa; font-weight: 600; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; } svg { max-width: 100%; height: auto; }
.wide { overflow-x: auto; }
.note { color: #666; font-size: 13px; }
"""


def html(profile: Profile, rooms: Sequence[tuple[str, Thresholds]], settings: str, notes: Sequence[str]) -> str:
    """The page. `rooms`: thresholds by what they leave room for; `settings`: YAML. Raises ImportError without
    matplotlib."""
    server, lengths = profile.server, profile.lengths
    facts = [
        ("server", server.url),
        ("model", server.model),
        ("engine", " ".join(each for each in (server.engine, server.version) if each) or None),
        ("KV cache", None if server.kv_tokens is None else f"{server.kv_tokens:,.0f} tokens"),
        ("longest request", None if server.max_model_len is None else f"{server.max_model_len:,} tokens"),
        ("prompts", f"{lengths.prompt_tokens:,.0f} tokens on average{_uncached(lengths.uncached_tokens)}"),
        ("answers", f"{lengths.output_tokens:,.0f} tokens on average"),
        ("idle server", None if profile.idle_ttft_s is None else f"{_ms(profile.idle_ttft_s)} to the first token"),
        ("made at", profile.made_at),
    ]
    above = "" if profile.missed_per_s is None else f", and missed at {profile.missed_per_s:g}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Load test of {escape(server.model)}</title>'
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>{escape(server.model)}: {profile.knee_per_s:g} requests/s a server</h1>"
        f"<p>The 99th percentile of the time to first token stays within {profile.ttft_p99_target_s:g} s up to"
        f" {profile.knee_per_s:g} requests/s{above}.</p>"
        + _table([], [[name, value] for name, value in facts if value is not None])
        + f"<h2>What was measured</h2>{_plots(profile)}"
        + _steps(profile)
        + "<h2>Thresholds of one server</h2>"
        + _table(
            ["", *(name for name, _ in figures(rooms[0][1], profile.calibration))],
            [[words, *(value for _, value in figures(each, profile.calibration))] for words, each in rooms],
        )
        + '<p class="note">A server more takes time to come. Where load grows, the thresholds are those of a rate below'
        " the knee: the knee less the growth until then.</p>"
        + f"<h2>Settings</h2><pre>{escape(settings)}</pre>"
        + ("<h2>Notes</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>" if notes else "")
        + "</body></html>\n"
    )


def require_plots() -> None:
    """Raises ImportError, which says what to install."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError('--report needs matplotlib. Install it with: pip install "vllm-extproc[report]"') from None


def _uncached(tokens: float | None) -> str:
    return "" if tokens is None else f", {tokens:,.0f} of them not in the cache"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:,.0f} ms"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


_COLUMNS: tuple[tuple[str, Callable[[StepRow], str]], ...] = (
    ("requests/s", lambda row: f"{row.rate_per_s:g}"),
    ("seconds", lambda row: f"{row.seconds:.0f}"),
    ("requests", lambda row: f"{row.requests:,}"),
    ("over target", lambda row: _number(row.over, ",")),
    ("errors", lambda row: f"{row.errors:,}"),
    ("TTFT p50", lambda row: _ms(row.ttft_p50_s)),
    ("p99", lambda row: _ms(row.ttft_p99_s)),
    ("interval p50", lambda row: _ms(row.token_interval_p50_s)),
    ("p99", lambda row: _ms(row.token_interval_p99_s)),
    ("waiting", lambda row: _number(row.waiting, ".2f")),
    ("running", lambda row: _number(row.running, ".1f")),
    ("KV", lambda row: _number(row.kv_usage_ratio, ".1%")),
    ("prefill tokens/s", lambda row: _number(row.prefill_tokens_per_s, ",.0f")),
    ("hits", lambda row: _number(row.hit_ratio, ".0%")),
)


def _steps(profile: Profile) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in _COLUMNS)
    rows = []
    for row in profile.steps:
        knee = ' class="knee"' if row.rate_per_s == profile.knee_per_s else ""
        cells = "".join(f"<td>{escape(text(row))}</td>" for _, text in _COLUMNS)
        verdict = "met" if row.met else "missed"
        doubt = "" if row.certain else ", not certain"
        rows.append(f'<tr{knee}>{cells}<td class="{verdict}" title="{escape(row.why)}">{verdict}{doubt}</td></tr>')
    return _scrolling(f"<table><tr>{head}<th></th></tr>{''.join(rows)}</table>")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """No `head`: no such row."""
    top = "<tr>" + "".join(f"<th>{escape(name)}</th>" for name in head) + "</tr>" if head else ""
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return _scrolling(f"<table>{top}{body}</table>")


def _scrolling(table: str) -> str:
    """One that is wider than the window scrolls by itself: the text and the plots above it stay where they are."""
    return f'<div class="wide">{table}</div>'


def _plots(profile: Profile) -> str:
    """As SVG."""
    out = StringIO()
    draw(profile).savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]


def draw(profile: Profile) -> Figure:
    """Four panels over the rate."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    rows = profile.steps
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    figure = Figure(figsize=(11, 7.4), layout="constrained")
    grid = figure.subplots(2, 2)  # type: ignore[no-untyped-call,unused-ignore]
    (ttft, queue), (interval, memory) = grid
    _lines(ttft, rows, [("p50", lambda row: _in_ms(row.ttft_p50_s)), ("p99", lambda row: _in_ms(row.ttft_p99_s))])
    ttft.axhline(profile.ttft_p99_target_s * 1000, color=_MISSED, linewidth=1, linestyle=":")
    ttft.annotate(
        "target", (0.01, profile.ttft_p99_target_s * 1000), xycoords=("axes fraction", "data"), color=_MISSED,
        fontsize=8, va="bottom",
    )  # fmt: skip
    for row in rows:
        if row.ttft_p99_s is not None:
            ttft.plot(row.rate_per_s, row.ttft_p99_s * 1000, "o", color=_MET if row.met else _MISSED, zorder=4)
    ttft.set_yscale("log")
    _title(ttft, "time to first token, ms (p99: green met the target, red missed it)")
    _lines(queue, rows, [("waiting", lambda row: row.waiting), ("running", lambda row: row.running)])
    queue.set_yscale("symlog", linthresh=1)
    queue.set_ylim(bottom=0)
    _title(queue, "requests on the server, mean")
    _lines(
        interval,
        rows,
        [
            ("p50", lambda row: _in_ms(row.token_interval_p50_s)),
            ("p99", lambda row: _in_ms(row.token_interval_p99_s)),
        ],
    )
    interval.set_ylim(bottom=0)
    _title(interval, "time between two tokens, ms")
    _lines(memory, rows, [("KV usage, %", lambda row: _percent(row.kv_usage_ratio))])
    memory.set_ylim(bottom=0)
    memory.set_ylabel("KV usage, %", fontsize=8, color=_LINES[0])
    prefill = memory.twinx()
    _lines(prefill, rows, [("prefill, tokens/s", lambda row: row.prefill_tokens_per_s)], first=1)
    prefill.set_ylim(bottom=0)
    prefill.tick_params(labelsize=8)
    prefill.set_ylabel("prompt tokens computed a second", fontsize=8, color=_LINES[1])
    _title(memory, "KV usage and prefill")
    for axes in (ttft, queue):
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_formatter(NullFormatter())
    for axes in (ttft, queue, interval, memory):
        axes.axvline(profile.knee_per_s, color=_KNEE, linewidth=1.2, linestyle="--", zorder=1)
        axes.annotate(
            f"knee {profile.knee_per_s:g}/s", (profile.knee_per_s, 1.0), xycoords=("data", "axes fraction"),
            xytext=(-4, -4), textcoords="offset points", ha="right", va="top", fontsize=8, color=_KNEE,
        )  # fmt: skip
        axes.set_xlabel("requests/s offered", fontsize=8)
        axes.set_xlim(left=0)
        axes.tick_params(labelsize=8)
        axes.grid(color="#e5e5e5", zorder=0)
    for axes in (ttft, queue, interval):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False, loc="lower right" if axes is ttft else "upper left")
    return figure


def _lines(
    axes: Axes, rows: Sequence[StepRow], lines: Sequence[tuple[str, Callable[[StepRow], float | None]]], first: int = 0
) -> None:
    for place, (name, value) in enumerate(lines):
        points = [(row.rate_per_s, found) for row in rows if (found := value(row)) is not None]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, ".-", color=_LINES[(first + place) % len(_LINES)], linewidth=1.5, label=name, zorder=3)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, loc="left")


def _in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else ratio * 100
