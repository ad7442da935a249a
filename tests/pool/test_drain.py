"""A server is drained when nothing of ours and nothing of others runs there, and its deadline ends the waiting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.pool.drain import Blocked, By
from extproc.pool.drains import Change
from extproc.pool.member import Member, State
from extproc.pool.pool import Pool
from extproc.router import Router
from tests.support.fleet import STALE_AFTER_S, address, endpoint, member, pool, route, router, sample

Playbook = list[tuple[float, str, float]]  # when, what, how much

START = 10.0


class Story:
    """One draining server (10.0.0.1), with another beside it."""

    def __init__(self, *, in_flight: int = 0, deadline_s: float | None = None, by: By = By.OPERATOR) -> None:
        self.router: Router = router(pool(2))
        self.pool: Pool = self.router.pools[0]
        self.member: Member = member(self.router, 1)
        self.picks = [route(self.router, 0.0, subset=["10.0.0.1"]).pick_id for _ in range(in_flight)]
        self.pool.drains.ask(self.member, by, START, deadline_s)

    def sample(self, at_s: float, *, running: float | None = 0.0, waiting: float | None = 0.0) -> None:
        self.router.observe("vllm", address(1), sample(at_s, running=running, waiting=waiting), at_s)
        self.pool.drains.tick(at_s)

    def idle(self, *at_s: float) -> None:
        for each in at_s:
            self.sample(each)

    def end_one(self, at_s: float) -> None:
        self.router.stream_ended(self.picks.pop(), at_s)
        self.pool.drains.tick(at_s)

    def fail(self, at_s: float, *, refused: bool) -> None:
        self.pool.scrape_failed(address(1), "x", at_s, answered=False, refused=refused)
        self.pool.drains.tick(at_s)

    def state(self, at_s: float) -> State:
        self.pool.drains.tick(at_s)
        return self.member.state(at_s)

    def blocked_by(self, at_s: float) -> Blocked | None:
        assert self.member.drain is not None
        return self.member.drain.blocked_by(at_s, self.member.in_flight, STALE_AFTER_S)

    def changes(self) -> list[Change]:
        return [event.change for event in self.pool.drains.events]


def test_it_ends_with_the_last_stream_and_two_idle_samples() -> None:
    """case f01"""
    story = Story(in_flight=2)
    story.idle(11.0, 12.0)
    story.end_one(12.5)
    story.idle(13.0, 14.0)
    assert (story.state(14.0), story.blocked_by(14.0)) == (State.DRAINING, Blocked.IN_FLIGHT)
    story.end_one(14.5)
    story.idle(15.0)
    assert (story.state(15.0), story.blocked_by(15.0)) == (State.DRAINING, Blocked.ENGINE)
    story.idle(16.0)
    assert (story.state(16.0), story.blocked_by(16.0)) == (State.DRAINED, None)
    assert story.changes() == [Change.STARTED, Change.DRAINED]
    assert story.member.drain is not None
    assert story.member.drain.open_at_end == 0


def test_requests_of_others_are_waited_for_too() -> None:
    story = Story()
    story.sample(11.0, running=1.0)
    story.sample(12.0, waiting=1.0)
    assert story.blocked_by(12.0) is Blocked.ENGINE
    story.idle(13.0)
    story.sample(14.0, running=1.0)
    story.idle(15.0)
    assert story.state(15.0) is State.DRAINING, "the two idle samples were not in a row"
    story.idle(16.0)
    assert story.state(16.0) is State.DRAINED


def test_a_sample_from_before_the_drain_proves_nothing_nor_does_one_seen_twice() -> None:
    story = Story()
    story.idle(9.0, START, 11.0, 11.0)
    assert story.state(11.0) is State.DRAINING


@pytest.mark.parametrize("told", [{"running": None}, {"waiting": None}])
def test_a_page_that_does_not_tell_the_load_proves_nothing(told: dict[str, None]) -> None:
    story = Story()
    for at_s in (11.0, 12.0, 13.0, 14.0):
        story.sample(at_s, **told)
    assert (story.state(14.0), story.blocked_by(14.0)) == (State.DRAINING, Blocked.NO_SAMPLE)


def test_failed_and_stale_scrapes_say_nothing() -> None:
    story = Story()
    assert story.blocked_by(START + 0.5) is Blocked.ENGINE, "there was no time for one yet"
    assert story.blocked_by(START + STALE_AFTER_S + 0.5) is Blocked.NO_SAMPLE
    story.idle(11.0)
    for at_s in (12.0, 13.0, 14.0, 14.5):
        story.fail(at_s, refused=False)
    assert (story.state(14.5), story.blocked_by(14.5)) == (State.DRAINING, Blocked.NO_SAMPLE)
    story.idle(15.0)
    assert story.state(15.0) is State.DRAINED


def test_a_server_where_nobody_listens_is_drained_once_nothing_of_ours_is_in_flight() -> None:
    story = Story(in_flight=1)
    story.fail(11.0, refused=True)
    story.fail(12.0, refused=True)
    assert story.state(12.0) is State.DRAINING
    story.end_one(13.0)
    assert story.state(13.0) is State.DRAINED


def test_past_its_deadline_it_tells_how_many_were_open_and_stays_out() -> None:
    """case f01"""
    story = Story(in_flight=3, deadline_s=20.0)
    assert story.state(19.9) is State.DRAINING
    assert story.state(20.0) is State.EXPIRED
    assert story.member.drain is not None
    assert (story.member.drain.open_at_end, story.pool.drains.cut, story.pool.drains.ended) == (
        3,
        3,
        {Change.EXPIRED: 1},
    )
    assert route(story.router, 21.0).address == address(2)


def test_a_second_request_keeps_the_start_and_replaces_the_deadline() -> None:
    story = Story(in_flight=1, deadline_s=20.0)
    again = story.pool.drains.ask(story.member, By.OPERATOR, 12.0, 15.0)
    assert (again.started_s, again.deadline_s) == (START, 15.0)
    again = story.pool.drains.ask(story.member, By.OPERATOR, 13.0)
    assert (again.started_s, again.deadline_s, story.pool.drains.started) == (START, 15.0, 1)


def test_an_expired_drain_goes_on_when_more_time_is_given() -> None:
    story = Story(in_flight=1, deadline_s=20.0)
    assert story.state(20.0) is State.EXPIRED
    story.pool.drains.ask(story.member, By.OPERATOR, 21.0)
    assert story.state(21.0) is State.EXPIRED
    story.pool.drains.ask(story.member, By.OPERATOR, 21.0, 40.0)
    story.end_one(22.0)
    story.idle(23.0, 24.0)
    assert story.state(24.0) is State.DRAINED
    assert story.changes() == [Change.STARTED, Change.EXPIRED, Change.STARTED, Change.DRAINED]


def test_a_cancelled_drain_brings_the_server_back_at_once() -> None:
    story = Story(in_flight=1)
    story.idle(11.0)
    assert story.pool.drains.cancel(story.member, 12.0, By.OPERATOR)
    assert story.state(12.0) is State.READY
    assert route(story.router, 12.0, subset=["10.0.0.1"]).address == address(1)
    assert story.pool.drains.ended == {Change.CANCELLED: 1}
    assert not story.pool.drains.cancel(story.member, 13.0, By.OPERATOR)


def test_a_drained_server_comes_back_and_that_is_no_cancelled_drain() -> None:
    story = Story()
    story.idle(11.0, 12.0)
    assert story.pool.drains.cancel(story.member, 13.0, By.OPERATOR)
    assert story.changes() == [Change.STARTED, Change.DRAINED, Change.RETURNED]
    assert story.pool.drains.ended == {Change.DRAINED: 1}


def test_a_drain_goes_on_while_anybody_asks_for_it() -> None:
    story = Story()
    story.pool.set_endpoints([replace(endpoint(1), leaving=True), endpoint(2)])
    assert not story.pool.drains.cancel(story.member, 11.0, By.OPERATOR)
    assert story.member.drain is not None
    assert story.member.drain.by is By.PLATFORM
    story.pool.set_endpoints([endpoint(1), endpoint(2)])
    assert story.state(12.0) is State.STARTING
    assert story.changes() == [Change.STARTED, Change.CANCELLED]


def test_the_drain_of_a_server_that_left_ends_and_its_successor_gets_requests() -> None:
    story = Story(in_flight=1)
    story.pool.set_endpoints([replace(endpoint(1), uid="b"), endpoint(2)])
    assert story.changes() == [Change.STARTED, Change.GONE]
    new = member(story.router, 1)
    assert (new.drain, new.in_flight, story.pool.drains.members) == (None, 0, [])


def test_configured_drains_have_a_course_too_and_no_deadline() -> None:
    story = Story()
    story.pool.set_endpoints([endpoint(1), endpoint(2, drained=True)])
    second = member(story.router, 2)
    story.router.observe("vllm", address(2), sample(19.0), 19.0)
    story.pool.drains.tick(20.0)
    assert second.drain is not None
    assert (second.drain.started_s, second.drain.deadline_s, second.drain.by) == (20.0, None, By.CONFIG)
    for at_s in (21.0, 22.0):
        story.router.observe("vllm", address(2), sample(at_s), at_s)
    story.pool.drains.tick(22.0)
    assert second.state(22.0) is State.DRAINED
    story.pool.set_endpoints([endpoint(1), endpoint(2)])
    assert second.state(22.0) is State.READY


@pytest.mark.parametrize(("by", "state"), [(By.SELF, State.READY), (By.OPERATOR, State.DRAINED)])
def test_a_drain_that_a_server_asked_for_ends_with_its_process(by: By, state: State) -> None:
    story = Story(by=by)
    for at_s, process in ((11.0, 1.0), (12.0, 1.0), (13.0, 2.0)):
        load = replace(sample(at_s), process_start_s=process)
        story.router.observe("vllm", address(1), load, at_s)
        story.pool.drains.tick(at_s)
    assert story.state(13.0) is state
