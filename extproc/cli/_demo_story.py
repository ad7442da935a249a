"""What happens in the demo, act by act, and what must hold in each?

Every check is a sentence that can fail; what was seen is told with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from extproc.cli._demo_fleet import Fleet
from extproc.cli._demo_traffic import Sent, Traffic
from extproc.cli._demo_watch import Watch
from extproc.cli._stack import Stack
from extproc.decision import Outcome
from extproc.pool.member import State

# Shares of the scripted time.
_STEADY, _BUSY, _DEAD, _BACK, _ALONE = 0.30, 0.20, 0.20, 0.15, 0.15
_FOLLOW_UPS = 6
_AT_ONCE = 40  # questions: their own words take one server longer than the document takes another
_DIRECT_REQUESTS = 18  # thrice what a server runs at once: twelve of them wait
_NOTICE_S = 15.0  # longest wait for a change to show; a scrape comes every 0.5 s, Envoy's health check every 2 s
_STEP_S = 0.05
_FEW = 3  # requests that an act needs to show anything, however short it is


class DemoError(Exception):
    """The demo cannot go on; a sentence for a person."""


@dataclass(slots=True)
class Story:
    """The script. `say` gets an act's title and text; `checked` each check: held, sentence, what was seen."""

    fleet: Fleet
    stack: Stack
    traffic: Traffic
    watch: Watch
    seconds: float
    say: Callable[[str, str], None]
    checked: Callable[[bool, str, str], None]
    failed: int = 0
    held: int = 0
    _busy_name: str = field(init=False, default="")
    _dead_name: str = field(init=False, default="")
    _killed_s: float = field(init=False, default=0.0)  # monotonic
    _running_there: int = field(init=False, default=0)  # requests that were with the dead server when it died

    async def play(self) -> None:
        """Run all acts. Raises DemoError when an act cannot be played."""
        names = self.fleet.names
        self._busy_name, self._dead_name = names[-1], names[-2]
        self.traffic.start()
        await self._steady()
        await self._hot()
        await self._busy()
        await self._dead()
        await self._back()
        await self._alone()
        await self._end()

    def _check(self, held: bool, sentence: str, seen: object = "") -> None:
        self.held += held
        self.failed += not held
        self.checked(held, sentence, str(seen))

    def _act(self, phase: str, title: str, text: str) -> None:
        self.traffic.phase = phase
        self.say(title, text)

    async def _until(self, condition: Callable[[], bool], what: str, timeout_s: float = _NOTICE_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise DemoError(f"not within {timeout_s:g} s: {what}")
            await asyncio.sleep(_STEP_S)

    async def _play_for(self, share: float) -> None:
        await asyncio.sleep(share * self.seconds)

    # The acts -------------------------------------------------------------------------------------------------------

    async def _steady(self) -> None:
        self._act(
            "steady",
            "1 of 6: mixed traffic",
            "Conversations, short chats, long prompts, completions, streamed or not. Each goes where its first token"
            " should come first, by what a server has cached of the prompt and what it still owes others. So a"
            " conversation stays where it is cached. No two servers have the same work, so counts differ.",
        )
        await self._play_for(_STEADY)
        await self._until(lambda: len(self.watch.got) == len(self.fleet.names), "every server gets requests")
        got = {name: self.watch.got[self.fleet.address(name)] for name in self.fleet.names}
        self._check(
            all(got.values()), f"every server got requests ({', '.join(f'{n} {c}' for n, c in got.items())})", got
        )

    async def _hot(self) -> None:
        self._act(
            "hot",
            "2 of 6: a document gets hot",
            "Somebody asks about a long document, and then again and again: the questions go where it is cached. Then"
            f" {_AT_ONCE} ask at once. Their turn there would come later than another server has read the document, so"
            " others read it, too.",
        )
        (first,) = await self.traffic.ask(1)
        later = [sent for _ in range(_FOLLOW_UPS) for sent in await self.traffic.ask(1)]
        # Also to another server, if one had to read it since: when the first was busy, that was sooner.
        found = sum(_cached_ratio([sent]) > 0.5 for sent in later)
        served, cached = Counter(sent.server or "nobody" for sent in later), _cached_ratio(later)
        self._check(
            2 * found > len(later) and cached > 0.5 and served[first.server or "nobody"] > 0,
            f"{found} of {len(later)} later questions went where the document was cached ({_shares(served)}; it was"
            f" first read by {first.server}); {cached:.0%} of their tokens were cached",
            served,
        )
        burst = await self.traffic.ask(_AT_ONCE)
        served, cached = Counter(sent.server or "nobody" for sent in burst), _cached_ratio(burst)
        shares = _shares(served)
        self._check(
            len(served) > 1 and max(served.values()) < 0.8 * len(burst) and cached > 0.5,
            f"{len(burst)} questions at once spread ({shares}); {cached:.0%} of their tokens were cached",
            f"{shares}, {cached:.0%} cached",
        )

    async def _busy(self) -> None:
        name, address = self._busy_name, self.fleet.address(self._busy_name)
        self._act(
            "getting busy",
            f"3 of 6: {name} gets busy",
            f"Somebody sends {_DIRECT_REQUESTS} long requests to {name} directly, past the gateway. The service sees it"
            f" in {name}'s own metrics (waiting, KV) and sends new requests to the others.",
        )
        self.fleet.occupy(name, _DIRECT_REQUESTS)
        many = _DIRECT_REQUESTS / 2
        await self._until(lambda: (self._waiting(address) or 0) >= many, f"{name}'s metrics show waiting requests")
        self.traffic.phase, self.traffic.lie = "busy", address
        before = Counter(self.watch.got)
        await self._play_for(_BUSY)
        await self._until(lambda: len(self._lies()) >= _FEW, "clients name a server themselves")
        after = Counter(self.watch.got)
        self.traffic.lie = None
        new = after - before
        total, to_busy = new.total(), new[address]
        fair = total / len(self.fleet.names)
        self._check(
            to_busy < fair / 2,
            f"while {name} was busy it got {to_busy} of {total} new requests (an equal share is {fair:.0f})",
            f"{to_busy} of {total}",
        )
        await self.fleet.relieve()
        await self._until(lambda: self._waiting(address) == 0, f"{name} is free again")

    async def _dead(self) -> None:
        name, address = self._dead_name, self.fleet.address(self._dead_name)
        self._act(
            "dying",
            f"4 of 6: {name} dies",
            f"{name} is killed: its connections are reset, its port is closed. Requests already sent to it go on to"
            " the next host of their list; after two refused scrapes it is named no more. Only answers that were under"
            " way there break off: nobody can repeat half an answer.",
        )
        self._killed_s, self._running_there = time.monotonic(), self.watch.member(address).in_flight
        await self.fleet.servers[name].kill()
        await self._until(lambda: self._state(address) is State.UNHEALTHY, f"the service notices that {name} is dead")
        self.say("", f"noticed {time.monotonic() - self._killed_s:.1f} s after the kill")
        self.traffic.phase = "dead"
        first = len(self.watch.picks)
        await self._play_for(_DEAD)
        await self._until(lambda: len(self.watch.picks) >= first + _FEW, "requests are picked for the others")
        named = sum(address in pick.destination for pick in list(self.watch.picks)[first:])
        total = len(self.watch.picks) - first
        self._check(named == 0, f"once noticed dead, {name} was named in none of {total} picks", f"in {named}")

    async def _back(self) -> None:
        name, address = self._dead_name, self.fleet.address(self._dead_name)
        self._act("returning", f"5 of 6: {name} comes back", f"{name} starts again, with an empty cache.")
        await self.fleet.servers[name].start()
        returned = (State.READY, State.RETURNING)  # slowly, if the log told of errors in a row
        await self._until(lambda: self._state(address) in returned, f"the service notices that {name} is back")
        self.traffic.phase = "back"
        before, started_s = self.watch.got[address], time.monotonic()
        await self._play_for(_BACK)
        await self._until(
            lambda: any(s.ok and s.server == name and s.started_s > started_s for s in self.traffic.sent),
            f"{name} answers a request",
        )
        self._check(True, f"{name} came back and got {self.watch.got[address] - before} requests")

    async def _alone(self) -> None:
        self._act(
            "service dies",
            "6 of 6: the service itself dies",
            "No picks now. Envoy lets requests through (failure_mode_allow) and chooses by its own fallback policy.",
        )
        await self.stack.kill_service()
        self.watch.down = True
        await self._play_for(_ALONE)
        await self._until(lambda: self._ended("service dies") >= _FEW, "requests end without the service")
        picks = len(self.watch.picks)
        self.traffic.phase = "service returns"
        await self.stack.start_service()
        await self._until(lambda: len(self.watch.picks) > picks, "Envoy asks the restarted service")
        self.say("", "the service is back, and Envoy asks it again")

    async def _end(self) -> None:
        self._act("end", "The end", "No new requests; the last answers come in.")
        await self.traffic.finish()
        ledger = self.watch.app.router.ledger
        # Whether these two came true is asked by the checks.
        with contextlib.suppress(DemoError):
            await self._until(lambda: ledger.open_count == 0, "no request is counted as in flight")
            await self._until(lambda: ledger.outcomes.total() == ledger.picks.total(), "every pick's end is in the log")
        self._client_checks()
        self._fleet_checks()
        await self._envoy_checks()

    # What must hold over all acts -----------------------------------------------------------------------------------

    def _client_checks(self) -> None:
        sent = self.traffic.sent
        failures = [s for s in sent if not s.ok]
        broken = [s for s in failures if s.started_s < self._killed_s <= (s.ended_s or self._killed_s)]
        others = [s for s in failures if s not in broken]
        self._check(
            len(broken) <= self._running_there,
            f"{len(broken)} answers broke off when {self._dead_name} died, with {self._running_there} requests on it",
            _first(broken),
        )
        self._check(
            not others, f"all other {len(sent) - len(broken)} requests were answered, and completely", _first(others)
        )
        gone = self.traffic.of("dying", "dead", "returning")
        self._check(
            all(s.ok for s in gone if s.started_s > self._killed_s),
            f"no request sent after {self._dead_name} died failed ({len(gone)} of them)",
            _first([s for s in gone if not s.ok and s.started_s > self._killed_s]),
        )
        alone = self.traffic.of("service dies")
        self._check(
            bool(alone) and all(s.ok for s in alone),
            f"without the service, all {len(alone)} requests were answered by Envoy's own choice",
            _first([s for s in alone if not s.ok]),
        )
        turns = [s for s in self.traffic.of("steady", "hot", "busy") if s.before is not None and s.ok]
        stayed, cached = sum(s.server == s.before for s in turns), _cached_ratio(turns)
        self._check(
            2 * stayed > len(turns) and cached > 0.5,
            f"{stayed} of {len(turns)} turns of conversations went to the server of the turn before; {cached:.0%} of"
            " their tokens were cached",
            "half of each is wanted",
        )
        streams = [s for s in sent if s.kind == "raw stream" and s not in broken]
        self._check(
            bool(streams) and all(s.complete for s in streams),
            f"{len(streams)} streams, read as raw bytes, ended with [DONE]",
            _first([s for s in streams if not s.complete]),
        )
        # One or another may be picked for it in earnest: a conversation that it has cached is worth a queue. If Envoy
        # believed them, all would be there.
        lies = self._lies()
        there = sum(s.server == self._busy_name for s in lies)
        self._check(
            4 * there < len(lies),
            f"{len(lies)} clients named {self._busy_name} in x-gateway-destination-endpoint; that had no effect:"
            f" {there} were served there",
            "fewer than a quarter is wanted" if lies else "none was sent",
        )

    def _fleet_checks(self) -> None:
        arrived = {
            name: {seen.body_sha256 for seen in server.ledger.requests} for name, server in self.fleet.servers.items()
        }
        bodies = [s for s in self.traffic.sent if s.ok and s.body_sha256 is not None]
        changed = [s for s in bodies if s.server is None or s.body_sha256 not in arrived[s.server]]
        self._check(
            bool(bodies) and not changed,
            f"{len(bodies)} bodies reached their server byte for byte as sent",
            _first(changed),
        )
        elsewhere = sum(app.router.ledger.served_elsewhere for app in self.watch.apps)
        served = sum(
            count
            for app in self.watch.apps
            for (_, outcome), count in app.router.ledger.outcomes.items()
            if outcome is not Outcome.UNKNOWN
        )
        self._check(
            elsewhere == 0 and served > 0,
            f"Envoy's log tells of {served} picked requests: each ran on a host that its pick named",
            f"{elsewhere} of {served} elsewhere",
        )
        left = self.watch.app.router.ledger.open_count
        self._check(left == 0, "no request is counted as in flight at the end", f"{left} are")

    async def _envoy_checks(self) -> None:
        stats = await self.stack.admin.stats(r"\.ext_proc\.")
        for words, name in (
            ("unexpected answers", "spurious_msgs_received"),
            ("header changes", "rejected_header_mutations"),
        ):
            found = {key: value for key, value in stats.items() if key.endswith(f".{name}")}
            self._check(
                bool(found) and not any(found.values()),
                f"Envoy refused 0 {words} of the service",
                found or "no such count",
            )

    # Small questions ------------------------------------------------------------------------------------------------

    def _waiting(self, address: str) -> float | None:
        sample = self.watch.member(address).fresh_sample(time.monotonic())
        return None if sample is None else sample.waiting

    def _state(self, address: str) -> State:
        return self.watch.member(address).state(time.monotonic())

    def _lies(self) -> list[Sent]:
        """Requests that named a server themselves. One without a body has no pick: Envoy alone chooses, and may well
        choose that server."""
        return [s for s in self.traffic.sent if s.lie is not None and s.kind != "models"]

    def _ended(self, phase: str) -> int:
        return sum(s.ended_s is not None for s in self.traffic.of(phase))


def _cached_ratio(sent: list[Sent]) -> float:
    """Of the prompts' tokens, what the servers say that they had cached; 0 if there are none."""
    tokens = sum(s.prompt_tokens for s in sent)
    return sum(s.cached_tokens for s in sent) / tokens if tokens else 0.0


def _shares(served: Counter[str]) -> str:
    """How many each server got, the most first."""
    return ", ".join(f"{name} {count}" for name, count in served.most_common())


def _first(sent: list[Sent]) -> str:
    """What a person needs of failed requests: how many, and what the first one met."""
    if not sent:
        return ""
    s = sent[0]
    what = s.error or ("its answer has no end" if s.ended_s is not None else "it has not ended")
    return (
        f"{len(sent)}; the first: request {s.number} ({s.kind}, while: {s.phase}, on {s.server or 'no server'}): {what}"
    )
