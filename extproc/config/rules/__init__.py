"""What in an envoy.yaml is legal to Envoy and still goes wrong? One small function a rule, each with a stable code."""

from __future__ import annotations

from extproc.config.codes import Finding
from extproc.config.rules import chain, destination, eds, limits, log, overrides, pool, processor, routes, service
from extproc.config.rules.rule import RULES
from extproc.config.view import View

__all__ = [
    "RULES",
    "chain",
    "destination",
    "eds",
    "findings",
    "limits",
    "log",
    "overrides",
    "pool",
    "processor",
    "routes",
    "service",
]


def findings(view: View) -> list[Finding]:
    """Everything that all rules have to say."""
    return [finding for rule in RULES for finding in rule(view)]
