"""What does the actuator do to a fleet, over time?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from extproc.actuator.account import LONGEST_PAUSE_S
from extproc.actuator.decide import Rules
from extproc.actuator.work import Result
from tests.actuator.world import POOL, Crash, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_missing_is_started_at_once_and_what_starts_is_not_started_again(world: World) -> None:
    world.add(8000)
    world.desired = 4
    actuator = world.actuator()
    actuator.round()
    assert world.commands == ["start"] * 3
    world.run_for(actuator, 120.0)
    assert world.commands == ["start"] * 3
    assert actuator.account.coming == ()
    assert world.says("serves, 30 s after its start") == 3


def test_servers_without_an_address_are_known_by_appearing(world: World) -> None:
    world.add(8000)
    world.desired, world.told = 3, False
    actuator = world.actuator()
    world.run_for(actuator, 60.0)
    assert world.commands == ["start"] * 2
    assert actuator.account.coming == ()
    assert world.says("10.0.0.1:8001 has appeared") == 1
    assert world.says("10.0.0.1:8002 has appeared") == 1


def test_no_more_start_at_once_than_the_operator_says(world: World) -> None:
    world.rules = Rules(most_starting=1)
    world.desired = 3
    actuator = world.actuator()
    world.run_for(actuator, 20.0)
    assert world.commands == ["start"]
    world.run_for(actuator, 200.0)
    assert world.commands == ["start"] * 3


def test_a_server_is_drained_and_stopped_only_when_it_is(world: World) -> None:
    world.add(8000, in_flight=9)
    world.add(8001, in_flight=5)
    actuator = world.actuator()
    world.run_for(actuator, 30.0)
    assert world.commands == []
    assert world.machines["10.0.0.1:8001"].phase == "draining"
    assert world.says("waits: 10.0.0.1:8001 drains: 5 requests are in flight") == 1
    world.machines["10.0.0.1:8001"].in_flight = 0
    world.run_for(actuator, 30.0)
    assert world.commands == ["stop 10.0.0.1:8001"]
    assert list(world.machines) == ["10.0.0.1:8000"]
    assert actuator.left() == ""


def test_one_goes_after_the_other(world: World) -> None:
    for port in range(8000, 8004):
        world.add(port, in_flight=1)
    actuator = world.actuator()
    world.run_for(actuator, 60.0)
    assert sum(machine.phase is not None for machine in world.machines.values()) == 1


def test_a_drain_is_called_off_when_the_load_comes_back(world: World) -> None:
    world.add(8000, in_flight=9)
    world.add(8001, in_flight=5)
    actuator = world.actuator()
    actuator.round()
    world.desired = 2
    actuator.round()
    assert world.machines["10.0.0.1:8001"].phase is None
    assert world.commands == []
    assert actuator.left() == ""
    world.desired = 3
    actuator.round()
    assert world.commands == ["start"]


def test_a_start_that_fails_is_tried_again_later_and_later(world: World) -> None:
    world.start_fails = "exit status 1"
    actuator = world.actuator()
    world.run_for(actuator, 3600.0)
    tries = len(world.commands)
    assert 6 < tries < 14  # after 10, 20, 40 ... seconds, at most ten minutes
    assert world.says("the start command failed: exit status 1; no server is counted on") == tries
    world.start_fails = ""
    world.run_for(actuator, LONGEST_PAUSE_S + 60.0)
    assert len(world.machines) == 1
    assert actuator.account.start_pause.failures == 0


@pytest.mark.parametrize("told", [True, False])
def test_a_start_that_is_broken_off_may_have_started_a_server(world: World, told: bool) -> None:
    world.start_times_out, world.told = True, told
    actuator = world.actuator()
    assert actuator.round() is Result.FAILED
    assert [each.endpoint for each in actuator.account.coming] == ["10.0.0.1:8001" if told else None]
    assert world.says("a server may come of it, and is waited for") == 1
    world.run_for(actuator, 120.0)
    assert world.commands == ["start"]
    assert actuator.left() == ""


def test_a_stop_that_fails_is_tried_again_and_does_not_keep_others_from_starting(world: World) -> None:
    world.add(8000)
    world.add(8001)
    world.stop_fails = "exit status 3"
    actuator = world.actuator()
    world.run_for(actuator, 60.0)
    assert 1 < world.commands.count("stop 10.0.0.1:8000") < 5
    world.desired = 2
    world.run_for(actuator, 60.0)
    assert "start" in world.commands
    assert world.machines["10.0.0.1:8000"].phase == "drained"  # not brought back: half of it may be gone
    world.stop_fails = ""
    world.run_for(actuator, LONGEST_PAUSE_S)
    assert sorted(world.machines) == ["10.0.0.1:8001", "10.0.0.1:8002"] or len(world.machines) == 2


@pytest.mark.parametrize("problem", ["away", "no recommendation"])
def test_without_a_recommendation_nothing_is_done_and_that_is_said_once(world: World, problem: str) -> None:
    world.add(8000)
    world.add(8001)
    actuator = world.actuator()
    actuator.round()
    world.add(8002, in_flight=3)
    world.away, world.problem = problem == "away", problem if problem != "away" else ""
    done = list(world.commands)
    results = world.run_for(actuator, 600.0)
    assert set(results) == {Result.NO_ADVICE}
    assert world.commands == done
    assert world.says("does nothing:") == 1


def test_a_drained_server_is_not_stopped_while_nothing_is_recommended(world: World) -> None:
    world.add(8000, in_flight=9)
    world.add(8001, in_flight=5)
    actuator = world.actuator()
    actuator.round()
    world.problem = "what is known is 400 s old"
    world.machines["10.0.0.1:8001"].in_flight = 0
    world.run_for(actuator, 60.0)
    assert world.commands == []


def test_the_bounds_hold_whatever_is_desired(world: World) -> None:
    world.max_replicas, world.desired = 2, 50
    actuator = world.actuator()
    world.run_for(actuator, 300.0)
    assert world.commands == ["start"] * 2
    world.min_replicas, world.desired = 2, 0
    world.run_for(actuator, 300.0)
    assert world.commands == ["start"] * 2


def test_no_victim_is_no_reason_to_stop_one(world: World) -> None:
    world.add(8000)
    world.add(8001)
    world.no_victim = "3 requests wait"
    actuator = world.actuator()
    world.run_for(actuator, 60.0)
    assert world.commands == []
    assert world.says("waits: 1 are wanted and 2 are there, but 3 requests wait") == 1


def test_what_was_drained_before_a_crash_is_stopped_after_it(world: World) -> None:
    world.add(8000, in_flight=9)
    world.add(8001, in_flight=5)
    world.actuator().round()
    world.machines["10.0.0.1:8001"].in_flight = 0
    restarted = world.actuator()
    assert "10.0.0.1:8001 goes on draining" in restarted.left()
    restarted.round()
    assert world.commands == ["stop 10.0.0.1:8001"]


def test_a_crash_between_the_note_and_the_drain_leaves_a_drain_to_begin(world: World) -> None:
    world.add(8000)
    world.add(8001, in_flight=5)
    world.crash_at = 0
    with pytest.raises(Crash):
        world.actuator().round()
    assert world.machines["10.0.0.1:8000"].phase is None
    world.run_for(world.actuator(), 20.0)
    assert world.commands == ["stop 10.0.0.1:8000"]


def test_a_server_started_right_before_a_crash_is_waited_for(world: World) -> None:
    world.add(8000)
    world.desired, world.crash_at = 2, 1
    with pytest.raises(Crash):
        world.actuator().round()
    assert len(world.machines) == 2
    restarted = world.actuator()
    world.run_for(restarted, 120.0)
    assert world.commands == ["start"]
    assert restarted.account.coming == ()


def test_a_drain_that_the_service_has_forgotten_is_begun_again(world: World) -> None:
    world.add(8000, in_flight=9)
    victim = world.machines[world.add(8001, in_flight=5)]
    actuator = world.actuator()
    actuator.round()
    victim.phase, world.service_started = None, world.now
    actuator.round()
    assert victim.phase == "draining"
    assert world.says("drains 10.0.0.1:8001 again") == 1


def test_a_server_that_the_service_does_not_know_now_is_not_stopped_at_once(world: World) -> None:
    """The service may have just started, and may not have found its servers yet."""
    world.add(8000, in_flight=9)
    victim = world.machines[world.add(8001, in_flight=5)]
    actuator = world.actuator()
    actuator.round()
    victim.seen = False
    world.run_for(actuator, 12.0)
    assert world.commands == []
    victim.seen = True
    world.run_for(actuator, 12.0)
    victim.seen = False
    world.run_for(actuator, 12.0)
    assert world.commands == []
    world.run_for(actuator, 12.0)
    assert world.commands == ["stop 10.0.0.1:8001"]


def test_a_drain_that_somebody_ended_is_left_to_them(world: World) -> None:
    world.add(8000, in_flight=9)
    victim = world.machines[world.add(8001, in_flight=5)]
    actuator = world.actuator()
    actuator.round()
    victim.phase = None
    actuator.round()
    assert world.says("leaves 10.0.0.1:8001 alone: somebody else has ended its drain") == 1
    assert victim.phase is None  # and it is not drained again at once


def test_a_server_that_never_serves_is_drained_stopped_and_replaced(world: World) -> None:
    world.add(8000)
    world.desired = 2
    world.rules = Rules(start_timeout_s=60.0)
    actuator = world.actuator()
    actuator.round()
    world.machines["10.0.0.1:8001"].serves = False
    world.run_for(actuator, 200.0)
    assert world.commands == ["start", "stop 10.0.0.1:8001", "start"]
    assert world.says("10.0.0.1:8001 does not serve 60 s after its start") + world.says("does not serve 65 s") == 1
    assert sorted(world.machines) == ["10.0.0.1:8000", "10.0.0.1:8002"]


def test_servers_that_never_appear_are_replaced_only_up_to_the_maximum(world: World) -> None:
    """Each may cost money: nobody knows."""
    world.rules = Rules(start_timeout_s=60.0)
    world.told, world.seen_after_s = False, 1e9
    world.desired, world.max_replicas = 1, 3
    actuator = world.actuator()
    world.run_for(actuator, 3600.0)
    assert world.commands == ["start"] * 3
    assert world.says("has not appeared") == 3


def test_one_that_never_came_is_not_taken_to_be_the_next_one_that_does(world: World) -> None:
    world.add(8000)
    world.rules = Rules(start_timeout_s=60.0)
    world.desired, world.told, world.crash_at = 2, False, 0
    with pytest.raises(Crash):
        world.actuator().round()  # before its command began: nothing was started
    actuator = world.actuator()
    world.run_for(actuator, 300.0)
    assert world.commands == ["start"]
    assert len(world.machines) == 2
    assert world.says("does not serve") == 0


def test_one_that_never_came_keeps_no_other_from_going(world: World) -> None:
    world.add(8000)
    world.rules = Rules(start_timeout_s=60.0)
    world.desired, world.crash_at = 2, 0
    with pytest.raises(Crash):
        world.actuator().round()
    actuator = world.actuator()
    world.run_for(actuator, 300.0)
    assert len(world.machines) == 2
    world.desired = 1
    world.run_for(actuator, 60.0)
    assert len(world.machines) == 1


def test_one_that_appears_late_has_its_time_to_serve(world: World) -> None:
    world.rules = Rules(start_timeout_s=60.0)
    world.told, world.seen_after_s, world.max_replicas = False, 70.0, 1
    world.cold_start_s = 110.0
    actuator = world.actuator()
    world.run_for(actuator, 200.0)
    assert world.says("has not appeared") == 1
    assert world.commands == ["start"]
    assert actuator.account.coming == ()


def test_a_start_command_that_names_a_server_that_serves_has_failed(world: World) -> None:
    address = world.add(8001)
    world.desired, world.port_step = 2, 0
    actuator = world.actuator()
    there = world.machines[address]
    for _ in range(6):
        actuator.round()
        world.machines[address] = there
        world.now += 5.0
    assert world.says("it named 10.0.0.1:8001, which serves already") == len(world.commands)
    assert 0 < len(world.commands) < 4


def test_a_server_at_the_address_of_one_that_was_drained_gets_requests(world: World) -> None:
    """Where the list of servers is fixed, a stopped one stays in it, drained."""
    world.add(8000)
    address = world.add(8001)
    world.listed[address] = world.machines.pop(address)
    world.listed[address].phase = "drained"
    world.desired, world.next_port = 2, 8001
    actuator = world.actuator()
    world.seen_after_s = 100.0  # at first the service sees the old entry
    actuator.round()
    assert world.listed[address].phase is None
    assert world.commands == ["start"]
    assert world.says("ends the drain of the server that was at 10.0.0.1:8001 before") == 1


@pytest.mark.parametrize(("stop_expired", "commands"), [(True, ["stop 10.0.0.1:8001"]), (False, [])])
def test_what_runs_past_the_deadline_is_the_operators_to_decide(
    world: World, stop_expired: bool, commands: list[str]
) -> None:
    world.add(8000, in_flight=9)
    victim = world.machines[world.add(8001, in_flight=5)]
    world.rules = replace(world.rules, stop_expired=stop_expired)
    actuator = world.actuator()
    actuator.round()
    victim.phase = "expired"
    world.run_for(actuator, 60.0)
    assert world.commands == commands


def test_a_dry_run_tells_each_step_and_takes_none(world: World) -> None:
    world.add(8000)
    world.desired = 3
    actuator = world.actuator()
    for _ in range(5):
        actuator.would()
    assert world.says("would start a server (2 of 3): 3 by the numbers") == 1
    world.add(8001)
    world.desired = 1
    actuator.would()
    assert world.says("would drain and stop 10.0.0.1:8000 (fewest tokens in flight): 1 by the numbers") == 1
    assert world.commands == []
    assert not (world.folder / f"scale-{POOL}.json").exists()
