"""The admin HTTP server's recommendations: /autoscale/v1/pools, and /autoscale/v1/offered for our peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from extproc.autoscale.latest import Explained
from extproc.autoscale.recommendation import Signal

INDEX = """\
  /autoscale/v1/pools[/POOL]     how many servers a pool should have, and why; 503 while that is not known
  /autoscale/v1/offered          how many requests have come to this process, by pool
"""
# Of a recommendation, as they are.
_FIELDS = (
    "desired",
    "reason",
    "provisioned",
    "ready",
    "starting",
    "draining",
    "stale_servers",
    "verdict",
    "ttft_p99_s",
    "ttft_target_s",
    "age_s",
    "stale",
    "held",
    "cold_start_s",
    "lead_s",
    "min_too_low",
    "calm",
    "room",
    "down_ratio",
)
_NOT_YET = "the pool was not looked at yet"


def routes(latest: Explained, offered: Callable[[], Mapping[str, Any]]) -> list[web.RouteDef]:
    """Their routes. All answers are JSON. `offered`: the id of this process and its counts; see `telemetry.peers`."""

    async def every(_request: web.Request) -> web.Response:
        return web.json_response({"pools": {name: view(latest, name) for name in latest.names}})

    async def one(request: web.Request) -> web.Response:
        name = request.match_info["pool"]
        if name not in latest.names:
            known = ", ".join(sorted(latest.names))
            cure = f"those that do: {known}" if known else "give it a section autoscale in the settings"
            return web.json_response({"error": f'no pool "{name}" gets recommendations; {cure}'}, status=404)
        shown = view(latest, name)
        return web.json_response(shown, status=503 if "error" in shown else 200)

    async def counts(_request: web.Request) -> web.Response:
        return web.json_response(offered())

    return [
        web.get("/autoscale/v1/pools", every),
        web.get("/autoscale/v1/pools/{pool}", one),
        web.get("/autoscale/v1/offered", counts),
    ]


def view(latest: Explained, pool: str) -> dict[str, Any]:
    """One pool's; with `error` when there is no number to go by. null is unknown, never 0."""
    policy, remarks, found = latest.policy(pool), latest.remarks(pool), latest.get(pool)
    shown: dict[str, Any] = {
        "pool": pool,
        **{name: _round(getattr(found, name, None)) for name in _FIELDS},
        "min_replicas": policy.min_replicas,
        "max_replicas": policy.max_replicas,
        "signals": [] if found is None else [_signal(signal) for signal in found.signals],
        "calibrated": policy.calibration is not None,
        "tightened_to": _round(remarks.tightened_to),
        "warnings": list(remarks.warnings),
    }
    error = _NOT_YET if found is None else found.doubt
    return shown if error is None else shown | {"error": error}


def _signal(signal: Signal) -> dict[str, Any]:
    return {
        "name": str(signal.name),
        "value": _round(signal.value),
        "threshold": _round(signal.threshold),
        "replicas": signal.replicas,
        "age_s": _round(signal.age_s),
        "reason": signal.words,
    }


def _round(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value
