"""Which series and labels does a PromQL expression name?

Enough of a parser for the expressions of this project: of their grammar Prometheus itself is the judge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SELECTOR = re.compile(rf"({_NAME})\s*\{{([^}}]*)\}}")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_BARE = re.compile(rf"\b({_NAME})\b(?!\s*\()")
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring", "inf", "nan"})


@dataclass(frozen=True)
class Used:
    series: dict[str, frozenset[str]]  # the labels that its selectors match, by the name of the series
    grouping: frozenset[str]  # labels in by (), on () and so on


def used(expression: str) -> Used:
    """Template variables of Grafana's may stand in it."""
    series: dict[str, set[str]] = {}
    text = _STRING.sub('""', expression)
    for name, matchers in _SELECTOR.findall(text):
        series.setdefault(name, set()).update(re.findall(rf"({_NAME})\s*(?:=~|!~|!=|=)", matchers))
    text = _RANGE.sub("", _SELECTOR.sub("0", text))
    grouping = {label.strip() for clause in _GROUPING.findall(text) for label in clause.split(",") if label.strip()}
    for name in _BARE.findall(_GROUPING.sub("", text)):
        if name.lower() not in _WORDS:
            series.setdefault(name, set())
    return Used({name: frozenset(labels) for name, labels in series.items()}, frozenset(grouping))
