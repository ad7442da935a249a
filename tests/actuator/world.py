"""A fleet, its service and the operator's command in virtual time, for an actuator that knows no better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extproc.actuator.advice import NoAdviceError
from extproc.actuator.book import Book
from extproc.actuator.command import Ended
from extproc.actuator.decide import Rules
from extproc.actuator.journal import Journal
from extproc.actuator.service import AwayError, RefusedError
from extproc.actuator.work import Actuator, Result

URL = "http://service"
POOL = "vllm"


@dataclass
class Machine:
    """A server that runs."""

    address: str
    since: float
    serves: bool = True  # some never do
    phase: str | None = None  # of its drain
    in_flight: int = 0
    seen: bool = True  # the service knows it


class Crash(BaseException):
    """The actuator's process dies."""


@dataclass
class World:
    """All of it; `now` moves by hand."""

    folder: Path
    desired: int = 1
    min_replicas: int = 1
    max_replicas: int = 8
    cold_start_s: float = 30.0
    seen_after_s: float = 2.0
    told: bool = True  # the start command prints the address
    now: float = 1_000_000.0
    away: bool = False
    problem: str = ""  # the service has no recommendation
    service_started: float = 999_000.0
    start_fails: str = ""
    start_times_out: bool = False  # after it has started a server
    stop_fails: str = ""
    no_victim: str = ""
    machines: dict[str, Machine] = field(default_factory=dict)
    listed: dict[str, Machine] = field(default_factory=dict)  # stopped, and the service still knows them
    log: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    crash_at: int = -1  # so many effects from now
    next_port: int = 8001
    port_step: int = 1
    rules: Rules = field(default_factory=Rules)
    deadlines: list[float | None] = field(default_factory=list)

    def actuator(self) -> Actuator:
        journal = Journal(POOL, self.log.append, lambda: self.now, as_json=False)
        return Actuator(POOL, self, self, Book(self.folder, POOL), self.rules, journal, clock=lambda: self.now)  # type: ignore[arg-type]

    def add(self, port: int, **more: Any) -> str:
        """A server that has been there for long."""
        address = f"10.0.0.1:{port}"
        self.machines[address] = Machine(address, self.now - 10_000.0, **more)
        return address

    def run_for(self, actuator: Actuator, seconds: float, every_s: float = 5.0) -> list[Result]:
        results = []
        end = self.now + seconds
        while self.now < end:
            results.append(actuator.round())
            self.now += every_s
        return results

    def says(self, text: str) -> int:
        return sum(text in line for line in self.log)

    def state(self, machine: Machine) -> str:
        if machine.phase is not None:
            return machine.phase
        ready = machine.serves and self.now - machine.since >= self.cold_start_s
        return "ready" if ready else "starting"

    @property
    def known(self) -> dict[str, Machine]:
        seen = {a: m for a, m in self.machines.items() if m.seen and self.now - m.since >= self.seen_after_s}
        return {**self.listed, **seen}

    def _effect(self) -> None:
        """Something outside has just been changed, or is about to be."""
        self.crash_at -= 1
        if self.crash_at == -1:
            raise Crash

    # The service ----------------------------------------------------------------------------------------------------

    def _answers(self) -> None:
        if self.away:
            raise AwayError("no service at http://service")

    def status(self) -> Any:
        self._answers()
        rows = [{"address": a, "hostname": None, "state": self.state(m)} for a, m in self.known.items()]
        return {"pools": {POOL: {"endpoints": rows}}}

    def recommendation(self, pool: str) -> Any:
        self._answers()
        if self.problem:
            raise NoAdviceError(self.problem)
        return {
            "desired": self.desired,
            "min_replicas": self.min_replicas,
            "max_replicas": self.max_replicas,
            "reason": f"{self.desired} by the numbers",
            "cold_start_s": self.cold_start_s,
            "stale": False,
        }

    def victim(self, pool: str) -> tuple[str, str]:
        self._answers()
        if self.no_victim:
            raise RefusedError(self.no_victim)
        ready = [m for m in self.known.values() if self.state(m) == "ready"]
        if len(ready) < 2:
            raise RefusedError("1 ready, and the floor is 1")
        return min(ready, key=lambda m: (m.in_flight, m.address)).address, "fewest tokens in flight"

    def drain(self, pool: str, endpoint: str, deadline_s: float | None) -> Mapping[str, float]:
        self._answers()
        self._effect()
        self.deadlines.append(deadline_s)
        machine = self.known.get(endpoint)
        if machine is None:
            return {}
        if machine.phase is None:
            machine.phase = "draining" if machine.in_flight else "drained"
        self._effect()
        return {URL: self.service_started}

    def shown(self, pool: str, endpoint: str) -> Mapping[str, Mapping[str, Any] | None]:
        self._answers()
        machine = self.known.get(endpoint)
        if machine is None:
            return {URL: None}
        if machine.phase == "draining" and not machine.in_flight:
            machine.phase = "drained"
        shown = {"state": self.state(machine), "phase": machine.phase, "in_flight": machine.in_flight}
        return {URL: shown | {"running": 0, "waiting": 0, "service_started": self.service_started, "deadline_s": None}}

    def undrain(self, pool: str, endpoint: str) -> None:
        self._answers()
        self._effect()
        machine = self.known.get(endpoint)
        if machine is not None:
            machine.phase = None
        self._effect()

    # The operator's command -----------------------------------------------------------------------------------------

    def run(self, action: str, arguments: Sequence[str], env: Mapping[str, str]) -> Ended:
        self._effect()
        ended = self._start() if action == "start" else self._stop(arguments[0])
        self._effect()
        return ended

    def _start(self) -> Ended:
        self.commands.append("start")
        if self.start_fails:
            return Ended(1, 0.1, problem=self.start_fails)
        address = f"10.0.0.1:{self.next_port}"
        self.next_port += self.port_step
        self.machines[address] = Machine(address, self.now)
        last_line = address if self.told else ""
        if self.start_times_out:
            return Ended(-15, 9.0, last_line, problem="it was ended after 9 s (--timeout)", timed_out=True)
        return Ended(0, 0.1, last_line)

    def _stop(self, address: str) -> Ended:
        self.commands.append(f"stop {address}")
        machine = self.machines.get(address)
        # What this is all about.
        drained = machine is None or self.state(machine) in ("drained", "expired") or address not in self.known
        assert drained, f"{address} was stopped while {self.state(machine) if machine else 'gone'}"
        if self.stop_fails:
            return Ended(1, 0.1, problem=self.stop_fails)
        self.machines.pop(address, None)
        return Ended(0, 0.1)
