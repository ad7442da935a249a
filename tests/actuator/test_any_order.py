"""Whatever happens, and wherever the actuator dies: is a server ever stopped that was not drained?"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.actuator.decide import Rules
from tests.actuator.world import Crash, World

_EVENT = st.one_of(
    st.tuples(st.just("desired"), st.integers(0, 6)),
    st.tuples(st.just("wait"), st.integers(1, 200)),
    st.tuples(st.just("crash"), st.integers(0, 4)),
    st.tuples(st.just("requests"), st.integers(0, 3)),
    st.tuples(st.just("away"), st.booleans()),
    st.tuples(st.just("stale"), st.booleans()),
    st.tuples(st.just("start fails"), st.booleans()),
    st.tuples(st.just("stop fails"), st.booleans()),
    st.tuples(st.just("service restarts"), st.booleans()),  # does it remember its drains?
    st.tuples(st.just("somebody undrains"), st.none()),
    st.tuples(st.just("told"), st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_EVENT, max_size=25))
def test_nothing_is_stopped_that_was_not_drained_and_bounds_hold(events: list[tuple[str, object]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), max_replicas=5, rules=Rules(start_timeout_s=90.0))
        world.add(8000, in_flight=1)
        actuator = world.actuator()
        for event in [*events, ("away", False), ("stale", False), ("start fails", False), ("stop fails", False)]:
            _happens(world, event)
            for _ in range(3):
                try:
                    actuator.round()  # World asserts that what is stopped was drained
                except Crash:
                    actuator = world.actuator()
                world.now += 5.0
                # One may be beyond, while it is stopped: a start was broken off before its address was known.
                assert len(world.machines) <= world.max_replicas + 1
        world.crash_at = -1
        for machine in world.machines.values():
            machine.in_flight = 0
        world.run_for(actuator, 3000.0, every_s=20.0)
        wanted = min(max(world.desired, world.min_replicas), world.max_replicas)
        # Starts of which nothing came may have made machines that nobody sees: they count for the maximum.
        lost = sum(each.late and each.endpoint is None for each in actuator.account.coming)
        assert min(wanted, world.max_replicas - lost) <= len(world.machines) <= wanted
        assert not any(machine.phase for machine in world.machines.values())


def _happens(world: World, event: tuple[str, object]) -> None:
    match event:
        case ("desired", int(value)):
            world.desired = value
        case ("wait", int(value)):
            world.now += value
        case ("crash", int(value)):
            world.crash_at = value
        case ("requests", int(value)):
            for machine in world.machines.values():
                machine.in_flight = value if machine.phase is None else min(value, machine.in_flight)
        case ("away", bool(value)):
            world.away = value
        case ("stale", bool(value)):
            world.problem = "too old" if value else ""
        case ("start fails", bool(value)):
            world.start_fails = "exit status 1" if value else ""
        case ("stop fails", bool(value)):
            world.stop_fails = "exit status 1" if value else ""
        case ("service restarts", bool(value)):
            world.service_started = world.now
            for machine in world.machines.values() if not value else ():
                machine.phase = None
        case ("somebody undrains", _):
            for machine in world.machines.values():
                machine.phase = None
        case ("told", bool(value)):
            world.told = value
