"""What went wrong for clients, and what was it caused by?

Causes are told from accounts, never guessed: Envoy's access log names the server that a request ended on and how; the
events are known with their times; the servers' own logs tell what arrived, and when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SLACK_S = 0.25  # between the clocks' readings in different processes, and for a signal to take effect
NOTICED_S = 2.0  # a server's death is seen by those it served within this


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request, as its client saw it. Times are Unix times."""

    request: str
    started_s: float
    ended_s: float
    error: str | None  # None: the whole answer came
    server: str | None = None  # that began to answer; None: none did
    status: int | None = None


@dataclass(frozen=True, slots=True)
class EnvoyEntry:
    """What Envoy's access log says of a request."""

    host: str | None  # of the last attempt
    status: int
    flags: str
    details: str
    started_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request at a server, by the server's own log."""

    request: str
    address: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that was done to a server (its address) or to a service process (its name)."""

    kind: str  # kill, stop (SIGTERM after a drain), service, flap
    what: str
    event: str  # which of the run's events it belongs to
    from_s: float
    to_s: float


@dataclass(slots=True)
class Drained:
    """A server from the acknowledgement of its drain to its end, or to when it was brought back."""

    address: str
    event: str
    ack_s: float
    until_s: float | None = None  # None: to the end of the run


@dataclass(frozen=True, slots=True)
class Cause:
    kind: str  # of the happening; unexplained: none fits
    event: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    requests: int
    causes: Mapping[str, Cause]  # of each request that failed
    sent_after_ack: Sequence[Arrival]
    on_their_way: Sequence[tuple[Arrival, float]]  # began before the acknowledgement; seconds after it
    problems: Sequence[str] = field(default=())

    def count(self, kind: str) -> int:
        return sum(cause.kind == kind for cause in self.causes.values())

    def missed(self, in_flight_end: int) -> list[str]:
        """The musts that were missed, in words."""
        musts = {
            f"{self.count('stop')} streams cut by drains": self.count("stop"),
            f"{self.count('service')} requests failed by restarts of the service": self.count("service"),
            f"{self.count('flap')} requests failed on a flapping server": self.count("flap"),
            f"{self.count('unexplained')} errors that no event explains": self.count("unexplained"),
            f"{len(self.sent_after_ack)} requests sent to a server after its drain": len(self.sent_after_ack),
            f"{in_flight_end} requests in flight at the end": in_flight_end,
        }
        return [words for words, count in musts.items() if count] + list(self.problems)


def judge(
    outcomes: Sequence[Outcome],
    envoy: Mapping[str, EnvoyEntry],
    arrivals: Sequence[Arrival],
    happenings: Sequence[Happening],
    drains: Sequence[Drained],
    problems: Sequence[str] = (),
) -> Verdict:
    causes = {
        each.request: cause_of(each, envoy.get(each.request), happenings) for each in outcomes if each.error is not None
    }
    began = {each.request: each.started_s for each in outcomes}
    after: list[Arrival] = []
    on_their_way: list[tuple[Arrival, float]] = []
    for drain in drains:
        for arrival in arrivals:
            if arrival.address != drain.address or not drain.ack_s < arrival.at_s <= (drain.until_s or float("inf")):
                continue
            if began.get(arrival.request, drain.ack_s) < drain.ack_s:
                on_their_way.append((arrival, arrival.at_s - drain.ack_s))
            else:
                after.append(arrival)
    return Verdict(len(outcomes), causes, after, on_their_way, problems)


def cause_of(outcome: Outcome, entry: EnvoyEntry | None, happenings: Sequence[Happening]) -> Cause:
    """By which event a request failed: the last that was done to its server by then."""
    if entry is None:
        return Cause("unexplained", "", f"{outcome.error}; Envoy has no entry of it")
    text = f"{outcome.error}; Envoy: host {entry.host}, {entry.status} {entry.flags} {entry.details}"
    for each in sorted(happenings, key=lambda happening: happening.from_s, reverse=True):
        here = entry.details.startswith("ext_proc") if each.kind == "service" else each.what == entry.host
        if here and each.from_s - SLACK_S <= entry.ended_s and each.to_s + NOTICED_S >= entry.ended_s:
            return Cause(each.kind, each.event, text)
    return Cause("unexplained", "", text)


def entry_of(line: Mapping[str, Any]) -> tuple[str, EnvoyEntry]:
    """Read a line of Envoy's access log, as `front` has it written."""
    started_s = float(line["started"])
    return str(line["request"]), EnvoyEntry(
        host=line["host"] or None,
        status=int(line["status"] or 0),
        flags=str(line["flags"] or "-"),
        details=str(line["details"] or "-"),
        started_s=started_s,
        ended_s=started_s + float(line["duration_ms"]) / 1000,
    )
