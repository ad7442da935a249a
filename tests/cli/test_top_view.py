"""How `extproc top` looks: within the room there is, with the same figures as the status page."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from extproc.cli._top_source import Heard, heard, joined
from extproc.cli._top_view import COLUMNS, Look, clean, column_named, columns, ordered, picture, trend
from extproc.cli.top import turned
from tests.support.status_fleet import Advice, Made, advised

URL = "http://127.0.0.1:9003"


def asked(made: Made) -> Heard:
    found = heard(Heard(), made.view, made.unix_s)
    assert found.trouble is None
    return found


def lines(found: Heard, *, width: int, height: int | None, look: Look = Look()) -> list[str]:  # noqa: B008 - frozen
    console = Console(width=width, height=height or 100, color_system=None, force_terminal=True, legacy_windows=False)
    with console.capture() as capture:
        console.print(picture(found, look, width=width, height=height, url=URL))
    return [line.rstrip() for line in capture.get().splitlines()]


def fleet(**sizes: int) -> Made:
    made = Made(Advice(vllm=advised()), **(sizes or {"vllm": 8}))
    made.hour(40)
    if made.pools[0].members[3:]:
        made.trouble()
    return made


def row(seen: list[str], address: str) -> str:
    return next(line for line in seen if line.startswith(address))


def test_it_shows_what_the_page_shows() -> None:
    seen = lines(asked(fleet()), width=150, height=40)
    assert seen[0].startswith("extproc 1.2.3 at http://127.0.0.1:9003  ready  ")
    assert "40 picks, 0 in flight" in seen[0]
    assert seen[1] == "warning: pool vllm: 1 of 8 endpoints is unhealthy: 10.0.0.3:8000 (connection refused)"
    assert seen[4].startswith("pool vllm  1 unhealthy  1 draining  6 ready  waiting ")
    assert row(seen, "10.0.0.3:8000").endswith("connection refused")
    assert "draining" in row(seen, "10.0.0.2:8000")
    assert row(seen, "10.0.0.4:8000").split()[1:5] == ["ready", "-", "-", "0"]
    assert "recommended 4 (3 there): up from 3 to 4: 2.5 wait per server, threshold 1: one more than 3" in seen
    picks = seen[seen.index("the last picks, and why") + 1 :]
    assert "10.0.0.2:8000 ok /v1/completions llama-3-8b: holds 768 of 800 tokens" in picks[0]
    assert seen[-1].strip().startswith("q  quit   < >  sort by")


@pytest.mark.parametrize("size", [0, 1, 8, 200])
def test_it_fits_into_any_terminal(size: int) -> None:
    found = asked(fleet(vllm=size))
    for width, height in product((20, 45, 80, 200), (6, 10, 14, 24, 50)):
        seen = lines(found, width=width, height=height)
        assert len(seen) <= max(height, 7), (width, height)
        assert max(map(len, seen)) <= width, (width, height)
        if height >= 10:
            assert seen[-1].strip().startswith("q  quit"), (width, height)
            assert sum(line.startswith("10.0.0.") for line in seen) >= min(size, 1), (width, height)


def test_with_no_bound_all_is_printed() -> None:
    seen = lines(asked(fleet(vllm=60, other=2, empty=0)), width=160, height=None)
    assert sum(line.startswith("10.0.0.") for line in seen) == 60
    assert sum(line.startswith("10.1.0.") for line in seen) == 2
    assert "no endpoints" in seen
    assert "critical: pool empty has no endpoints" in seen
    assert not any("quit" in line for line in seen)


def test_columns_go_where_there_is_no_room_the_least_needed_first() -> None:
    rows = asked(fleet()).shown["pools"][0]["endpoints"]  # type: ignore[index]
    assert [each.name for each in columns(rows, 200)] == [each.name for each in COLUMNS]
    assert [each.name for each in columns(rows, 40)] == ["endpoint", "state", "waiting"]
    assert [each.name for each in columns(rows, 10)] == ["endpoint", "state"]
    sound = [{**each, "why": None} for each in rows]
    assert "why" not in [each.name for each in columns(sound, 200)]


def test_endpoints_are_sorted_and_what_is_unknown_comes_last_both_ways() -> None:
    rows = asked(fleet()).shown["pools"][0]["endpoints"]  # type: ignore[index]
    assert [each["state"] for each in ordered(rows, Look())][:3] == ["unhealthy", "draining", "ready"]
    for reverse in (False, True):
        usages = [each["kv_usage_ratio"] for each in ordered(rows, Look(sort="kv", reverse=reverse))]
        assert usages[-1] is None
        assert usages[:-1] == sorted(usages[:-1], reverse=not reverse)
    ten = [{"address": f"10.0.0.{number}:8000"} for number in (10, 9, 1)] + [{"address": "[fd00::1]:8000"}]
    assert [each["address"] for each in ordered(ten, Look(sort="endpoint"))][-2:] == ["10.0.0.9:8000", "10.0.0.10:8000"]
    for column in COLUMNS:
        assert len(ordered(rows, Look(sort=column.name))) == 8
    with pytest.raises(KeyError):
        column_named("nothing")


def test_rows_scroll_and_pools_take_turns() -> None:
    found = asked(fleet(vllm=60, other=2))
    seen = lines(found, width=100, height=24, look=Look(sort="endpoint"))
    count = sum(line.startswith("10.0.0.") for line in seen)
    assert f"endpoints 1 to {count} of 60" in seen
    seen = lines(found, width=100, height=24, look=Look(sort="endpoint", first=1000))
    assert f"endpoints {61 - count} to 60 of 60" in seen
    assert row(seen, "10.0.0.60:8000")
    seen = lines(found, width=100, height=24, look=Look(pool=3))
    assert any(line.startswith("pool other (2 of 2: p for the next)") for line in seen)


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        (">", Look(sort="waiting", first=3)),
        ("left", Look(sort="endpoint", first=3)),
        ("r", Look(reverse=True, first=3)),
        ("p", Look(pool=1)),
        ("down", Look(first=4)),
        ("up", Look(first=2)),
        ("page down", Look(first=9)),
        ("page up", Look()),
        ("home", Look()),
        ("space", Look(first=3, paused=True)),
        ("x", Look(first=3)),
        ("q", None),
    ],
)
def test_keys_change_what_is_seen(key: str, wanted: Look | None) -> None:
    assert turned(Look(first=3), key, endpoints=10) == wanted


def test_sorting_goes_round() -> None:
    look = Look(sort=COLUMNS[-1].name)
    following = turned(look, ">", endpoints=1)
    assert following is not None
    assert following.sort == COLUMNS[0].name
    back = turned(following, "<", endpoints=1)
    assert back is not None
    assert back.sort == COLUMNS[-1].name


def test_names_cannot_command_the_terminal() -> None:
    made = Made(vllm=1)
    made.hour(1, picks=0)
    made.pick(body=b'{"model": "m\\u001b[2J\\u0007x", "prompt": "p"}')
    seen = "\n".join(lines(asked(made), width=200, height=None))
    assert "\x1b" not in seen
    assert "\x07" not in seen
    assert clean("a\x1b[2Jb\n") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}"


def test_names_are_no_markup() -> None:
    made = Made(vllm=1)
    made.hour(1, picks=0)
    made.pick(body=b'{"model": "[red]m[/red]", "prompt": "p"}')
    assert "[red]m[/red]" in "\n".join(lines(asked(made), width=200, height=None))


def test_a_trend_is_as_wide_as_it_may_be_and_a_gap_where_nothing_is_known() -> None:
    assert trend([0.0, 1.0, 2.0, 4.0], 10) == "▁▃▅█"
    assert trend([None, 1.0], 10) == " █"
    assert trend([0.5] * 3, 10, top=1.0) == "▅▅▅"
    assert len(trend([1.0] * 360, 30)) == 30
    assert trend([0.0, 0.0, 0.0, 4.0, 4.0], 2) == "▁█"
    assert trend([], 10) == ""


def news(*times: float, oldest: float | None = None, **columns: list[Any]) -> dict[str, Any]:
    return {"from": times[0] if oldest is None and times else oldest, "times": [*times], "pools": {"vllm": columns}}


def test_the_history_grows_by_what_is_new_and_loses_what_is_old() -> None:
    known = joined({"times": [], "pools": {}}, news(10.0, 20.0, waiting=[1.0, 2.0], asked={"kv": [1, 1]}))
    assert known == {"times": [10.0, 20.0], "pools": {"vllm": {"waiting": [1.0, 2.0]}}}
    known = joined(known, news(30.0, oldest=20.0, waiting=[3.0], running=[5.0]))
    assert known["times"] == [20.0, 30.0]
    assert known["pools"]["vllm"] == {"waiting": [2.0, 3.0], "running": [None, 5.0]}
    assert joined(known, {"from": 20.0, "times": [], "pools": {}}) == known
    # Another process, or a clock that was set back: what it tells counts.
    assert joined(known, news(5.0, waiting=[9.0]))["times"] == [5.0]
    assert joined(known, {"from": None, "times": [], "pools": {}})["times"] == []


def test_what_is_not_this_service_is_told() -> None:
    for answer in ({}, {"history": {}}, {"history": None}):
        found = heard(Heard(), lambda _, answer=answer: answer, 0.0)
        assert found.trouble == "what answers there is not this service, or another version of it"
        assert found.shown is None


def test_what_room_there_is_goes_to_the_picks() -> None:
    found = asked(fleet())
    for height, picks in ((24, 4), (32, 12)):
        seen = lines(found, width=100, height=height)
        assert sum(" ago 10.0.0." in line for line in seen) == picks
        assert sum(line.startswith("10.0.0.") for line in seen) == 8


def test_the_page_of_the_docs_names_every_column() -> None:
    page = (Path(__file__).parents[2] / "docs" / "top.md").read_text()
    assert [each.name for each in COLUMNS if f"`{each.name}`" not in page] == []
