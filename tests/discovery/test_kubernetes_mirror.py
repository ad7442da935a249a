"""Listing and watching over a scripted API: what is asked next, how long is waited, what is said."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.discovery.kubernetes.connection import ApiError, Event, Query
from extproc.discovery.kubernetes.mirror import Mirror
from extproc.discovery.kubernetes.objects import Json

PODS = Query("", "v1", "pods", label_selector="app=vllm", namespace="llm")
AWAY = ApiError("https://api.test: cannot connect")
GONE = ApiError("too old", status=410)
BROKE = ApiError("the connection broke off")


def item(name: str, value: int = 0) -> Json:
    return {"metadata": {"name": name, "resourceVersion": "1"}, "value": value}


class Watch:
    """Open for so long, in which it tells these events, then it ends or fails."""

    def __init__(self, *events: Event, open_s: float = 60.0, then: ApiError | None = None) -> None:
        self.events, self.open_s, self.then = events, open_s, then


class Script:
    """Answers in turn: an ApiError for a list that fails; else the items of a list, and what its watch does."""

    def __init__(self, *steps: ApiError | tuple[list[Json], ApiError | Watch]) -> None:
        self.steps = list(steps)
        self.now_s = 0.0
        self.waits: list[float] = []
        self.listed_at_s: list[float] = []
        self.for_s: list[float] = []
        self.seen: list[list[str] | str | None] = []  # names at each change; the failure, or None for well again
        self.closed = 0
        self.over = asyncio.Event()
        self.watch_next: ApiError | Watch = Watch()
        self.mirror: Mirror[int] = Mirror(
            self, PODS, lambda it: it["value"], self._change, resync_s=60.0,
            rng=random.Random(1), sleep=self._sleep, clock=lambda: self.now_s,
        )  # fmt: skip
        self._failing: str | None = None

    def _change(self) -> None:
        if self.mirror.failing != self._failing:
            self._failing = self.mirror.failing
            self.seen.append(self._failing)
        else:
            self.seen.append(sorted(self.mirror.objects or ()))

    async def _sleep(self, wait_s: float) -> None:
        self.waits.append(wait_s)
        self.now_s += wait_s
        await asyncio.sleep(0)

    async def read(self, query: Query) -> tuple[list[Json], str]:
        self.listed_at_s.append(self.now_s)
        if not self.steps:
            self.over.set()
            await asyncio.Event().wait()
        step = self.steps.pop(0)
        if isinstance(step, ApiError):
            raise step
        items, self.watch_next = step
        return items, "7"

    async def watch(self, query: Query, version: str, for_s: float) -> AsyncGenerator[list[Event], None]:
        assert version == "7"
        self.for_s.append(for_s)
        if isinstance(self.watch_next, ApiError):
            raise self.watch_next
        yield []
        yield list(self.watch_next.events)
        self.now_s += self.watch_next.open_s
        if self.watch_next.then is not None:
            raise self.watch_next.then

    async def close(self) -> None:
        self.closed += 1

    async def run(self) -> Script:
        task = asyncio.create_task(self.mirror.run())
        async with asyncio.timeout(5):
            await asyncio.wait([task, asyncio.ensure_future(self.over.wait())], return_when="FIRST_COMPLETED")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert self.closed == 1
        return self


async def test_events_change_what_was_listed_and_bookmarks_do_not() -> None:
    events = (
        Event("ADDED", item("c")),
        Event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}),
        Event("DELETED", item("a")),
        Event("MODIFIED", item("b", 5)),
        Event("DELETED", item("never-seen")),
    )
    script = await Script(([item("a"), item("b")], Watch(*events))).run()
    assert script.seen == [["a", "b"], ["b", "c"]]
    assert script.mirror.objects == {"b": 5, "c": 0}


async def test_a_change_that_we_do_not_look_at_is_none() -> None:
    changed = {"metadata": {"name": "a", "resourceVersion": "2"}, "value": 0}
    script = await Script(([item("a")], Watch(Event("MODIFIED", changed)))).run()
    assert script.seen == [["a"]]


async def test_a_watch_that_ends_in_order_is_followed_by_a_list_at_once_which_heals_what_was_missed() -> None:
    script = await Script(([item("a")], Watch()), ([item("b")], Watch()), ([item("b")], Watch())).run()
    assert script.seen == [["a"], ["b"]]
    assert script.waits == []
    assert all(54 <= for_s <= 66 for for_s in script.for_s)
    assert len(set(script.for_s)) == 3


async def test_a_list_that_fails_at_first_leaves_everything_unknown_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    script = await Script(AWAY, AWAY, ([item("a")], Watch())).run()
    assert script.seen == [str(AWAY), ["a"], None]
    assert [record.getMessage() for record in caplog.records] == [
        "kubernetes: cannot follow pods (app=vllm) in llm: https://api.test: cannot connect; nothing is known yet",
        "kubernetes: following pods (app=vllm) in llm again",
    ]


async def test_what_was_known_stays_while_the_api_is_away_and_the_waits_grow_to_a_bound() -> None:
    script = await Script(([item("a")], Watch()), *[AWAY] * 9, ([item("b")], Watch())).run()
    assert script.seen == [["a"], str(AWAY), ["b"], None]
    bounds = [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert all(bound / 2 <= wait_s <= bound for wait_s, bound in zip(script.waits, bounds, strict=True))


async def test_a_broken_watch_is_made_again_at_once_and_without_a_word() -> None:
    broken = Watch(open_s=30, then=BROKE)
    script = await Script(*[([item("a")], broken)] * 5).run()
    assert script.seen == [["a"]]
    assert script.waits == []


@pytest.mark.parametrize("watch", [GONE, Watch(open_s=0, then=GONE)], ids=["status", "event"])
async def test_a_version_that_is_gone_is_followed_by_a_list_at_once_but_not_for_ever(watch: ApiError | Watch) -> None:
    once = await Script(([item("a")], watch), ([item("b")], Watch())).run()
    assert (once.seen, once.waits) == ([["a"], ["b"]], [])
    always = await Script(*[([item("a")], watch)] * 4).run()
    assert always.seen == [["a"], "too old"]
    assert len(always.waits) == 3
    assert sorted(always.waits) == always.waits


async def test_watches_that_end_or_break_as_soon_as_they_open_do_not_make_us_list_without_pause() -> None:
    for flapping in (Watch(open_s=0.1), Watch(open_s=0.1, then=BROKE)):
        script = await Script(*[([item("a")], flapping)] * 8).run()
        assert script.now_s > 30


async def test_a_watch_that_is_forbidden_is_said_though_lists_go_well() -> None:
    forbidden = ApiError("may not watch pods", status=403)
    script = await Script(([item("a")], forbidden), ([item("a")], forbidden), ([item("a")], Watch())).run()
    assert script.seen == [["a"], "may not watch pods", None]


async def test_the_server_may_ask_for_a_longer_wait() -> None:
    busy = [ApiError("busy", status=429, retry_after_s=seconds) for seconds in (7.0, 3600.0)]
    script = await Script(*busy).run()
    assert script.waits == [7.0, 30.0]


async def test_a_new_reason_is_told_and_the_same_one_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await Script(AWAY, AWAY, ApiError("forbidden", status=403), ApiError("forbidden", status=403)).run()
    assert len(caplog.records) == 2


async def test_a_fault_of_our_own_is_raised() -> None:
    def bug(_: Json) -> Any:
        raise KeyError("a bug")

    script = Script(([item("a")], Watch()))
    of: Callable[[Json], Any] = bug
    with pytest.raises(KeyError):
        await Mirror(script, PODS, of, lambda: None, resync_s=60).run()


class Server:
    """Objects with a history. `trouble` says, request after request, what goes wrong; then all goes well."""

    def __init__(self, trouble: list[str], changes: list[tuple[str, int | None]]) -> None:
        self.objects: dict[str, int] = {}
        self.trouble = trouble
        self.changes = changes  # (name, value); None: deleted. One happens before every answer.
        self.history: list[tuple[int, Event]] = []
        self.settled = asyncio.Event()

    def _step(self) -> str:
        if self.changes:
            name, value = self.changes.pop(0)
            if value is not None:
                kind = "MODIFIED" if name in self.objects else "ADDED"
                self.objects[name] = value
                self.history.append((len(self.history), Event(kind, item(name, value))))
            elif name in self.objects:
                del self.objects[name]
                self.history.append((len(self.history), Event("DELETED", item(name))))
        return self.trouble.pop(0) if self.trouble else "none"

    async def read(self, query: Query) -> tuple[list[Json], str]:
        if self._step() in ("away", "gone"):
            raise AWAY
        return [item(name, value) for name, value in self.objects.items()], str(len(self.history))

    async def watch(self, query: Query, version: str, for_s: float) -> AsyncGenerator[list[Event], None]:
        start = int(version)
        while True:
            trouble = self._step()
            new = [event for number, event in self.history if number >= start]
            start = len(self.history)
            if trouble == "gone":
                raise GONE
            if trouble == "away":
                raise BROKE
            if trouble == "ended":
                return
            if trouble == "deaf":
                new = []  # lost on the way
            if not self.trouble and not self.changes:
                yield new
                self.settled.set()
                await asyncio.Event().wait()
            yield new

    async def close(self) -> None: ...


@given(
    st.lists(st.sampled_from(["none", "away", "gone", "ended", "deaf"]), max_size=25),
    st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 3)), max_size=25),
)
def test_whatever_goes_wrong_the_objects_are_the_servers_after_the_next_list(
    trouble: list[str], changes: list[tuple[str, int | None]]
) -> None:
    async def run() -> None:
        # The watch ends once more after the last event was lost, as it does after resync_s.
        server = Server([*trouble, "ended", "none"], changes)
        mirror: Mirror[int] = Mirror(
            server, PODS, lambda it: it["value"], lambda: None, resync_s=60, sleep=lambda _: asyncio.sleep(0)
        )
        task = asyncio.create_task(mirror.run())
        async with asyncio.timeout(5):
            await server.settled.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert mirror.objects == server.objects

    asyncio.run(run())
