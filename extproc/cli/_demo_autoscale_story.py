"""What happens in the autoscaling demo, act by act, and what must hold in each?

Every check is a sentence that can fail; what was seen is told with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from extproc.cli._demo_autoscale_config import MIN_REPLICAS
from extproc.cli._demo_autoscale_fleet import COLD_START_S, NAME, TTFT_P99_S
from extproc.cli._demo_autoscale_load import Load, Sent
from extproc.cli._demo_autoscale_scaler import Happening, Scaler
from extproc.cli._demo_autoscale_watch import Look, Watch
from extproc.cli._demo_story import DemoError

BASE_PER_S = 1.0  # what the smallest fleet can have with room to spare
PEAK_PER_S = 5.2
_BEGIN_S = 15.0
_STEADY_S = 10.0
_RAMP_S = 65.0
_HOLD_S = 8.0
_FALL_S = 4.0
_COME_S = 60.0  # longest wait for servers to start cold
_GO_S = 110.0  # longest wait until a server has gone: it takes two cold starts of low load, and the drain
_SETTLE_S = 45.0
_STEP_S = 0.1
_WITHIN = 0.97  # of the requests of the ramp must have their first token within the target
_AROUND_S = 4.0  # before and after a stall of this machine: streams of that time were slowed by it
_COUNTED = 0.5  # of all streams of the ramp at least so many must have been in time, whatever the machine did
_QUEUED = 0.1  # of the time waiting may have been over its threshold
_UNTIL_HEARD_S = 0.5  # from the drain to the last request that was already on its way


@dataclass(slots=True)
class Story:
    """The script. `say` gets an act's title and text; `checked` each check: held, sentence, what was seen."""

    scaler: Scaler
    load: Load
    watch: Watch
    say: Callable[[str, str], None]
    checked: Callable[[bool, str, str], None]
    failed: int = 0
    held: int = 0
    _ramp: tuple[float, float] = field(init=False, default=(0.0, 0.0))  # from, until; monotonic

    async def play(self) -> None:
        """Run all acts. Raises DemoError when an act cannot be played."""
        await self._nothing()
        await self._steady()
        await self._grows()
        await self._falls()
        await self._end()

    def _check(self, held: bool, sentence: str, seen: object = "") -> None:
        self.held += held
        self.failed += not held
        self.checked(held, sentence, str(seen))

    async def _until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise DemoError(f"not within {timeout_s:g} s: {what}")
            await asyncio.sleep(_STEP_S)

    # The acts -------------------------------------------------------------------------------------------------------

    async def _nothing(self) -> None:
        self.say(
            "1 of 4: from nothing",
            f"No server runs. min_replicas is {MIN_REPLICAS}, so the service recommends {MIN_REPLICAS}, and extproc"
            f" scale runs fleet.sh start for each. A server starts cold: it answers 503 for {COLD_START_S:g} s.",
        )
        await self._until(lambda: self._ready() >= MIN_REPLICAS, f"{MIN_REPLICAS} servers are ready", _COME_S)
        await self._until(lambda: len(self.scaler.of("ready")) >= MIN_REPLICAS, "extproc scale sees them serve", 10.0)
        self._check(
            len(self.scaler.of("start")) == MIN_REPLICAS,
            f"extproc scale started {MIN_REPLICAS} servers, as min_replicas says, and no third one while they started",
            _texts(self.scaler.of("start")),
        )

    async def _steady(self) -> None:
        self.say(
            "2 of 4: a quiet morning",
            f"{BASE_PER_S:g} stream a second: the two can have that, with room for the growth that design_growth_per_s2"
            " says.",
        )
        self.load.start()
        self.load.towards(BASE_PER_S, _BEGIN_S)
        await asyncio.sleep(_BEGIN_S + _STEADY_S)

    async def _grows(self) -> None:
        self.say(
            "3 of 4: the load grows",
            f"From {BASE_PER_S:g} to {PEAK_PER_S:g} streams a second in {_RAMP_S:g} s. What is recommended is what the"
            " load will be when a server that is started now serves, and thresholds leave room until then. So servers"
            " are asked for while the others still meet their target, not when requests wait.",
        )
        began_s = time.monotonic()
        before = len(self.scaler.of("start"))
        self.load.towards(PEAK_PER_S, _RAMP_S)
        await asyncio.sleep(_RAMP_S + _HOLD_S)
        self._ramp = began_s, time.monotonic()
        self._ramp_checks(before)

    async def _falls(self) -> None:
        began_s = time.monotonic()
        self.say(
            "4 of 4: the load falls",
            "Back to what it was. Nobody hurries: the load must fit on fewer servers for two cold"
            " starts. Then one server goes: it gets no new streams, those that run there end, and only then it is"
            " stopped. The next one goes by the same rule.",
        )
        self.load.towards(BASE_PER_S, _FALL_S)
        await self._until(lambda: bool(self.scaler.of("stopped")), "a server has been drained and stopped", _GO_S)
        await self._until(self._settled, "as many servers are ready as are desired", _SETTLE_S)
        most = max((look.ready for look in self.watch.between(began_s, time.monotonic())), default=0)
        self._check(
            self._ready() < most,
            f"the fleet shrank from {most} to {self._ready()} servers when the load had fallen",
            f"{most} to {self._ready()}",
        )

    async def _end(self) -> None:
        self.say("The end", "No new streams; the last ones come in.")
        await self.load.finish()
        await self._until(self._settled, "as many servers are ready as are desired", _SETTLE_S)
        last = self.watch.last
        assert last is not None
        self._check(
            last.desired == last.ready and not last.starting and not last.draining,
            f"at the end {last.desired} servers are desired and {last.ready} are ready; none starts or drains",
            last,
        )
        await self.scaler.stop()
        self._check(
            self.scaler.exit_code == 0 and self._text("ends") == "ends; nothing is under way",
            "extproc scale ended in order, with nothing under way",
            f"status {self.scaler.exit_code}, {self._text('ends')}",
        )
        self._stream_checks()
        self._log_checks()

    # What must hold -------------------------------------------------------------------------------------------------

    def _ramp_checks(self, starts_before: int) -> None:
        looks = self.watch.between(*self._ramp)
        most = max(look.ready for look in looks)
        asked = self.scaler.of("start")[starts_before:]
        self._check(
            most >= MIN_REPLICAS + 2,
            f"the fleet grew from {MIN_REPLICAS} to {most} servers that serve while the load grew from {BASE_PER_S:g}"
            f" to {PEAK_PER_S:g} streams a second",
            f"{most} ready, {len(asked)} started",
        )
        known = [look for look in looks if look.waiting is not None and look.waiting_most is not None]
        over = sum(_queued(look) for look in known)
        top = max((look.waiting or 0.0 for look in known), default=0.0)
        threshold = known[-1].waiting_most if known else None
        self._check(
            bool(known) and over <= _QUEUED * len(known),
            f"it grew ahead: {top:.2f} requests waited per server at most (threshold {threshold or 0.0:.2f}), over the"
            f" threshold in {over} of {len(known)} looks",
            f"at most {_QUEUED:.0%} are wanted",
        )
        first = asked[0].at_s if asked else self._ramp[1]
        early = [look for look in known if look.at_s <= first]
        self._check(
            bool(asked) and not any(map(_queued, early)),
            f"the first server was asked for {first - self._ramp[0]:.0f} s into the ramp, before any queue was over its"
            " threshold",
            "a queue was there first" if asked else "none was",
        )
        sent = [each for each in self.load.sent if self._ramp[0] <= each.started_s <= self._ramp[1] - TTFT_P99_S]
        late = [each for each in sent if each.ttft_s is None or each.ttft_s > TTFT_P99_S]
        aside = sum(map(self._stalled, late))
        within = len(sent) - len(late)
        but = f"; {aside} of the others while this machine stood still, which do not count" if aside else ""
        self._check(
            within > _COUNTED * len(sent) and within >= _WITHIN * (len(sent) - aside),
            f"{within} of {len(sent)} streams of the ramp ({within / max(1, len(sent)):.1%}) had their first token"
            f" within {TTFT_P99_S:g} s{but}",
            f"at least {_WITHIN:.0%} is wanted of those that count",
        )

    def _stream_checks(self) -> None:
        sent = self.load.sent
        cut = [each for each in sent if not each.done]
        self._check(bool(sent) and not cut, f"all {len(sent)} streams ended with [DONE]", _first(cut))
        late: list[Sent] = []
        ran = 0
        for drain, stop in self._drains():
            there = [each for each in sent if each.server == _name(drain.endpoint)]
            late += [each for each in there if drain.at_s + _UNTIL_HEARD_S < each.started_s < stop.at_s]
            ran += sum(each.started_s < drain.at_s < (each.ended_s or drain.at_s) for each in there)
        self._check(
            not late,
            f"no stream was sent to a server that drained; {ran} ran there when the drains began, and ended as"
            " they should",
            _first(late),
        )

    def _log_checks(self) -> None:
        starts, ready = self.scaler.of("start"), self.scaler.of("ready")
        took = [float(each.fields["after_s"]) for each in ready]
        self._check(
            len(ready) == len(starts) and all(each >= COLD_START_S for each in took),
            f"its log tells of {len(starts)} starts, each with its reason, and of {len(ready)} servers that came to"
            f" serve, {min(took, default=0.0):.0f} to {max(took, default=0.0):.0f} s later",
            f"{len(starts)} starts, ready after {took}",
        )
        drains, stops, stopped = (self.scaler.of(event) for event in ("drain", "stop", "stopped"))
        order = [each.event for each in self.scaler.of("drain", "stop", "stopped", "undrain")]
        self._check(
            bool(stopped)
            and order == ["drain", "stop", "stopped"] * len(stopped)
            and all(each.fields["drained"] for each in stops),
            f"and of {len(drains)} drains, one after the other; each server was stopped when it was drained, not"
            " before",
            order,
        )
        failures = self.scaler.of("failed", "late", "warning")
        self._check(not failures, "no command failed", _texts(failures))

    # Small questions ------------------------------------------------------------------------------------------------

    def _ready(self) -> int:
        return self.watch.last.ready if self.watch.last is not None else 0

    def _stalled(self, sent: Sent) -> bool:
        """Whether this machine stood still about when it waited for its first token: then that says nothing."""
        until_s = sent.first_s if sent.first_s is not None else sent.started_s
        return any(
            sent.started_s < until + _AROUND_S and since - _AROUND_S < until_s for since, until in self.load.stalls
        )

    def _settled(self) -> bool:
        """Whether there are as many servers as are desired, and nothing is on its way."""
        last = self.watch.last
        over = {each.endpoint for each in self.scaler.of("stopped", "undrain")}
        under_way = len(self.scaler.of("drain")) > len(self.scaler.of("stopped", "undrain")) or (
            len(self.scaler.of("start")) > len(self.scaler.of("ready"))
        )
        return (
            last is not None
            and last.desired == last.ready
            and not last.starting
            and not last.draining
            and not under_way
            and bool(over or not self.scaler.of("drain"))
        )

    def _drains(self) -> Sequence[tuple[Happening, Happening]]:
        """Each with its end."""
        return [
            (drain, stop)
            for drain, stop in zip(self.scaler.of("drain"), self.scaler.of("stop", "undrain"), strict=False)
            if drain.endpoint == stop.endpoint
        ]

    def _text(self, event: str) -> str:
        found = self.scaler.of(event)
        return found[-1].text if found else "nothing"


def _queued(look: Look) -> bool:
    return look.waiting is not None and look.waiting_most is not None and look.waiting > look.waiting_most


def _name(endpoint: str | None) -> str:
    """Of the server at an address, as its answers have it."""
    return f"{NAME}-{(endpoint or '').rpartition(':')[2]}"


def _texts(happened: Sequence[Happening]) -> str:
    return "; ".join(each.text for each in happened) or "nothing"


def _first(sent: Sequence[Sent]) -> str:
    if not sent:
        return ""
    what = sent[0].error or ("it has not ended" if sent[0].ended_s is None else "it was sent there")
    return f"{len(sent)}; the first: stream {sent[0].number} on {sent[0].server or 'no server'}: {what}"
