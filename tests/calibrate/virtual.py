"""The search of `extproc calibrate`, rule by rule, with an engine in virtual time in place of the server."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from extproc.calibrate.bracket import Knee, TooLow, Tried, search
from extproc.calibrate.judge import Judge, Rule, Verdict
from extproc.calibrate.lengths import Lengths
from extproc.calibrate.load import TICK_S
from extproc.calibrate.sent import Sent, decided
from extproc.sim.engine import Engine
from extproc.sim.events import FirstToken, Request
from extproc.sim.spec import EngineSpec


class Open:
    """One engine under an open loop."""

    def __init__(self, spec: EngineSpec, lengths: Lengths, rate_per_s: float, seed: str) -> None:
        self.sent: list[Sent] = []
        self._engine = Engine(spec, seed=1)
        self._rng = Random(seed)
        self._lengths, self._rate_per_s, self._most = lengths, rate_per_s, spec.max_model_len
        self._next_s = self._rng.expovariate(rate_per_s)

    def run(self, until_s: float) -> None:
        while self._next_s <= until_s:
            prompt, output = self._lengths.draw(self._rng, self._most)
            self._take(self._next_s)
            self._engine.submit(Request(str(len(self.sent)), prompt, output), self._next_s)
            self.sent.append(Sent(self._next_s, sent_s=self._next_s))
            self._next_s += self._rng.expovariate(self._rate_per_s)
        self._take(until_s)

    def _take(self, now: float) -> None:
        for event in self._engine.advance(now):
            if isinstance(event, FirstToken):
                self.sent[int(event.request_id)].first_s = event.at_s


@dataclass(frozen=True, slots=True)
class Found:
    knee: Knee
    seconds: float  # of the steps, warm-ups included
    requests: int


def calibrated(
    spec: EngineSpec, lengths: Lengths, rule: Rule, first_per_s: float, warm_up_s: float, seed: int
) -> Found:
    """What the command finds."""
    tried: list[Tried] = []
    total_s, requests = 0.0, 0
    while True:
        following = search(tried, first_per_s, rule.tolerance)
        if isinstance(following, Knee):
            return Found(following, total_s, requests)
        assert not isinstance(following, TooLow)
        attempt = sum(each.rate_per_s == following.rate_per_s for each in tried)
        loop = Open(spec, lengths, following.rate_per_s, f"{seed} {following.rate_per_s:g} {attempt}")
        judge, now = Judge(rule), 0.0
        verdict = None
        while verdict is None:
            now += TICK_S
            loop.run(now)
            counted = [each for each in loop.sent if each.due_s >= warm_up_s]
            found = judge.look(decided(counted, now, rule.target_s), now - warm_up_s)
            verdict = found.verdict if found is not None else None
        tried.append(Tried(following.rate_per_s, verdict is Verdict.MET))
        total_s += now
        requests += len(loop.sent)
