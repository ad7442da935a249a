"""The microbenchmark of a pick: that it measures the real thing, and what it says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.pick import page, report
from bench.pick.__main__ import main, parse_arguments
from bench.pick.measure import STAGES, Row, measure
from bench.pick.memory import Weight
from bench.pick.scene import HEADERS, PATH, Bodies, Scene
from extproc.decision import Pick
from extproc.request import RawRequest


def total(endpoints: int, body_kb: int, us: float) -> Row:
    return Row(endpoints, body_kb, 1_000_000, "total", us, us / 2, 50)


@pytest.mark.parametrize("size", [4096, 40_960])
def test_bodies_are_about_the_size_asked_for_and_no_two_alike(size: int) -> None:
    bodies = Bodies(size)
    assert len(bodies.body(1)) == pytest.approx(size, rel=0.02)
    assert bodies.body(1) != bodies.body(2)
    assert json.loads(bodies.body(1))["messages"][0] == json.loads(bodies.body(2))["messages"][0]


def test_the_scene_is_what_the_page_says() -> None:
    """A full index, fresh samples, servers that hold the shared half to different depths."""
    scene = Scene(20, 5000)
    bodies = Bodies(20_000)
    scene.share(bodies)
    explained = scene.router.explain(RawRequest("POST", PATH, HEADERS, bodies.body(1)), scene.now)
    assert explained.by == "first_token"
    assert len({each.held_blocks for each in explained.endpoints}) > 10
    assert all(each.waiting is not None for each in explained.endpoints)
    before = scene.index.stats()
    assert before.blocks == 5000
    pick = scene.router.route(RawRequest("POST", PATH, HEADERS, bodies.body(1)), scene.now)
    assert isinstance(pick, Pick)
    assert scene.index.stats().blocks == 5000
    scene.router.settle()
    assert scene.index.stats().evicted_blocks > before.evicted_blocks


def test_requests_in_flight_stay_bounded_and_samples_fresh() -> None:
    scene = Scene(4, 1000)
    measure(scene, 4, seconds=0.0, least=200)
    assert sum(member.in_flight for member in scene.pool.members) <= 4 * 4 + 2
    assert all(member.fresh_sample(scene.now) is not None for member in scene.pool.members)


def test_every_stage_is_measured_as_often_as_asked() -> None:
    rows = measure(Scene(4, 1000), 4, seconds=0.0, least=7)
    assert [row.stage for row in rows] == list(STAGES)
    assert {(row.endpoints, row.body_kb, row.indexed_blocks, row.repetitions) for row in rows} == {(4, 4, 1000, 7)}
    assert all(0 < row.min_us <= row.us for row in rows)


def test_a_target_is_judged_by_the_median_and_one_that_was_not_measured_is_not_met() -> None:
    verdicts = report.verdicts([total(64, 4, 99.0), total(500, 4, 401.0)])
    assert [verdict.met for verdict in verdicts] == [True, False, False, False]
    assert [str(verdict).partition(":")[0] for verdict in verdicts] == [
        "**met**",
        "**missed**",
        "**not measured**",
        "**not measured**",
    ]


@pytest.mark.parametrize(("others_ratio", "warned"), [(0.05, False), (0.5, True)])
def test_the_page_says_when_the_machine_was_busy(others_ratio: float, warned: bool) -> None:
    rows = [Row(4, 4, 1000, stage, 2.0, 1.0, 50) for stage in STAGES]
    text = page.render(rows, Weight(1000, 200_000, 300_000, 400_000), others_ratio, "make bench-pick")
    assert ("disturbs" in text) is warned
    assert "200 MB" in text
    assert "300 MB" in text
    assert "400 MB" in text
    assert "| 4 | 4 KB | 2 (1) |" in text


def test_check_fails_when_a_target_was_not_measured(tmp_path: Path) -> None:
    out = tmp_path / "pick.json"
    small = ["--endpoints", "2", "--sizes", "4", "--blocks", "1000", "--seconds", "0.01", "--no-memory"]
    assert main([*small, "--out", str(out), "--check"]) == 1
    assert main([*small, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert [row["stage"] for row in rows] == list(STAGES)
    assert {"endpoints", "body_kb", "indexed_blocks", "stage", "us"} <= set(rows[0])


def test_the_default_run_is_everything_that_was_asked_for() -> None:
    options = parse_arguments([])
    assert (options.endpoints, options.sizes, options.blocks) == ([4, 64, 500], [4, 40, 400], 1_000_000)
