"""What is under way: which servers were started and do not serve yet, and which one is on its way out?

It is kept in a file before anything is done, so that whoever comes after a crash knows what may have happened. Times
are Unix times, in seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from extproc.actuator.servers import SERVING, Server, find
from extproc.pool.member import State

VERSION = 1
FIRST_PAUSE_S = 10.0  # after a failure; doubled by each further one
LONGEST_PAUSE_S = 600.0


@dataclass(frozen=True, slots=True)
class Coming:
    """A server that was started, and does not serve yet."""

    number: int  # which start it was
    since: float  # before its command began
    before: tuple[str, ...]  # the addresses that were in the pool then: another one may be it
    endpoint: str | None = None  # host:port; None: its command did not tell, or has not ended
    # Its address may have been that of a server that was drained: then that drain is still to be ended.
    cleared: bool = False
    late: bool = False  # it was told that this one is late


class Leaving(StrEnum):
    """How far a server on its way out is."""

    DRAINING = "draining"  # its drain is to be begun, or goes on
    STOPPING = "stopping"  # its stop command has been begun, at least once


@dataclass(frozen=True, slots=True)
class Retiring:
    """The server on its way out."""

    endpoint: str
    since: float
    why: str
    serves: bool = True  # to bring it back is as good as to start another
    leaving: Leaving = Leaving.DRAINING
    told: dict[str, float] = field(default_factory=dict)  # when each service that was told of the drain had started
    gone_since: float | None = None  # the service does not know it, since then


@dataclass(frozen=True, slots=True)
class Pause:
    """After failures in a row."""

    failures: int = 0
    until: float = 0.0

    def longer(self, now: float) -> Pause:
        """After one more."""
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.failures, 32))
        return Pause(self.failures + 1, now + pause_s)

    def left_s(self, now: float) -> float:
        """0: it is over. A clock that was set back makes it no longer than it can be."""
        return min(max(0.0, self.until - now), LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class Account:
    """All of it, for one pool."""

    starts: int = 0  # begun so far
    coming: tuple[Coming, ...] = ()
    retiring: Retiring | None = None
    start_pause: Pause = Pause()
    retire_pause: Pause = Pause()

    def with_coming(self, changed: Coming) -> Account:
        """The one of the same number replaced."""
        return replace(self, coming=tuple(changed if each.number == changed.number else each for each in self.coming))

    def without_coming(self, number: int) -> Account:
        return replace(self, coming=tuple(each for each in self.coming if each.number != number))


class Change(StrEnum):
    """What was seen to happen to a server that was started."""

    APPEARED = "appeared"
    READY = "ready"
    LATE = "late"
    TAKEN = "taken"  # somebody drains it


@dataclass(frozen=True, slots=True)
class Event:
    change: Change
    coming: Coming
    after_s: float  # since its start


def observe(
    account: Account, servers: Sequence[Server], now: float, start_timeout_s: float
) -> tuple[Account, list[Event]]:
    """The account after a look at the pool, and what has happened. Whoever serves is not coming any more."""
    events: list[Event] = []
    leaving = None if account.retiring is None else account.retiring.endpoint
    # A new address is rather that of a server which is not late: of a late one there may be none.
    for each in sorted(account.coming, key=lambda coming: coming.late):
        if each.endpoint is not None and each.endpoint == leaving:
            continue  # given up
        after_s = max(0.0, now - each.since)
        if each.endpoint is None:
            told = [other.endpoint for other in account.coming if other.endpoint is not None]
            named = {server.address for server in servers if any(map(server.is_at, told))}
            new = [server.address for server in servers if server.address not in {*each.before, *named}]
            if new:
                # Who has a new address has no drain of somebody before it. A late one has its time from now on.
                since = now if each.late else each.since
                each = replace(each, endpoint=new[0], cleared=True, late=False, since=since)
                account = account.with_coming(each)
                events.append(Event(Change.APPEARED, each, after_s))
                after_s = max(0.0, now - since)
        server = None if each.endpoint is None else find(servers, each.endpoint)
        if server is not None and server.state in SERVING:
            account = replace(account.without_coming(each.number), start_pause=Pause())
            events.append(Event(Change.READY, each, after_s))
        elif server is not None and each.cleared and server.state not in (State.STARTING, State.UNHEALTHY):
            account = account.without_coming(each.number)
            events.append(Event(Change.TAKEN, each, after_s))
        elif after_s > start_timeout_s and not each.late:
            each = replace(each, late=True)
            account = replace(account.with_coming(each), start_pause=account.start_pause.longer(now))
            events.append(Event(Change.LATE, each, after_s))
    return account, events


def encode(account: Account) -> bytes:
    return json.dumps({"version": VERSION} | asdict(account), indent=1).encode() + b"\n"


def decode(text: bytes) -> Account:
    """Raises ValueError, with the reason, for what `encode` has not written."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    try:
        retiring = document["retiring"]
        return Account(
            starts=int(document["starts"]),
            coming=tuple([_coming(row) for row in document["coming"]]),
            retiring=None if retiring is None else _retiring(retiring),
            start_pause=_pause(document["start_pause"]),
            retire_pause=_pause(document["retire_pause"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _coming(row: dict[str, Any]) -> Coming:
    return Coming(
        number=int(row["number"]),
        since=float(row["since"]),
        before=tuple([str(each) for each in row["before"]]),
        endpoint=None if row["endpoint"] is None else str(row["endpoint"]),
        cleared=bool(row["cleared"]),
        late=bool(row["late"]),
    )


def _retiring(row: dict[str, Any]) -> Retiring:
    return Retiring(
        endpoint=str(row["endpoint"]),
        since=float(row["since"]),
        why=str(row["why"]),
        serves=bool(row["serves"]),
        leaving=Leaving(row["leaving"]),
        told={str(url): float(started) for url, started in row["told"].items()},
        gone_since=None if row["gone_since"] is None else float(row["gone_since"]),
    )


def _pause(row: dict[str, Any]) -> Pause:
    return Pause(int(row["failures"]), float(row["until"]))
