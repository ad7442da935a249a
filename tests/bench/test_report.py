"""The verdict says met, missed or not measured, each with its numbers; no base, no ratio."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.common import page as common_page
from bench.overhead import page, report
from bench.overhead.__main__ import parse_arguments
from bench.overhead.arms import ARMS
from bench.overhead.measure import Cell, Measurements, Row, Window


def row(arm: str, concurrency: int, rps: float, p50_ms: float, body_kb: int = 4) -> Row:
    return Row(arm, body_kb, concurrency, rps, p50_ms, 10 * p50_ms, None if arm == "envoy-alone" else 300.0, None)


ROWS = [
    row("envoy-alone", 1, 2500, 0.39),
    row("extproc-a", 1, 1100, 0.89),
    row("envoy-alone", 32, 6810, 4.5),
    row("extproc-a", 32, 2340, 13.0),
    row("vllm-router-cache-aware", 32, 2620, 12.0),
]


def test_both_musts_met_with_their_numbers() -> None:
    throughput, latency = report.verdicts(ROWS)

    assert throughput.met is True
    assert "2,340 / 2,620 = 0.89; the aim of 1.0 is not reached" in str(throughput)
    assert latency.met is True
    assert "0.89 - 0.39 = 0.50 ms" in str(latency)


@pytest.mark.parametrize(("rps", "met"), [(800.0, True), (799.0, False)])
def test_the_bound_of_the_throughput_must_is_inclusive(rps: float, met: bool) -> None:
    rows = [row("extproc-a", 32, rps, 1), row("vllm-router-cache-aware", 32, 1000, 1)]

    assert report.verdicts(rows)[0].met is met


def test_a_missed_must_is_written_so_that_it_is_seen() -> None:
    rows = [row("envoy-alone", 1, 2500, 0.4), row("extproc-a", 1, 500, 2.0)]

    assert str(report.verdicts(rows)[1]).startswith("**MISSED**")


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    assert [verdict.met for verdict in report.verdicts(ROWS[:1])] == [None, None]


def test_ratio_to_something_unknown_is_unknown() -> None:
    assert report.ratio(1.0, None) is None
    assert report.ratio(None, 1.0) is None
    assert report.ratio(1.0, 0.0) is None
    assert report.ratio(1.0, 4.0) == 0.25


def test_the_table_has_a_section_a_cell_and_leaves_unknown_cells_empty() -> None:
    text = report.table(ROWS)

    assert text.index("### 4 KB, concurrency 1\n") < text.index("### 4 KB, concurrency 32\n")
    assert "| extproc-a | 2,340 | 0.34 | 0.89 | 13.00 | +8.50 | 130.00 | 300 |  |" in text
    assert "| envoy-alone | 2,500 | 1.00 |  | 0.39 |  | 3.90 |  |  |" in text


@pytest.mark.parametrize(("other", "warned"), [(0.02, False), (0.4, True)])
def test_a_busy_machine_is_said_first(other: float, warned: bool) -> None:
    window = Window(1000, 1, 2, 300, 200, 80, 20, other, 1.0, (1, 1, 1, 1), 0)
    measured = Measurements({("extproc-a", Cell(4, 32)): [window]})

    text = page.render(measured, "- a machine", "make bench-overhead", 1, 1, [])

    assert ("disturbed" in text.partition("## Verdict")[0]) is warned


def test_the_part_written_by_hand_survives_a_run(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "overhead.md"
    common_page.write(path, "# First\n")
    assert path.read_text() == "# First\n"
    path.write_text(f"# First\n\n{common_page.MARKER}\n\n## Why\nBy hand.\n")

    common_page.write(path, "# Second\n")

    assert path.read_text() == f"# Second\n\n{common_page.MARKER}\n\n## Why\nBy hand.\n"


def test_the_default_run_is_everything_that_was_asked_for() -> None:
    options = parse_arguments([])

    assert tuple(options.arms) == ARMS
    assert options.sizes == [1, 4, 40, 400]
    assert options.concurrency == [1, 32]


def test_an_unknown_arm_is_refused_with_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--arms", "nginx"])

    assert "vllm-router-cache-aware" in capsys.readouterr().err
