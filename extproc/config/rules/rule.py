"""What is a rule? A function of the view that yields findings, known by its code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from extproc.config.codes import Code, Finding, define
from extproc.config.problems import Severity
from extproc.config.tree import Node
from extproc.config.view import View

ERROR, WARNING = Severity.ERROR, Severity.WARNING


class Say(Protocol):
    """Makes a finding of the rule's code: what is wrong, at `field` under `node`."""

    def __call__(self, node: Node, message: str, field: str = "", cure: str | None = None) -> Finding: ...


Rule = Callable[[View], Iterator[Finding]]
RULES: list[Rule] = []


def rule(
    name: str, severity: Severity, *, why: str, cure: str
) -> Callable[[Callable[[View, Say], Iterator[Finding]]], Rule]:
    """Register a rule under a code; `why` and `cure` also make its line in the manual."""
    code: Code = define(name, severity, why, cure)

    def say(node: Node, message: str, field: str = "", cure: str | None = None) -> Finding:
        return Finding(code, node, message, field, cure)

    def register(function: Callable[[View, Say], Iterator[Finding]]) -> Rule:
        def run(view: View) -> Iterator[Finding]:
            return function(view, say)

        run.__name__, run.__doc__ = function.__name__, function.__doc__
        RULES.append(run)
        return run

    return register
