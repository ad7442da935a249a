"""Whatever comes in whatever order, the engine keeps its promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sim.engine import Engine
from extproc.sim.events import Event, Finished, FirstToken, Preempted, Request, Token
from extproc.sim.scheduler import Step
from extproc.sim.spec import EngineSpec
from tests.sim.conftest import SMALL, run_dry


@dataclass(frozen=True)
class Submit:
    after_s: float
    group: int  # requests of a group share a prefix
    shared_blocks: int
    own_tokens: int
    answer: int


@dataclass(frozen=True)
class Abort:
    after_s: float
    which: int  # of those submitted so far


_waits = st.sampled_from([0.0, 0.0, 0.001, 0.02, 0.1, 1.0])
_submits = st.builds(
    Submit,
    after_s=_waits,
    group=st.integers(0, 2),
    shared_blocks=st.integers(0, 7),
    own_tokens=st.integers(1, 12),
    answer=st.integers(1, 20),
)
_aborts = st.builds(Abort, after_s=_waits, which=st.integers(0, 40))
_scripts = st.lists(st.one_of(_submits, _submits, _submits, _aborts), min_size=1, max_size=40)
_specs = st.builds(
    replace,
    st.just(SMALL),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(1, 40),
    num_gpu_blocks=st.sampled_from([17, 18, 25]),
    reserve_full_prompt=st.booleans(),
    enable_prefix_caching=st.booleans(),
    jitter_ratio=st.sampled_from([0.0, 0.0, 0.3]),
)


def as_request(number: int, submit: Submit, token_events: bool = False) -> Request:
    shared = tuple(1000 * (submit.group + 1) + n for n in range(submit.shared_blocks))
    prompt = submit.shared_blocks * 4 + submit.own_tokens
    own = tuple(10_000 + 100 * number + n for n in range(submit.own_tokens // 4))
    return Request(str(number), prompt, submit.answer, shared + own, token_events=token_events)


class Checked:
    """An engine whose every planned step and every state in between is checked."""

    def __init__(self, spec: EngineSpec) -> None:
        self.engine = Engine(spec, seed=7)
        plan = self.engine._scheduler.step

        def checked(now: float) -> Step:
            step = plan(now)
            assert step.decodes + step.prefill_tokens <= spec.max_num_batched_tokens
            assert step.batch
            assert self.engine.running <= spec.max_num_seqs
            self.check()
            return step

        self.engine._scheduler.step = checked  # type: ignore[method-assign]

    def check(self) -> None:
        cache = self.engine.cache
        assert cache.used + cache.free == cache.blocks
        held: Counter[int] = Counter()
        for sequence in self.engine._scheduler.running:
            held.update(sequence.blocks)
        assert cache.used == len(held)
        assert {key: n for key, n in held.items() if key >= 0} == cache._holders


def play(engine: Engine, script: list[Submit | Abort], *, token_events: bool = False) -> tuple[list[Event], int]:
    events: list[Event] = []
    now, submitted = 0.0, 0
    for action in script:
        now += action.after_s
        if isinstance(action, Submit):
            engine.submit(as_request(submitted, action, token_events), now)
            submitted += 1
        else:
            engine.abort(str(action.which), now)
    events += run_dry(engine)
    return events, submitted


@given(spec=_specs, script=_scripts)
@settings(max_examples=150, deadline=None)
def test_every_request_ends_once_and_every_block_comes_back(spec: EngineSpec, script: list[Submit | Abort]) -> None:
    checked = Checked(spec)
    events, submitted = play(checked.engine, script)
    ends = Counter(event.request_id for event in events if isinstance(event, Finished))
    assert ends == Counter(str(n) for n in range(submitted))
    assert checked.engine.cache.used == 0
    assert (checked.engine.running, checked.engine.waiting) == (0, 0)
    checked.check()
    assert sum(checked.engine.stats.finished.values()) == submitted


@given(spec=_specs, script=_scripts)
@settings(max_examples=100, deadline=None)
def test_requests_are_admitted_in_the_order_they_came(spec: EngineSpec, script: list[Submit | Abort]) -> None:
    events, _ = play(Engine(spec), script)
    ends = sorted((event for event in events if isinstance(event, Finished)), key=lambda end: int(end.request_id))
    admitted = [end.scheduled_s for end in ends if end.scheduled_s is not None]
    assert admitted == sorted(admitted)


@given(spec=_specs, script=_scripts)
@settings(max_examples=100, deadline=None)
def test_events_of_a_request_are_complete_and_in_order(spec: EngineSpec, script: list[Submit | Abort]) -> None:
    events, _ = play(Engine(spec), script, token_events=True)
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    by_request: dict[str, list[Event]] = {}
    for event in events:
        by_request.setdefault(event.request_id, []).append(event)
    for mine in by_request.values():
        end = mine[-1]
        assert isinstance(end, Finished)
        told = [event for event in mine if isinstance(event, FirstToken | Token)]
        assert len(told) == end.generated_tokens
        assert [event.index for event in told if isinstance(event, Token)] == list(range(1, len(told)))
        assert not told or isinstance(told[0], FirstToken)
        assert sum(isinstance(event, Preempted) for event in mine) == end.preemptions


@given(spec=_specs, script=_scripts, slice_s=st.sampled_from([0.0007, 0.013, 0.1]))
@settings(max_examples=100, deadline=None)
def test_how_often_the_engine_is_looked_at_changes_nothing(
    spec: EngineSpec, script: list[Submit | Abort], slice_s: float
) -> None:
    """Many steps done at once, and each step alone with every token told, give the same history."""
    at_once = Engine(spec, seed=3)
    coarse, _ = play(at_once, script)
    watched = Engine(spec, seed=3)
    fine: list[Event] = []
    now, looked, submitted = 0.0, 0.0, 0
    for action in script:
        now += action.after_s
        while looked + slice_s < now:
            looked += slice_s
            fine += watched.advance(looked)
        if isinstance(action, Submit):
            watched.submit(as_request(submitted, action, token_events=True), now)
            submitted += 1
        else:
            watched.abort(str(action.which), now)
    while watched.live_ids():
        looked = max(looked, now) + slice_s
        now = looked
        fine += watched.advance(looked)
    fine += watched.advance(looked)
    assert [event for event in coarse if isinstance(event, Finished)] == [
        event for event in fine if isinstance(event, Finished)
    ]
    one, other = at_once.stats, watched.stats
    assert (one.steps, one.generation_tokens, one.prefix_hits) == (
        other.steps,
        other.generation_tokens,
        other.prefix_hits,
    )
    assert one.token_interval.count == other.token_interval.count
    assert one.token_interval.sum == pytest.approx(other.token_interval.sum)
    assert one.busy_s == pytest.approx(other.busy_s)


@given(spec=_specs, script=_scripts)
@settings(max_examples=100, deadline=None)
def test_woken_as_it_asks_the_engine_never_tells_an_event_late(spec: EngineSpec, script: list[Submit | Abort]) -> None:
    engine = Engine(spec)
    now, submitted = 0.0, 0
    for action in [*script, None]:
        until_s = float("inf") if action is None else now + action.after_s
        while (due_s := engine.next_event_at()) is not None and due_s <= until_s:
            now = max(now, due_s)
            for event in engine.advance(now):
                assert isinstance(event, Preempted) or event.at_s == now
        if isinstance(action, Submit):
            now = until_s
            engine.submit(as_request(submitted, action), now)
            submitted += 1
        elif isinstance(action, Abort):
            now = until_s
            engine.abort(str(action.which), now)


@given(spec=_specs, script=_scripts, seed=st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_the_same_seed_gives_the_same_history(spec: EngineSpec, script: list[Submit | Abort], seed: int) -> None:
    assert play(Engine(spec, seed=seed), script) == play(Engine(spec, seed=seed), script)


def test_another_seed_gives_other_times_where_there_is_jitter() -> None:
    spec = replace(SMALL, jitter_ratio=0.2)
    ends: set[float] = set()
    for seed in range(5):
        engine = Engine(spec, seed=seed)
        engine.submit(Request("a", 8, 10), 0.0)
        ends.add(run_dry(engine)[-1].at_s)
    assert len(ends) == 5
