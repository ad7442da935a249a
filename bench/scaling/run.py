"""What happens to conversations (W2) when servers join one after the other, and leave one after the other?

In virtual time: the same seeds give the same figures on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extproc.sim.fleet import Change, Result, run
from extproc.sim.grid import ENGINES
from extproc.sim.policies import PROFILE_POLICIES, Maker, ModuloHash, RingHash
from extproc.sim.report import quantile
from extproc.sim.workloads import Arrival, Fleet, draw

ENGINE_NAME = "a100-8b"
ENGINE = ENGINES[ENGINE_NAME]
FEW, MANY = 4, 8  # servers
POLICIES: Mapping[str, Maker] = {
    **{name: PROFILE_POLICIES[name] for name in ("cache-aware", "session")},
    "ring-hash": RingHash,
    "modulo-hash": ModuloHash,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """When the fleet changes. Times are in seconds of the arrivals' clock."""

    seconds: float = 600.0  # of arrivals
    grow_s: float = 180.0  # the first server joins
    shrink_s: float = 390.0  # the first server is drained
    apart_s: float = 15.0  # between two servers; 0: all at once
    window_s: float = 10.0  # over which figures are taken

    def changes(self) -> list[Change]:
        """Who is in the fleet when. The last to come are the first to go, which is the best case for a modulo."""
        if not self.apart_s:
            sizes = [(0.0, FEW), (self.grow_s, MANY), (self.shrink_s, FEW)]
        else:
            up = [(self.grow_s + n * self.apart_s, FEW + n + 1) for n in range(MANY - FEW)]
            down = [(self.shrink_s + n * self.apart_s, MANY - n - 1) for n in range(MANY - FEW)]
            sizes = [(0.0, FEW), *up, *down]
        return [Change(at_s, tuple(range(size))) for at_s, size in sizes]

    def steps(self) -> list[tuple[Change, float]]:
        """The changes after the beginning, each with the time of the next, or of the end of the phase after it."""
        steps = self.changes()[1:]
        ends = [step.at_s for step in steps[1:]] + [self.seconds]
        return [(step, min(end, step.at_s + 60.0)) for step, end in zip(steps, ends, strict=True)]

    def phases(self) -> dict[str, tuple[float, float]]:
        """Parts of the run that are compared. The first minutes, with cold caches, are none."""
        change_s = (MANY - FEW) * self.apart_s + 2 * self.window_s  # until prompts are cached again, roughly
        return {
            f"{FEW} servers": (self.grow_s / 2, self.grow_s),
            f"{FEW} → {MANY}": (self.grow_s, self.grow_s + change_s),
            f"{MANY} servers": (self.grow_s + change_s, self.shrink_s),
            f"{MANY} → {FEW}": (self.shrink_s, self.shrink_s + change_s),
            f"{FEW} again": (self.shrink_s + change_s, self.seconds),
        }


@dataclass(frozen=True, slots=True)
class Ran:
    """The requests of one policy and seed."""

    policy: str
    seed: int
    arrivals: Sequence[Arrival]
    result: Result

    def between(self, start_s: float, end_s: float) -> range:
        """Requests that arrived then, by number."""
        numbers = [n for n, arrival in enumerate(self.arrivals) if start_s <= arrival.at_s < end_s]
        return range(numbers[0], numbers[-1] + 1) if numbers else range(0)


@dataclass(frozen=True, slots=True)
class Part:
    """Figures of the requests that arrived within some time, of all seeds together."""

    requests: int
    hit_ratio: float  # prompt tokens found in the engines' caches over all prompt tokens
    ttft_p90_s: float


def serve(policy: str, seed: int, plan: Plan) -> Ran:
    """One run. The traffic is sized for the small fleet, and stays the same throughout.

    Raises:
        RuntimeError: a request is still counted as in flight when all have ended.
    """
    arrivals = draw("W2", seed, Fleet.of(ENGINE, FEW), plan.seconds)
    result = run(arrivals, [ENGINE] * MANY, POLICIES[policy], seed=seed, changes=plan.changes())
    if result.in_flight_left:
        raise RuntimeError(f"{policy}, seed {seed}: {result.in_flight_left} requests are still counted as in flight")
    return Ran(policy, seed, arrivals, result)


def part(runs: Sequence[Ran], start_s: float, end_s: float) -> Part:
    """Raises ValueError: no request arrived then."""
    ttft_s: list[float] = []
    prompt_tokens = cached_tokens = 0
    for each in runs:
        for n in each.between(start_s, end_s):
            ttft_s.append(each.result.ttft_s[n])
            prompt_tokens += each.arrivals[n].prompt_tokens
            cached_tokens += each.result.cached[n]
    if not ttft_s:
        raise ValueError(f"no request arrived from {start_s:g} to {end_s:g} s")
    return Part(len(ttft_s), cached_tokens / prompt_tokens, quantile(sorted(ttft_s), 0.9))


def windows(runs: Sequence[Ran], plan: Plan) -> list[tuple[float, Part]]:
    """Figures over time, each with the middle of its window."""
    count = int(plan.seconds // plan.window_s)
    return [
        (
            (n + 0.5) * plan.window_s,
            part(runs, n * plan.window_s, (n + 1) * plan.window_s),
        )
        for n in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Moved:
    """Shares of the conversations under way at a change of the fleet."""

    of_all: float  # whose next turn went to another server than the last
    needlessly: float  # of these, those whose server was still there


def moved(runs: Sequence[Ran], change: Change, until_s: float) -> Moved:
    """Who moved at a change. Turns from `until_s` on, when the next change may have come, are not looked at."""
    under_way = elsewhere = needlessly = 0
    for each in runs:
        last: dict[str, int] = {}
        for arrival, server in zip(each.arrivals, each.result.server, strict=True):
            if arrival.session is None or arrival.at_s >= until_s:
                continue
            if arrival.at_s < change.at_s:
                last[arrival.session] = server
            elif arrival.session in last:  # its first turn after the change
                before = last.pop(arrival.session)
                under_way += 1
                elsewhere += before != server
                needlessly += before != server and before in change.servers
    return Moved(elsewhere / under_way, needlessly / under_way) if under_way else Moved(0.0, 0.0)
