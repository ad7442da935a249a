"""What does one line of a Prometheus text page say?

The grammar is Prometheus' text format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/, with the
exemplars of OpenMetrics (`value [timestamp] [# {labels} value [timestamp]]`). Only sample lines are read; why this is
not `prometheus_client.parser` is in docs/decisions/own-metrics-line-parser.md.
"""

from __future__ import annotations

import re
from functools import lru_cache

_NAME = re.compile(rb"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*")
# One label, with what follows it: `name = "value"` and a comma, or the closing brace. The value is a plain run, then
# escapes each with a plain run after it, never given back (`*+`): matching is linear in its length whatever it holds.
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*+(?:\\.[^"\\]*+)*+)"[ \t]*(,[ \t]*\}?|\})')
_EMPTY_LABELS = re.compile(rb"[ \t]*\}")
_KNOWN_HEAD_BYTES = 256
_MAX_LABELS = 256  # vllm:cache_config_info has 37 in 0.32, and more with each release

Labels = tuple[tuple[str, str], ...]  # sorted by name: equal for equal labels, whatever their order on the line


def name_of(line: bytes) -> bytes:
    """The name a sample line begins with; empty for a comment, a blank line and anything else."""
    match = _NAME.match(line)
    return match.group(1) if match else b""


def read_sample(line: bytes) -> tuple[Labels, float] | None:
    """Labels and value of a sample line; None if it is malformed. The value may be NaN, infinite or negative.

    A timestamp and an exemplar may follow the value; only their place is checked.
    """
    head, space, value_text = line.rpartition(b" ")
    if space and len(head) <= _KNOWN_HEAD_BYTES:
        known = _whole_head(head)  # name, labels, one space, value: nearly every line there is
        if known is not None:
            only = _read_value(value_text)
            return None if only is None else (known, only)
    found = _read_head(line)
    value = None if found is None else _read_value(line[found[1] :])
    return None if found is None or value is None else (found[0], value)


@lru_cache(maxsize=8192)
def _whole_head(head: bytes) -> Labels | None:
    """The labels, if `head` is a name and labels and nothing more. Remembered: they are the same in every scrape, and
    on every server of a fleet. At most 8192 * 256 bytes of heads."""
    found = _read_head(head + b" ")
    return found[0] if found is not None and not head[found[1] :].strip() else None


def _read_head(line: bytes) -> tuple[Labels, int] | None:
    """The labels (none is fine) and the position after them; None if they are malformed."""
    name = _NAME.match(line)
    if name is None:
        return None
    at = name.end()
    if line[at : at + 1] == b"{":
        return _read_labels(line, at + 1)
    return ((), at) if line[at - 1 : at] in (b" ", b"\t") else None  # else nothing between the name and the rest


def read_float(text: str) -> float | None:
    """A number as Prometheus writes it (exponents, NaN, +Inf); None for `1_000`, which Python alone would accept."""
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _read_labels(line: bytes, at: int) -> tuple[Labels, int] | None:
    """The labels after the `{` before `at`, and the position after `}`; None if they are malformed."""
    empty = _EMPTY_LABELS.match(line, at)
    if empty:
        return (), empty.end()
    labels: list[tuple[str, str]] = []
    while len(labels) < _MAX_LABELS:
        match = _LABEL.match(line, at)
        if match is None:
            return None
        key, value, end = match.groups()
        text = value.decode("utf-8", "replace")
        labels.append((key.decode("ascii"), _unescape(text) if "\\" in text else text))
        at = match.end()
        if end.endswith(b"}"):
            break
    else:
        return None
    labels.sort()
    names = [name for name, _ in labels]
    return (tuple(labels), at) if len(set(names)) == len(names) else None


def _unescape(text: str) -> str:
    """Undo escapes of backslash, quote and line feed; another backslash stays. Splitting at pairs of backslashes first
    makes sure that one which is left begins an escape."""
    parts = text.split("\\\\")
    return "\\".join(part.replace('\\"', '"').replace("\\n", "\n") for part in parts)


def _read_value(text: bytes) -> float | None:
    tokens = text.decode("utf-8", "replace").split()
    if len(tokens) == 1:
        return read_float(tokens[0])
    if not tokens:
        return None
    timestamp = tokens[1:2] if tokens[1:2] != ["#"] else []
    after = tokens[1 + len(timestamp) :]
    if (timestamp and read_float(timestamp[0]) is None) or (after and after[0] != "#"):
        return None
    return read_float(tokens[0])
