"""Do the routes let long generations live, and does a dead or full server cost only a retry?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extproc.config.codes import Finding
from extproc.config.rules.rule import ERROR, WARNING, Say, rule
from extproc.config.tree import Node
from extproc.config.view import Chain, Route, View

LONG_S = 600.0  # a long answer at a slow 10 tokens a second
SAFE_RETRIES = ("connect-failure", "reset-before-request", "refused-stream", "retriable-status-codes")


def _routes(view: View) -> Iterator[tuple[Chain, Route]]:
    for chain in view.chains:
        for route in chain.routes:
            yield chain, route


@rule(
    "route-timeout",
    ERROR,
    why="The timeout bounds the whole response; unset it is 15 s, and longer generations are cut off.",
    cure="set timeout: 0s",
)
def route_timeout(view: View, say: Say) -> Iterator[Finding]:
    for _, route in _routes(view):
        timeout = route.message.route.timeout
        if timeout is None:
            yield say(route.node, "is not set, and the default is 15 s", "route.timeout")
        elif 0 < timeout.total_seconds() < LONG_S:
            yield say(route.node, f"{timeout.total_seconds():g} s is short for a generation", "route.timeout")


@rule(
    "stream-idle-timeout",
    WARNING,
    why="A request that waits in a server's queue is idle until its first token; unset the limit is 5 minutes.",
    cure="set stream_idle_timeout: 3600s",
)
def stream_idle_timeout(view: View, say: Say) -> Iterator[Finding]:
    for chain in view.chains:
        timeout = chain.message.stream_idle_timeout
        if timeout is None:
            yield say(chain.node, "is not set, and the default is 5 minutes", "stream_idle_timeout")
        elif 0 < timeout.total_seconds() < LONG_S:
            yield say(chain.node, f"{timeout.total_seconds():g} s is short for a queue", "stream_idle_timeout")
    for _, route in _routes(view):
        timeout = route.message.route.idle_timeout
        if timeout is not None and 0 < timeout.total_seconds() < LONG_S:
            cure = "set idle_timeout: 3600s, or leave it out"
            yield say(route.node, f"{timeout.total_seconds():g} s is short for a queue", "route.idle_timeout", cure)


def _policy(chain: Chain, route: Route) -> tuple[Node, str, Any] | None:
    """The retry policy that is in force for a route, and where it stands."""
    if route.message.route.retry_policy is not None:
        return route.node, "route.retry_policy", route.message.route.retry_policy
    if route.host.retry_policy is not None:
        return route.host_node, "retry_policy", route.host.retry_policy
    return None


def _policies(view: View) -> Iterator[tuple[Node, str, Any, Route]]:
    seen: set[str] = set()
    for chain, route in _routes(view):
        found = _policy(chain, route)
        if found is not None and f"{found[0].path}.{found[1]}" not in seen:
            seen.add(f"{found[0].path}.{found[1]}")
            yield (*found, route)


@rule(
    "retry-missing",
    ERROR,
    why="Without retries the fallbacks that the service names are never used: one dead or full server fails requests.",
    cure="set retry_policy as in the shipped envoy.yaml",
)
def retry_missing(view: View, say: Say) -> Iterator[Finding]:
    for chain, route in _routes(view):
        if _policy(chain, route) is None:
            yield say(route.node, "neither the route nor its virtual host has one", "route.retry_policy")


@rule(
    "retry-on-incomplete",
    WARNING,
    why="These are the failures that happen before a server has begun, so a repeat elsewhere is safe and invisible.",
    cure="set retry_on: " + ",".join(SAFE_RETRIES) + " and retriable_status_codes: [503]",
)
def retry_on_incomplete(view: View, say: Say) -> Iterator[Finding]:
    for node, field, policy, _ in _policies(view):
        given = {word.strip() for word in str(policy.retry_on or "").split(",")}
        missing = [word for word in SAFE_RETRIES if word not in given]
        if "retriable-status-codes" in given and 503 not in policy.retriable_status_codes:
            missing.append("503 in retriable_status_codes")
        if missing:
            yield say(node, "lacks " + ", ".join(missing), f"{field}.retry_on")


@rule(
    "retry-count-low",
    WARNING,
    why="Each retry uses the next server named; with fewer retries the last ones named are never tried.",
    cure="set num_retries to scheduling.hosts less one",
)
def retry_count_low(view: View, say: Say) -> Iterator[Finding]:
    if view.settings is None:
        return
    for node, field, policy, route in _policies(view):
        wanted = 0
        for name in route.pools:
            pool = view.settings.pools.get(name)
            if pool is not None:
                hosts = (pool.scheduling or view.settings.scheduling).hosts
                wanted = max(wanted, min(hosts, len(pool.endpoints) or hosts) - 1)
        retries = 1 if policy.num_retries is None else policy.num_retries
        if retries < wanted:
            yield say(node, f"{retries} retries for {wanted + 1} hosts per pick", f"{field}.num_retries")


@rule(
    "per-try-timeout-low",
    WARNING,
    why="A try that is cut off and repeated makes a second server do the same work, when all are slow already.",
    cure="leave per_try_timeout out",
)
def per_try_timeout_low(view: View, say: Say) -> Iterator[Finding]:
    for node, field, policy, _ in _policies(view):
        for name in ("per_try_timeout", "per_try_idle_timeout"):
            timeout = getattr(policy, name)
            if timeout is not None and 0 < timeout.total_seconds() < LONG_S:
                cure = f"leave {name} out"
                yield say(node, f"{timeout.total_seconds():g} s is short", f"{field}.{name}", cure)
