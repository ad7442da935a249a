"""How does a drain look as JSON? Null: there is none, or nothing is known; never zero."""

from __future__ import annotations

from typing import Any

from extproc.admin.drain_file import Saved
from extproc.pool.drain import Blocked, Phase
from extproc.pool.member import Member


def view(member: Member, now: float, ahead: float) -> dict[str, Any]:
    """A server's drain. `ahead`: the wall clock's time minus `now`."""
    drain, fresh = member.drain, member.fresh_sample(now)
    shown: dict[str, Any] = {
        "phase": None if drain is None else str(drain.phase),
        "by": None if drain is None else str(drain.by),
        "in_flight": member.in_flight,
        "running": None if fresh is None else fresh.running,
        "waiting": None if fresh is None else fresh.waiting,
        "blocked_by": None,
        "started": None,
        "deadline_s": None,
        "open_at_end": None,
    }
    if drain is None:
        return shown
    blocked_by = drain.blocked_by(now, member.in_flight, member.stale_after_s)
    shown["blocked_by"] = None if blocked_by is None else str(blocked_by)
    shown["started"] = None if drain.started_s is None else round(drain.started_s + ahead, 3)
    if drain.deadline_s is not None and drain.phase is Phase.DRAINING:
        shown["deadline_s"] = round(max(0.0, drain.deadline_s - now), 3)
    shown["open_at_end"] = drain.open_at_end
    return shown


def absent(saved: Saved, wall_now: float, *, phase: str | None) -> dict[str, Any]:
    """A saved drain whose server has not appeared since the service started."""
    left_s = None if saved.deadline is None else round(max(0.0, saved.deadline - wall_now), 3)
    going_on = phase == Phase.DRAINING
    return {
        "endpoint": str(saved.endpoint),
        "pool": saved.pool,
        "state": "absent",
        "phase": phase,
        "by": min(map(str, saved.by)),
        "in_flight": 0,
        "running": None,
        "waiting": None,
        "blocked_by": str(Blocked.NO_SAMPLE) if going_on else None,
        "started": saved.started,
        "deadline_s": left_s if going_on else None,
        "open_at_end": saved.open,
    }
