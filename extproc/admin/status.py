"""What is the service doing, as JSON for people and scripts?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from extproc.admin.drain_view import view
from extproc.admin.status_history import History
from extproc.admin.status_warnings import warnings
from extproc.autoscale.latest import Explained
from extproc.pool.member import Member
from extproc.pool.reservation import Reservation
from extproc.router import PoolPlan, Router
from extproc.scheduling.tally import Tally

RECENT_SHOWN = 50
MODELS_SHOWN = 100  # of an endpoint


def status(
    router: Router,
    *,
    now: float,
    ready: bool,
    started_s: float,
    version: str,
    streams: dict[str, int],
    access_log: dict[str, int],
    failing: Mapping[str, Mapping[str, str]] | None = None,
    eds: Mapping[str, Any] | None = None,
    config_file: Mapping[str, Any] | None = None,
    autoscale: Explained | None = None,
    history: History | None = None,
    wall_clock: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """The whole status. Ages are in seconds; null means unknown, never zero.

    `failing`: by pool, what its discovery cannot find out (a DNS name, a file), and why. `eds`: what Envoys are told of
    endpoints. `config_file`: whether changes of it could be followed; None: they are not. `autoscale`: the
    recommendations. `history`: of the last hour; None: none is kept.
    """
    ledger, failing = router.ledger, failing or {}
    warned = warnings(
        router,
        now,
        ready=ready,
        uptime_s=now - started_s,
        streams=streams,
        access_log=access_log,
        failing=failing,
        eds=eds or {},
        config_file=config_file or {},
        autoscale=autoscale,
        lately=None if history is None else history.lately(router, now=now, streams=streams.get("total", 0)),
    )
    return {
        "version": version,
        "ready": ready,
        "uptime_s": _round(now - started_s),
        "time": wall_clock(),
        "warnings": [each.text for each in warned],
        "warned": [{"level": each.level.name.lower(), "text": each.text} for each in warned],
        "pools": {
            name: _pool(plan, now, wall_clock(), failing.get(name, {}), history)
            | {"prompts": _prompts(router.placements[name].tally), "autoscale": _autoscale(autoscale, name)}
            for name, plan in router.plans.items()
        },
        "streams": streams,
        "access_log": access_log,
        "eds": dict(eds or {}),
        "config_file": dict(config_file) if config_file is not None else None,
        "requests": {
            "picks": dict(ledger.picks),
            "rejections": {str(reason): count for reason, count in ledger.rejections.items()},
            "panic_picks": dict(ledger.panics),
            "moved": ledger.moved,
            "served_elsewhere": ledger.served_elsewhere,
            "without_pick": ledger.unpicked,
            "unknown_names": {str(by): count for by, count in router.unknown.counts.items()},
            "in_flight": ledger.open_count,
        },
        "recent": [recent(r, now) for r in reversed(list(ledger.recent)[-RECENT_SHOWN:])],
    }


def _pool(
    plan: PoolPlan, now: float, wall_now: float, failing: Mapping[str, str], history: History | None
) -> dict[str, Any]:
    members = plan.pool.members
    return {
        "profile": plan.profile.name,
        "hosts_per_pick": plan.hosts,
        "hit_ratio": _round(None if history is None else history.pool_hit_ratio(members)),
        "endpoints": [
            _endpoint(member, now, wall_now)
            | {"hit_ratio": _round(None if history is None else history.hit_ratio(member))}
            for member in members
        ],
        "failing": dict(failing),
        "starts": {
            "seen": plan.pool.starts.count,
            "median_s": _round(plan.pool.starts.median_s),
            "last_s": [_round(each) for each in plan.pool.starts.last_s],
        },
        "leaving": [{"address": str(m.address), "in_flight": m.in_flight} for m in plan.pool.leaving],
    }


def _autoscale(latest: Explained | None, pool: str) -> dict[str, Any] | None:
    """In short; `/autoscale/v1/pools` tells all. None: the pool gets no recommendations."""
    if latest is None or pool not in latest.names:
        return None
    found = latest.get(pool)
    if found is None:
        return {"desired": None, "stale": True, "verdict": None, "reason": "the pool was not looked at yet"}
    return {"desired": found.desired, "stale": found.stale, "verdict": found.verdict, "reason": found.reason}


def _prompts(tally: Tally) -> dict[str, Any]:
    return {
        "ways": {way.name.lower(): count for way, count in tally.ways.items()},
        "keyless": {str(reason): count for reason, count in tally.keyless.items()},
        "apis": {
            str(api): {
                "picks": counts.picks,
                "prompt_tokens": round(counts.prompt_tokens),
                "held_tokens": round(counts.held_tokens),
                "held_ratio": _round(counts.held_ratio),
            }
            for api, counts in tally.apis.items()
            if counts.picks
        },
    }


def _endpoint(member: Member, now: float, wall_now: float) -> dict[str, Any]:
    endpoint, sample, health = member.endpoint, member.sample, member.health
    return {
        "address": str(endpoint.address),
        "hostname": endpoint.hostname,
        "weight": endpoint.weight,
        "models": None if member.models is None else sorted(member.models)[:MODELS_SHOWN],
        "models_age_s": _age(member.models_at_s, now),
        "last_models_error": member.models_error,
        "state": str(member.state(now)),
        "drain": None if member.drain is None else view(member, now, wall_now - now),
        "problem": member.problem(now),
        "last_scrape_error": health.last_error,
        "start_s": _round(member.start_s),
        "warm_up_most": member.warm_up.most,
        "token_interval_p99_s": _round(member.token_interval.p99_s),
        "in_flight": member.in_flight,
        "sent_since_sample": member.unseen,
        "sample": None
        if sample is None
        else {
            "age_s": _round(now - sample.taken_at_s),
            "fresh": member.fresh_sample(now) is not None,
            "running": sample.running,
            "waiting": sample.waiting,
            "kv_usage_ratio": _round(sample.kv_usage_ratio),
            "models": list(sample.models),
            "rejected_values": sample.rejected_values,
            "truncated": sample.truncated,
        },
    }


def recent(reservation: Reservation, now: float) -> dict[str, Any]:
    """One pick, and how it ended."""
    completion = reservation.completion
    ended_s = reservation.ended_at_s
    return {
        "age_s": _round(now - reservation.picked_at_s),
        "pool": reservation.pool,
        "path": reservation.path.partition("?")[0],
        "picked": str(reservation.pick.address),
        "fallbacks": [str(address) for address in reservation.pick.fallbacks],
        "on": str(reservation.member.address),
        "outcome": str(reservation.outcome) if reservation.outcome is not None else "in_flight",
        "duration_s": _round(None if ended_s is None else ended_s - reservation.picked_at_s),
        "served": str(completion.served) if completion and completion.served else None,
        "status": completion.status if completion else None,
        "attempts": completion.attempts if completion else None,
        "first_byte_s": _round(completion.first_byte_s) if completion else None,
        "envoy_duration_s": _round(completion.duration_s) if completion else None,
        "details": completion.details if completion else "",
        "flags": list(completion.flags) if completion else [],
    }


def _age(at_s: float, now: float) -> float | None:
    return None if at_s == float("-inf") else _round(now - at_s)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
