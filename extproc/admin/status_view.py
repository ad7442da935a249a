"""What do the status page and `extproc top` show?

One JSON document, made of what the other answers of the admin port say: `/status`, `/decisions`, the recommendations,
and the last hour. Ages and times are in seconds; null is unknown, never zero. Nothing of any prompt is in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from extproc.admin.known import mean, total
from extproc.pool.member import State
from extproc.pool.victim import SERVING

PICKS_SHOWN = 12
_MODELS_SHOWN = 3  # of an endpoint
_PATH_CHARS = 100  # it is the client's text
_BY = {
    "operator": "by the operator",
    "config": "by the configuration",
    "self": "by the server itself",
    "platform": "by its platform",
}


def view(
    status: Mapping[str, Any],
    decisions: Sequence[Mapping[str, Any]],
    recommendations: Mapping[str, Mapping[str, Any]],
    history: Mapping[str, Any],
) -> dict[str, Any]:
    """The document.

    `status`: what `status.status` gives; `decisions`: the newest picks, as `explain.decisions` has them;
    `recommendations`: by pool, of those that get one, as `autoscale_pages.view` has them; `history`: as `History.since`
    has it.
    """
    return {
        "version": status["version"],
        "time": status["time"],
        "uptime_s": status["uptime_s"],
        "ready": status["ready"],
        "warnings": status["warned"],
        "requests": {
            "in_flight": status["requests"]["in_flight"],
            "picks": sum(status["requests"]["picks"].values()),
            "rejections": status["requests"]["rejections"],
            "without_pick": status["requests"]["without_pick"],
        },
        "pools": [_pool(name, each, recommendations.get(name)) for name, each in status["pools"].items()],
        "picks": [_pick(each) for each in decisions],
        "history": dict(history),
    }


def _pool(name: str, pool: Mapping[str, Any], recommendation: Mapping[str, Any] | None) -> dict[str, Any]:
    endpoints = [_endpoint(each) for each in pool["endpoints"]]
    usage = mean(each["kv_usage_ratio"] for each in endpoints)
    return {
        "name": name,
        "profile": pool["profile"],
        "servers": len(endpoints),
        "serving": sum(each["state"] in SERVING for each in endpoints),
        "waiting": total(each["waiting"] for each in endpoints),
        "running": total(each["running"] for each in endpoints),
        "kv_usage_ratio": None if usage is None else round(usage, 3),
        "in_flight": sum(each["in_flight"] for each in endpoints),
        "hit_ratio": pool["hit_ratio"],
        "endpoints": endpoints,
        "autoscale": None if recommendation is None else dict(recommendation),
    }


def _endpoint(endpoint: Mapping[str, Any]) -> dict[str, Any]:
    sample, models = endpoint["sample"], endpoint["models"]
    fresh: Mapping[str, Any] = sample if sample is not None and sample["fresh"] else {}
    return {
        "address": endpoint["address"],
        "name": endpoint["hostname"] or None,
        "models": None if models is None else models[:_MODELS_SHOWN],
        "more_models": 0 if models is None else max(0, len(models) - _MODELS_SHOWN),
        "state": endpoint["state"],
        "why": _why(endpoint),
        "waiting": fresh.get("waiting"),
        "running": fresh.get("running"),
        "kv_usage_ratio": fresh.get("kv_usage_ratio"),
        "in_flight": endpoint["in_flight"],
        "hit_ratio": endpoint["hit_ratio"],
        "age_s": None if sample is None else sample["age_s"],
        "fresh": bool(fresh),
    }


def _why(endpoint: Mapping[str, Any]) -> str | None:
    """What there is to say of its state; None: nothing."""
    drain, sample = endpoint["drain"], endpoint["sample"]
    if drain is not None:
        words = [_BY.get(drain["by"], "")]
        if drain["blocked_by"] is not None:
            waits = {"in_flight": "its requests", "engine": "requests of others", "no fresh sample": "its metrics page"}
            words.append(f"waits for {waits.get(drain['blocked_by'], drain['blocked_by'])}")
        if drain["deadline_s"] is not None:
            words.append(f"{drain['deadline_s']:.0f} s left")
        if endpoint["state"] == State.EXPIRED:
            words.append(f"its deadline has passed with {drain['open_at_end'] or 0} requests there")
        return ", ".join(filter(None, words))
    if endpoint["problem"] is not None:
        return str(endpoint["problem"])
    if endpoint["state"] in SERVING and (sample is None or not sample["fresh"]):
        error = endpoint["last_scrape_error"]
        return "its load is not known" + (f": {error[:200]}" if error else "")
    if endpoint["warm_up_most"] is not None and endpoint["state"] == State.READY:
        return f"warms up: at most {endpoint['warm_up_most']} at once"
    return None


def _pick(logged: Mapping[str, Any]) -> dict[str, Any]:
    explained = logged["explanation"]
    request = explained["request"]
    chosen = next((each for each in explained["endpoints"] if each["rank"] == 1), None)
    return {
        "age_s": logged["age_s"],
        "pool": logged["pool"],
        "path": logged["path"][:_PATH_CHARS],
        "model": None if request is None else request["model"],
        "prompt_tokens": None if request is None or request["no_prompt"] is not None else request["prompt_tokens"],
        "held_tokens": None if chosen is None else chosen["held_tokens"],
        "picked": logged["picked"],
        "served": logged["served"],
        "outcome": logged["outcome"],
        "status": logged["status"],
        "duration_s": logged["duration_s"],
        "by": explained["by"],
        "panic": explained["panic"],
        "why": explained["why"].removeprefix(f"{logged['picked']}: "),
    }
