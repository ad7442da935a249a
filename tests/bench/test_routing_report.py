"""Rows survive an interruption, batches cover every cell once, and losses are shown as well as wins."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from bench.routing import page, plots, report
from bench.routing.__main__ import _command, parse_arguments
from bench.routing.arms import ARMS, EXTRA_ARMS
from bench.routing.results import Cell, Row, Store
from bench.routing.run import TIMINGS, batches
from extproc.sim.workloads import WORKLOADS

OURS, PEER, THIRD = report.SUBJECT, "sglang-router-cache-aware", "envoy-round-robin"


def row(workload: str, arm: str, mean_s: float, p90_s: float | None = None, seed: int = 1, note: str = "") -> Row:
    return Row(
        workload=workload,
        arm=arm,
        seed=seed,
        ttft_mean_s=mean_s,
        ttft_p50_s=mean_s,
        ttft_p90_s=2 * mean_s if p90_s is None else p90_s,
        ttft_p99_s=3 * mean_s,
        hit_ratio=0.5,
        max_over_mean=1.25,
        output_tok_s=1000.0,
        errors=0,
        unfinished=0,
        requests=100,
        seconds=60.0,
        factor=1.0,
        real_s=66.0,
        late_p99_s=0.002,
        cpu_ratio=0.05,
        cpu_servers_ratio=0.02,
        cpu_arm_ratio=0.02,
        cpu_clients_ratio=0.01,
        note=note,
    )


def test_a_row_has_the_columns_that_others_read() -> None:
    names = [field.name for field in dataclasses.fields(Row)]
    figures = ["ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "hit_ratio", "max_over_mean", "output_tok_s"]
    assert names[:11] == ["workload", "arm", "seed", *figures, "errors"]


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "out" / "routing.json"
    store = Store(path)
    store.add(row("W1", OURS, 0.1))
    store.add(row("W1", PEER, 0.2, note="3 errors"))

    resumed = Store.resumed(path)

    assert resumed.rows == store.rows
    assert resumed.has(Cell("W1", OURS, 1, 60.0, 1.0))
    assert not resumed.has(Cell("W1", OURS, 1, 30.0, 1.0))  # another length
    assert not resumed.has(Cell("W1", OURS, 2, 60.0, 1.0))
    assert not resumed.has(Cell("W1", PEER, 1, 60.0, 1.0))  # something was wrong with it
    resumed.add(row("W1", PEER, 0.3))
    assert [each["ttft_mean_s"] for each in json.loads(path.read_text())] == [0.1, 0.3]


def test_a_foreign_file_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    path.write_text('[{"arm": "x"}]')
    with pytest.raises(ValueError, match="start without --resume"):
        Store.resumed(path)


def test_every_workload_has_its_timing_and_its_sentence() -> None:
    assert set(TIMINGS) == set(WORKLOADS) == set(page._WORKLOADS)


@pytest.mark.parametrize("at_once", [None, 1, 3])
def test_batches_cover_every_cell_once_and_have_one_workload_and_seed(at_once: int | None) -> None:
    arms = ARMS[:7]
    plan = list(batches(["W1", "W3"], arms, [1, 2], seconds=None, factor=1.0, at_once=at_once))
    cells = [cell for batch in plan for cell in batch.cells]
    assert len(cells) == len({(cell.workload, cell.arm, cell.seed) for cell in cells}) == 2 * 7 * 2
    for batch in plan:
        assert len({(cell.workload, cell.seed) for cell in batch.cells}) == 1
        assert len(batch.cells) <= (at_once or TIMINGS[batch.cells[0].workload].at_once)
    first = [batch.cells[0].arm for batch in plan if batch.cells[0].workload == "W1"]
    assert first[0] != first[len(first) // 2]  # the order is another one for the next seed


def test_cells_that_are_done_are_left_out() -> None:
    done = [Cell("W1", OURS, 1, TIMINGS["W1"].seconds, 1.0)]
    plan = list(batches(["W1"], [OURS, PEER], [1], seconds=None, factor=1.0, at_once=None, done=done))
    assert [[cell.arm for cell in batch.cells] for batch in plan] == [[PEER]]


def test_the_whole_run_takes_two_hours_and_a_half_at_most_on_paper() -> None:
    arms = [arm for arm in ARMS if arm not in EXTRA_ARMS]
    plan = batches(list(TIMINGS), arms, [1, 2, 3], seconds=None, factor=1.0, at_once=None)
    assert sum(batch.expected_s for batch in plan) < 2.5 * 3600


def test_arms_are_compared_on_the_seeds_that_all_of_them_have() -> None:
    rows = [row("W1", OURS, 0.1, seed=1), row("W1", OURS, 9.0, seed=2), row("W1", PEER, 0.2, seed=1)]
    assert report.summaries(rows)["W1"][OURS].mean_s == 0.1


def test_the_best_of_the_others_is_found_for_each_figure() -> None:
    rows = [row("W1", OURS, 0.10, 0.40), row("W1", PEER, 0.12, 0.30), row("W1", THIRD, 0.20, 0.20)]
    comparison = report.compare(report.summaries(rows))["W1"]
    assert (comparison.mean.best_other, comparison.p90.best_other) == (PEER, THIRD)
    assert comparison.mean.ratio == pytest.approx(0.10 / 0.12)
    assert comparison.worst_ratio == pytest.approx(2.0)
    assert not comparison.won


def everything(losses: dict[str, float]) -> list[Row]:
    """All workloads; ours is at half of the others, or at the given multiple."""
    return [
        each
        for workload in TIMINGS
        for each in (row(workload, OURS, 0.1 * losses.get(workload, 0.5)), row(workload, PEER, 0.1))
    ]


@pytest.mark.parametrize(
    ("losses", "met"),
    [
        ({}, [True, True]),
        ({"W1": 1.04, "W2": 1.04, "W3": 1.05}, [True, True]),
        ({"W1": 1.04, "W2": 1.04, "W3": 1.05, "W4": 1.01}, [False, True]),
        ({"W1": 1.06}, [True, False]),
    ],
)
def test_the_aims_are_seven_wins_and_never_more_than_five_per_cent_behind(
    losses: dict[str, float], met: list[bool]
) -> None:
    verdicts = report.verdicts(report.compare(report.summaries(everything(losses))))
    assert [verdict.met for verdict in verdicts] == met
    if not met[1]:
        assert "W1 1.06" in str(verdicts[1])


def test_an_aim_that_was_not_wholly_measured_is_not_said_to_be_met() -> None:
    rows = [each for each in everything({}) if each.workload in ("W1", "W2")]
    assert [verdict.met for verdict in report.verdicts(report.compare(report.summaries(rows)))] == [None, None]
    assert [verdict.met for verdict in report.verdicts({})] == [None, None]


def test_the_page_shows_losses_errors_and_what_failed() -> None:
    rows = [row("W1", OURS, 0.2), row("W1", PEER, 0.1, note="2 errors, such as: status 503")]
    failures = [(Cell("W2", THIRD, 1, 60.0, 1.0), "it did not start")]
    text = page.render(rows, failures, [OURS, PEER], "make bench-routing", "routing.png")
    assert f"| W1 | 200 | {PEER} 100 | 2.00 (2.00 to 2.00) |" in text
    assert "| behind |" in text
    assert "2 errors, such as: status 503" in text
    assert f"**W2, {THIRD}, seed 1 failed**: it did not start" in text
    assert "200 / 400 (50%)" in text
    assert "**100** / **200** (50%)" in text


def test_a_disturbed_run_says_so_first() -> None:
    quiet = row("W1", OURS, 0.1)
    assert report.disturbed([quiet]) is None
    assert "disturbed" in str(report.disturbed([dataclasses.replace(quiet, cpu_others_ratio=0.4)]))
    late = dataclasses.replace(quiet, late_p99_s=0.5)
    assert "in 1 of 2 cells one request in a hundred was sent more than 20 ms late" in str(
        report.disturbed([quiet, late])
    )


def test_the_page_says_how_to_measure_the_same_again() -> None:
    assert _command(parse_arguments(["--resume", "--write-docs", "--out", "elsewhere.json"])) == "make bench-routing"
    options = parse_arguments(["--workloads", "W1", "W9", "--seeds", "4", "--factor", "2", "--report-only"])
    assert _command(options) == 'make bench-routing BENCH_ARGS="--workloads W1 W9 --seeds 4 --factor 2"'


def test_the_chart_is_drawn_with_gaps_where_nothing_was_measured(tmp_path: Path) -> None:
    table = report.summaries([row("W1", OURS, 0.1), row("W1", PEER, 0.2), row("W2", PEER, 0.2)])
    path = tmp_path / "docs" / "chart.png"
    plots.draw(table, [OURS, PEER], path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_arm_or_a_length_of_zero_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--arms", "nginx"], ["--seconds", "0"], ["--at-once", "0"], ["--workloads", "W7"]):
        with pytest.raises(SystemExit):
            parse_arguments(argv)
        assert argv[0] in capsys.readouterr().err
